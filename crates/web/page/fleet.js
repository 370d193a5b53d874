// All servers that this one knows: itself, the sources of its mirrors, the servers that follow its
// volumes, and others that it reads with a token of a viewer. The worst comes first.

import { get } from "./api.js";
import { h, section, table, withCommands } from "./dom.js";
import { toneOf } from "./overview.js";
import { ago, count, duration, interval, plain } from "./words.js";

const REFRESH = 10_000;

const TONES = ["good", "warn", "bad"];

export class FleetView {
  constructor(app) {
    this.app = app;
    this.peers = [];
    this.others = [];
    this.problem = null;
    this.asked = 0;
  }

  get title() {
    return "Fleet";
  }

  stop() {}

  attach() {}

  async update() {
    if (Date.now() - this.asked < REFRESH) return;
    this.asked = Date.now();
    try {
      [this.peers, this.others] = await Promise.all([get("/v1/peers"), get("/v1/fleet")]);
      this.problem = null;
      // The first answer of the others comes when they have been asked.
      if (this.others.some((other) => other.state === "unknown")) this.asked -= REFRESH - 1000;
    } catch (error) {
      this.problem = error;
    }
    this.app.draw();
  }

  render() {
    const { status } = this.app;
    if (!status) return [];
    const rows = [...relations(status, this.peers), ...this.others.map(other)].sort((one, other) => TONES.indexOf(other.tone) - TONES.indexOf(one.tone) || (other.lag ?? 0) - (one.lag ?? 0));
    const shown = rows.map((row) => ({
      key: row.key,
      cells: [
        row.server,
        row.relation,
        h("span", { class: `state ${row.tone}` }, row.state),
        row.lag === undefined ? "" : row.lag === 0 ? "0" : duration(row.lag),
        row.rpo === undefined ? "" : interval(row.rpo),
        row.heard ?? "",
      ],
    }));
    return [
      h("h1", { "data-key": "title" }, "Fleet"),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, this.problem.message),
      section("Servers that this one knows", h("div", { class: "fleet" }, table("Servers, the worst first", ["Server", "Relation", "State", ["Lag", "n"], ["RPO", "n"], ["Heard", "n"]], shown))),
      h("p", { class: "hint", "data-key": "note" }, withCommands("Each server has a page of its own, with all of its volumes. `cairn peer list` shows the peers. `cairn fleet create NAME HOST:PORT --token @FILE --root FILE` adds another server, by a token of a viewer there.")),
    ];
  }
}

const link = (kind, name) => h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, name);

/// A server that this one reads by a token.
function other(server) {
  const { summary, state, message } = server;
  const counts = summary ? `${count(summary.volumes, "volume")}, ${count(summary.mirrors, "mirror")}` : "";
  const behind = summary?.over_rpo > 0 ? `, ${summary.over_rpo} behind` : "";
  const [tone, words] = {
    unreachable: ["bad", `no answer: ${message}`],
    problems: ["bad", summary && `${count(summary.problems, "problem")}: ${message}`],
    well: ["good", "all is well"],
    unknown: ["warn", "asking …"],
  }[state];
  return {
    key: `other ${server.name}`,
    server: [h("strong", {}, server.name), ` ${server.address}`],
    relation: `${counts}${behind}`,
    tone,
    state: words,
    lag: summary?.lag_ms ?? undefined,
    heard: server.answered_ms ? ago(server.answered_ms) : "never",
  };
}

function relations(status, peers) {
  const problems = status.problems.length;
  const rows = [{
    key: "here",
    server: "this server",
    relation: `${count(status.volumes.length, "volume")}, ${count(status.mirrors.length, "mirror")}`,
    tone: problems > 0 ? "bad" : "good",
    state: problems > 0 ? count(problems, "problem") : "all is well",
  }];
  for (const mirror of status.mirrors) {
    rows.push({
      key: `source ${mirror.name}`,
      server: mirror.source_address,
      relation: ["source of ", link("mirror", mirror.name)],
      tone: toneOf(mirror),
      state: plain(mirror.state),
      lag: mirror.lag_ms,
      rpo: mirror.rpo_ms,
      heard: mirror.silent_ms !== null ? `${duration(mirror.silent_ms)} ago` : null,
    });
  }
  for (const follower of status.followers) {
    const isBad = follower.departed || follower.over_rpo;
    rows.push({
      key: `follower ${follower.volume} ${follower.name}`,
      server: follower.peer ?? follower.name.slice(0, 16),
      relation: ["mirrors ", link("mirror", follower.volume)],
      tone: isBad ? "bad" : "good",
      state: follower.departed ? "failed over" : follower.over_rpo ? "behind" : follower.transferring ? "transferring" : "idle",
      lag: follower.lag_ms,
      rpo: follower.rpo_ms,
      heard: follower.heard_ms ? ago(follower.heard_ms) : null,
    });
  }
  const named = new Set(status.followers.map((follower) => follower.peer));
  for (const peer of peers.filter((one) => !named.has(one.name ?? one.id))) {
    rows.push({
      key: `peer ${peer.id}`,
      server: peer.name ?? peer.id,
      relation: `may mirror ${peer.volume ?? "all volumes"}`,
      tone: "good",
      state: plain(peer.state),
      heard: peer.pinned_ms ? `first ${ago(peer.pinned_ms)}` : null,
    });
  }
  return rows;
}

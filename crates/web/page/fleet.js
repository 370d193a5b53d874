// All servers that this one knows: itself, the sources of its mirrors, and the servers that follow
// its volumes. The worst comes first.

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
      this.peers = await get("/v1/peers");
      this.problem = null;
    } catch (error) {
      this.problem = error;
    }
    this.app.draw();
  }

  render() {
    const { status } = this.app;
    if (!status) return [];
    const rows = relations(status, this.peers).sort((one, other) => TONES.indexOf(other.tone) - TONES.indexOf(one.tone) || (other.lag ?? 0) - (one.lag ?? 0));
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
      section("Servers that this one knows", table("Servers, the worst first", ["Server", "Relation", "State", ["Lag", "n"], ["RPO", "n"], ["Heard", "n"]], shown)),
      h("p", { class: "hint", "data-key": "note" }, withCommands("Each server has a page of its own, with all of its volumes. `cairn peer list` shows the peers.")),
    ];
  }
}

const link = (kind, name) => h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, name);

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

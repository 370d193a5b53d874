// A mirror: both sides, its lag, its transfers, and what a failover would do and lose.

import { get, jobDone, post, call, segment } from "./api.js";
import { actionButton } from "./dialog.js";
import { bar, facts, h, section, table, withCommands } from "./dom.js";
import { jobTable, toneOf } from "./overview.js";
import { plot } from "./plot.js";
import { SourceSide, followAgain } from "./source.js";
import { ago, count, duration, interval, plain, size, stamp } from "./words.js";

/// The server has a sample of the lag each minute.
const SAMPLES_EVERY = 60_000;

/// The requests of actions here.
const PAUSE = "PATCH /v1/mirrors/{mirror}";
const FAILOVER = "POST /v1/mirrors/{mirror}/failover";

export class MirrorView {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.samples = [];
    this.asked = 0;
    this.source = new SourceSide(app, name);
    this.refresh = () => this.app.poll();
  }

  get title() {
    return `Mirror ${this.name}`;
  }

  stop() {}

  attach() {}

  update() {
    const { mirror } = this;
    if (!mirror || this.isSource) this.source.update();
    if (!mirror || Date.now() - this.asked < SAMPLES_EVERY) return;
    this.asked = Date.now();
    get(`${this.path}/lags`).then((samples) => {
      this.samples = samples;
      this.app.draw();
    }, () => {});
  }

  /// Other servers follow this volume.
  get isSource() {
    return this.source.followers.length > 0 || this.mirror?.role === "source";
  }

  get mirror() {
    return this.app.status?.mirrors.find((mirror) => mirror.name === this.name) ?? null;
  }

  get path() {
    return `/v1/mirrors/${segment(this.name)}`;
  }

  render() {
    const { mirror, name } = this;
    if (!this.app.status) return [];
    if (!mirror && this.app.status.volumes.some((volume) => volume.name === name)) {
      return [
        h("h1", { "data-key": "title" }, `Mirrors of ${name}`),
        h("p", { class: "buttons", "data-key": "actions" }, h("a", { class: "button", href: `#/volume/${encodeURIComponent(name)}` }, "Time line")),
        ...this.source.parts(),
        section("Jobs", jobTable(this.app.jobs, this.app, name)),
      ];
    }
    if (!mirror) return [h("h1", {}, name), h("p", { class: "note bad" }, `There is no mirror ${name} here. `, h("a", { href: "#/" }, "All mirrors"))];
    const tone = toneOf(mirror);
    const follows = mirror.role === "destination";
    const moves = ["transferring", "transferring-baseline", "stalled", "catching-up"].includes(mirror.state);
    return [
      h("h1", { "data-key": "title" }, `Mirror ${name} `, h("span", { class: `state ${tone}` }, plain(mirror.state))),
      h(
        "div",
        { class: `verdict ${tone}`, "data-key": "why" },
        h("p", {}, mirror.reason),
        mirror.remedy && h("p", { class: "next" }, "Next: ", withCommands(mirror.remedy)),
        mirror.problem && h("p", { class: "next" }, `The last update failed: ${mirror.problem.message}`),
      ),
      sides(mirror),
      follows && lagPart(mirror, this.samples),
      h(
        "p",
        { class: "buttons", "data-key": "actions" },
        follows && actionButton("Update now …", () => this.updateNow(), { needs: "POST /v1/mirrors/{mirror}/update" }),
        follows && moves && actionButton("Abort …", () => this.abort(), { needs: "POST /v1/mirrors/{mirror}/abort" }),
        follows && actionButton("Verify …", () => this.verify(), { needs: "POST /v1/mirrors/{mirror}/verify" }),
        follows && (mirror.paused
          ? actionButton("Resume …", () => this.pause(false), { needs: PAUSE })
          : actionButton("Pause …", () => this.pause(true), { needs: PAUSE })),
        follows && actionButton("Change roles …", () => this.reverse(), { danger: true, needs: "POST /v1/mirrors/{mirror}/reverse" }),
        !follows && actionButton("Rehearse the way back …", () => followAgain(this.app, name, null, "rehearse"), { needs: "POST /v1/mirrors/{mirror}/divergence" }),
        !follows && actionButton("Follow the other side …", () => followAgain(this.app, name, null, "resync"), { danger: true, needs: "POST /v1/mirrors/{mirror}/resync" }),
        follows && actionButton("Rehearse a failover …", () => this.failover(false), { needs: FAILOVER }),
        follows && actionButton("Fail over …", () => this.failover(true), { danger: true, needs: FAILOVER }),
        h("a", { class: "button", href: `#/volume/${encodeURIComponent(name)}` }, "Time line"),
      ),
      section("Transfers", transfers(mirror)),
      section("Settings", settings(mirror)),
      section("Proof", this.proof(mirror)),
      follows && this.drills(),
      ...(this.isSource ? this.source.parts() : [this.priceNote(mirror)]),
      section("Jobs", jobTable(this.app.jobs, this.app, name)),
    ];
  }

  proof(mirror) {
    const { verified } = mirror;
    return facts([
      ["Verified", verified
        ? `${ago(verified.started_ms)}: ${size(verified.compared_bytes)} compared, ${verified.differences_total === 0 ? "no difference" : count(verified.differences_total, "difference")}`
        : withCommands(`never; \`cairn mirror verify ${this.name}\``)],
      ["Locked snapshots", mirror.locked > 0 ? `${mirror.locked}${mirror.locked_until_ms ? `, the last until ${stamp(mirror.locked_until_ms)}` : ""}` : "none"],
      ["Repaired", mirror.mended_here + mirror.mended_there > 0 ? `${mirror.mended_here} blocks here, ${mirror.mended_there} at the source` : null],
    ]);
  }

  /// The drills: a clone of the newest image is served, and a command of the owner tries it.
  drills() {
    const drill = this.app.status.drills.find((found) => found.mirror === this.name);
    if (!drill) return section("Drills", h("p", { class: "empty" }, withCommands(`none was made; make one with \`cairn mirror drill ${this.name} --probe COMMAND\``)));
    const { last } = drill;
    const row = last && {
      key: String(last.at_ms),
      cells: [
        h("span", { class: `state ${last.outcome === "passed" ? "good" : "bad"}` }, plain(last.outcome)),
        stamp(last.at_ms),
        last.snapshot,
        duration(Math.max(0, last.at_ms - last.image_ms)),
        duration(last.served_ms),
        duration(last.recovery_ms),
        last.said.trim().split("\n").pop(),
      ],
    };
    const columns = ["Outcome", "Began", "Image", ["Image was old", "n"], ["Served after", "n"], ["Recovered after", "n"], "Said"];
    return section(
      "Drills",
      facts([
        ["Probe", h("code", {}, drill.probe)],
        ["Each", drill.every_ms ? interval(drill.every_ms) : "on request"],
        ["Last that passed", drill.age_ms !== null ? `${duration(drill.age_ms)} ago${drill.stale ? ", which is too long" : ""}` : "none"],
        ["Now", drill.running ? "one runs" : null],
      ]),
      table("The last drill", columns, row ? [row] : [], "none has ended yet"),
      !drill.running && h("p", { class: "buttons" }, actionButton("Make a drill …", () => this.drill(drill), { needs: "POST /v1/mirrors/{mirror}/drill" })),
    );
  }

  drill(drill) {
    return {
      title: `Make a drill of ${this.name}`,
      words: () => ["A clone of the newest image is served, and the probe runs on it. The clone is deleted then. The mirror goes on as it is.", `The probe: \`${drill.probe}\``],
      line: () => `cairn mirror drill ${this.name}`,
      verb: "Make it",
      run: async () => {
        await post(`${this.path}/drill`, {});
        return "The drill runs; the table of jobs shows its progress.";
      },
      after: this.refresh,
    };
  }

  /// Only the source sees the writes of clients.
  priceNote(mirror) {
    return section("Price of a lag", h("p", {}, withCommands(`The server of the source knows what each lag would cost on this link. On its page it is under Mirrors of ${mirror.source_volume}; there, the command is \`cairn plan ${mirror.source_volume} --link 100M\`.`)));
  }

  /// A planned change of roles, without a loss.
  reverse() {
    const { name, mirror } = this;
    return {
      title: `Change the roles of ${name}`,
      words: async () => {
        await post("/v1/dry-run", { what: "reverse-mirror", mirror: name });
        return [
          `1. ${mirror.source_volume} at ${mirror.source_address} stops, and its clients are disconnected.`,
          "2. Its last changes come here: nothing is lost.",
          `3. ${name} takes writes, and the other side follows it.`,
          `The source must allow it: \`cairn mirror allow-reverse ${mirror.source_volume}\` there.`,
        ];
      },
      typed: name,
      line: () => `cairn mirror reverse ${name}`,
      verb: "Change roles",
      run: async () => {
        await jobDone(await post(`${this.path}/reverse`));
        return `${name} takes writes now, and the other side follows it.`;
      },
      after: this.refresh,
    };
  }

  updateNow() {
    return {
      title: `Update ${this.name}`,
      words: async () => {
        const price = await get(`${this.path}/update`);
        return [
          price.base_known
            ? `The source has changed ${size(price.changed_bytes)} since the image here. A full copy is ${size(price.full_bytes)}.`
            : `The source does not know what changed since the image here: up to ${size(price.changed_bytes)} are compared or sent.`,
          price.kept_bytes > 0 ? `${size(price.kept_bytes)} came with an update that was cut, and are kept.` : null,
          `The mirror lags ${duration(price.lag_ms)}.`,
        ];
      },
      line: () => `cairn mirror update ${this.name}`,
      verb: "Update",
      run: async () => {
        await post(`${this.path}/update`, {});
        return "The update runs; the table of jobs shows its progress.";
      },
      after: this.refresh,
    };
  }

  abort() {
    return {
      title: `Abort the update of ${this.name}`,
      words: () => ["The running update ends. What it brought is there for the next one."],
      line: () => `cairn mirror abort ${this.name}`,
      verb: "Abort",
      run: async () => {
        const done = await post(`${this.path}/abort`);
        return done.was_running ? `The update ended; ${size(done.kept_bytes)} of it are kept.` : "No update ran.";
      },
      after: this.refresh,
    };
  }

  verify() {
    return {
      title: `Verify ${this.name}`,
      words: () => ["Both sides compare the checksums of all blocks, and repair what is damaged on one side. Clients are served meanwhile."],
      line: () => `cairn mirror verify ${this.name}`,
      verb: "Verify",
      run: async () => {
        await post(`${this.path}/verify`, {});
        return "The comparison runs; the table of jobs shows its progress.";
      },
      after: this.refresh,
    };
  }

  pause(paused) {
    return {
      title: paused ? `Pause ${this.name}` : `Resume ${this.name}`,
      words: () => [paused
        ? "No update begins, and one that runs is aborted. The lag grows until you resume the mirror."
        : "Updates begin again by the schedule."],
      line: () => `cairn mirror ${paused ? "pause" : "resume"} ${this.name}`,
      verb: paused ? "Pause" : "Resume",
      run: async () => {
        await call("PATCH", this.path, { paused });
        return paused ? `${this.name} is paused.` : `${this.name} follows its source again.`;
      },
      after: this.refresh,
    };
  }

  /// A failover, or a rehearsal of it, which asks the same question and does nothing.
  failover(really) {
    const { name, mirror } = this;
    const asked = (dry) => post(`${this.path}/failover`, { dry_run: dry });
    return {
      title: really ? `Fail over to ${name}` : `Rehearsal: fail over to ${name}`,
      words: async () => {
        const would = await asked(true);
        return [
          really ? null : "Nothing is done. A failover now would do this:",
          `1. Updates of ${name} end, and it takes writes as it is at ${would.image ?? "no image"}${would.image_ms ? `, of ${stamp(would.image_ms)}` : ""}.`,
          `2. Lost: ${loss(would)}.`,
          would.discarded_bytes > 0 ? `3. ${size(would.discarded_bytes)} of an unfinished update are discarded.` : null,
          "The source is not asked. It is notified when it answers; stop its clients first if it still runs.",
          `After it, connect the clients to the LUNs here: \`cairn lun list ${name}\``,
          `When the old source is back, this makes it follow, there: \`cairn mirror resync ${mirror.source_volume}\``,
        ];
      },
      typed: really ? name : undefined,
      line: () => `cairn mirror failover ${name}${really ? "" : " -n"}`,
      verb: really ? "Fail over" : undefined,
      run: async () => {
        const done = await asked(false);
        return [
          `${name} takes writes now, and follows no source.`,
          `Lost: ${loss(done)}.`,
          `Next: connect the clients to its LUNs: \`cairn lun list ${name}\``,
        ];
      },
      after: this.refresh,
    };
  }
}

function loss(outcome) {
  const within = outcome.lost_ms === null ? "(unknown time)" : duration(outcome.lost_ms);
  const most = `at most the writes of the last ${within}`;
  if (outcome.lost_bytes === null || outcome.silent_ms === null) return most;
  return `${most}; ${size(outcome.lost_bytes)} were waiting ${duration(outcome.silent_ms)} ago`;
}

function sides(mirror) {
  const follows = mirror.role === "destination";
  const side = (title, name, lines) => h("div", { class: "side" }, h("p", { class: "hint" }, title), h("p", {}, h("strong", {}, name)), lines.filter(Boolean).map((line) => h("p", {}, line)));
  return h(
    "div",
    { class: "sides", "data-key": "sides" },
    side(follows ? "Source" : "Other side", mirror.source_volume, [
      mirror.source_address,
      mirror.silent_ms !== null ? `heard ${duration(mirror.silent_ms)} ago` : follows ? "not heard of yet" : null,
    ]),
    h("p", { class: "arrow", "aria-label": mirror.direction, role: "img" }, follows ? "→" : "←"),
    side("Here", mirror.name, [
      mirror.image ? `shows ${mirror.image}` : "shows no image yet",
      mirror.image_ms ? `taken ${stamp(mirror.image_ms)}` : null,
    ]),
  );
}

function lagPart(mirror, samples) {
  const { lag_ms: lag, rpo_ms: rpo } = mirror;
  const text = lag === null
    ? "The lag is not known."
    : mirror.lag_bytes === 0 ? `Nothing had changed at the source ${duration(mirror.silent_ms)} ago` : `The mirror lags ${duration(lag)}`;
  const limit = rpo ? `; it may lag ${interval(rpo)} (RPO)` : "; no RPO is set";
  const bytes = mirror.lag_bytes ? `: ${size(mirror.lag_bytes)} of changes are not here` : "";
  return h(
    "div",
    { class: "lag", "data-key": "lag" },
    h("p", {}, lag === null ? text : `${text}${bytes}${limit}.`),
    rpo && lag !== null ? bar(lag, Math.max(rpo, lag), `lag ${duration(lag)} of ${interval(rpo)}`, mirror.over_rpo) : null,
    curve(mirror, samples),
  );
}

/// The lag over hours, as a curve, from the samples of the server.
function curve(mirror, samples) {
  const { rpo_ms: rpo, lag_ms: lag } = mirror;
  const points = samples.map((sample) => [sample.at_ms, sample.lag_ms]);
  if (lag !== null) points.push([Date.now(), lag]);
  const known = points.filter(([, value]) => value !== null);
  if (known.length < 2) return h("p", { class: "hint" }, "The server keeps the lag of two days, a sample each minute. It has just begun.");
  const span = known[known.length - 1][0] - known[0][0];
  const most = Math.max(...known.map(([, value]) => value));
  const over = rpo ? known.filter(([, value]) => value > rpo).length : 0;
  const words = `Lag of the last ${duration(span)}: now ${duration(lag)}, at most ${duration(most)}${rpo ? `; more than the RPO in ${count(over, "sample")} of ${known.length}` : ""}.`;
  const drawn = plot({
    lines: [{ name: "lag", style: "one", points }],
    limit: rpo,
    label: words,
    top: duration(Math.max(most, rpo ?? 0)),
    ends: [stamp(known[0][0]), "now"],
    names: false,
  });
  return h("div", {}, drawn, h("p", { class: "hint" }, words, rpo ? " The dashed line is the RPO." : null));
}

function transfers(mirror) {
  const { last, session } = mirror;
  const row = last && {
    key: "last",
    cells: [
      last.complete ? (last.up_to_date ? "nothing had changed" : "done") : "not done",
      stamp(last.started_ms),
      duration(last.duration_ms),
      size(last.changed_bytes),
      size(last.sent_bytes),
      size(Math.max(0, last.full_bytes - last.sent_bytes)),
      size(last.kept_bytes),
      last.snapshot ?? "-",
    ],
  };
  const columns = ["Last", "Began", ["Took", "n"], ["Changed", "n"], ["Sent", "n"], ["Saved", "n"], ["Kept", "n"], "Image"];
  return h(
    "div",
    {},
    table("The last update", columns, row ? [row] : [], "no update has run"),
    facts([
      ["Next update", mirror.continuous ? "follows continuously" : mirror.paused ? "paused" : mirror.next_ms ? `${ago(mirror.next_ms)}, ${stamp(mirror.next_ms)}` : "on request"],
      ["All updates", `${mirror.updates.toLocaleString("en")}, ${size(mirror.sent_bytes)} sent`],
      ["Connected", session ? `since ${stamp(session.since_ms)}, ${count(session.steps, "image")}` : null],
    ]),
  );
}

function settings(mirror) {
  const when = mirror.cron ? `${mirror.cron} ${mirror.zone ?? "UTC"}` : mirror.continuous ? "continuous" : mirror.every_ms ? `every ${interval(mirror.every_ms)}` : "on request";
  return facts([
    ["Schedule", when],
    ["RPO", mirror.rpo_ms ? interval(mirror.rpo_ms) : "none"],
    ["Rate limit", mirror.limit ? `${mirror.limit}${mirror.limit_now_bytes ? `, now ${size(mirror.limit_now_bytes)}/s` : ""}` : "none"],
    ["Connections", String(mirror.connections)],
    ["Compression", mirror.compress],
    ["Lock", mirror.lock_ms ? duration(mirror.lock_ms) : "none"],
    ["Base snapshot", mirror.hold ? "held at the source" : "not held"],
    ["Change it", withCommands(`\`cairn mirror set ${mirror.name} --rpo 15m\``)],
  ]);
}

// Mirrors in buckets: their table, and the view of one with its images, transfers and proof.

import { call, get, post, segment } from "./api.js";
import { actionButton } from "./dialog.js";
import { bar, facts, h, section, table, withCommands } from "./dom.js";
import { ago, count, duration, interval, plain, size, stamp } from "./words.js";

const tone = (mirror) => ["good", "warn", "bad"][mirror.check] ?? "bad";

/// The address of the view of a mirror in a bucket.
export const bucketHref = (name) => `#/bucket-mirror/${encodeURIComponent(name)}`;

/// The table of all of them.
export function bucketMirrorTable(mirrors) {
  const rows = mirrors.map((mirror) => ({
    key: mirror.name,
    cells: [
      h("a", { href: bucketHref(mirror.name) }, mirror.name),
      h("span", { class: `state ${tone(mirror)}` }, plain(mirror.state)),
      h("a", { href: `#/volume/${encodeURIComponent(mirror.volume)}` }, mirror.volume),
      duration(mirror.lag_ms),
      interval(mirror.rpo_ms),
      String(mirror.images),
      next(mirror),
      mirror.last ? size(mirror.last.sent_bytes) : "-",
      mirror.verified ? ago(mirror.verified.started_ms) : "never",
    ],
  }));
  const columns = ["Name", "State", "Volume", ["Lag", "n"], ["RPO", "n"], ["Images", "n"], "Next image", ["Last sent", "n"], "Verified"];
  return table("Mirrors in buckets", columns, rows);
}

function next(mirror) {
  if (mirror.paused) return "paused";
  return mirror.next_ms ? ago(mirror.next_ms) : "on request";
}

export class BucketMirrorView {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.refresh = () => this.app.poll();
  }

  get title() {
    return `Mirror ${this.name}`;
  }

  stop() {}

  update() {}

  attach() {}

  get mirror() {
    return this.app.status?.bucket_mirrors.find((mirror) => mirror.name === this.name) ?? null;
  }

  get path() {
    return `/v1/bucket-mirrors/${segment(this.mirror.id)}`;
  }

  render() {
    const { mirror, name } = this;
    if (!this.app.status) return [];
    if (!mirror) return [h("h1", {}, name), h("p", { class: "note bad" }, `There is no mirror ${name} here. `, h("a", { href: "#/" }, "All mirrors"))];
    const runs = mirror.state === "transferring";
    return [
      h("h1", { "data-key": "title" }, `Mirror ${name} `, h("span", { class: `state ${tone(mirror)}` }, plain(mirror.state))),
      h(
        "div",
        { class: `verdict ${tone(mirror)}`, "data-key": "why" },
        h("p", {}, mirror.reason),
        mirror.remedy && h("p", { class: "next" }, "Next: ", withCommands(mirror.remedy)),
      ),
      lag(mirror),
      h(
        "p",
        { class: "buttons", "data-key": "actions" },
        actionButton("Update now …", () => this.updateNow()),
        runs && actionButton("Abort …", () => this.abort()),
        actionButton("Verify …", () => this.verify()),
        mirror.paused ? actionButton("Resume …", () => this.pause(false)) : actionButton("Pause …", () => this.pause(true)),
        h("a", { class: "button", href: `#/volume/${encodeURIComponent(mirror.volume)}` }, "Time line"),
      ),
      section("Images", images(mirror)),
      section("Transfers", transfers(mirror)),
      section("Settings", settings(mirror)),
      section("Proof", proof(mirror)),
    ];
  }

  updateNow() {
    return {
      title: `Update ${this.name}`,
      words: async () => {
        const { first } = await get(`${this.path}/update`);
        return [
          `At most ${count(first.objects, "object")} with ${size(first.bytes)}, in ${count(first.puts + first.gets, "request")}.`,
          "If nothing has changed, nothing is sent.",
        ];
      },
      line: () => `cairn mirror update ${this.name}`,
      verb: "Update",
      run: async () => {
        await post(`${this.path}/update`, {});
        return "The update runs; the state shows its end.";
      },
      after: this.refresh,
    };
  }

  abort() {
    return {
      title: `Abort the update of ${this.name}`,
      words: () => ["The running update ends. The next one uses the objects that it put."],
      line: () => `cairn mirror abort ${this.name}`,
      verb: "Abort",
      run: async () => {
        const done = await post(`${this.path}/abort`);
        return done.was_running ? "The update ended." : "No update ran.";
      },
      after: this.refresh,
    };
  }

  verify() {
    return {
      title: `Verify ${this.name}`,
      words: () => [`This reads the newest image, ${size(this.mirror.stored_bytes)}, and checks every digest. Vendors charge for these reads.`],
      line: () => `cairn mirror verify ${this.name}`,
      verb: "Verify",
      run: async () => {
        await post(`${this.path}/verify`, {});
        return "The verification runs; the view shows its result.";
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
        return paused ? `${this.name} is paused.` : `${this.name} makes images again.`;
      },
      after: this.refresh,
    };
  }
}

function lag(mirror) {
  const { lag_ms: late, rpo_ms: rpo } = mirror;
  const limit = rpo ? `; it may lag ${interval(rpo)} (RPO)` : "; no RPO is set";
  const text = late === null ? "The lag is not known: there is no image yet." : `${late === 0 ? "The newest image has all changes" : `The mirror lags ${duration(late)}`}${limit}.`;
  return h(
    "div",
    { class: "lag", "data-key": "lag" },
    h("p", {}, text),
    rpo && late !== null ? bar(late, Math.max(rpo, late), `lag ${duration(late)} of ${interval(rpo)}`, mirror.over_rpo) : null,
  );
}

function images(mirror) {
  const { keep } = mirror;
  const kept = Object.entries(keep).filter(([, many]) => many > 0).map(([unit, many]) => `${unit} ${many}`);
  return facts([
    ["Newest", mirror.image_ms ? `image ${mirror.image_number}, made ${stamp(mirror.image_ms)}` : "none yet"],
    ["In the bucket", count(mirror.images, "image")],
    ["Objects of the newest", size(mirror.stored_bytes)],
    ["Kept", kept.join(", ") || "the newest only"],
    ["Claim", mirror.epoch > 0 ? `epoch ${mirror.epoch}` : "none"],
    ["Restore one", withCommands(`\`cairn mirror images ${mirror.name}\``)],
    ["Open elsewhere", withCommands(`\`cairn volume open ${mirror.name}\``)],
  ]);
}

function transfers(mirror) {
  const { last } = mirror;
  const row = last && {
    key: "last",
    cells: [
      last.up_to_date ? "nothing had changed" : "done",
      stamp(last.started_ms),
      duration(last.duration_ms),
      String(last.regions),
      size(last.sent_bytes),
    ],
  };
  const columns = ["Last", "Began", ["Took", "n"], ["Regions", "n"], ["Sent", "n"]];
  return h(
    "div",
    {},
    table("The last update", columns, row ? [row] : [], "no update has run"),
    facts([
      ["Next image", next(mirror)],
      ["All updates", `${mirror.updates.toLocaleString("en")}, ${size(mirror.sent_bytes)} sent`],
      ["Last failure", mirror.problem ? mirror.problem.message : null],
    ]),
  );
}

function settings(mirror) {
  const when = mirror.cron ? `${mirror.cron} ${mirror.zone ?? "UTC"}` : mirror.every_ms ? `every ${interval(mirror.every_ms)}` : "on request";
  return facts([
    ["Bucket", mirror.bucket],
    ["Schedule", when],
    ["RPO", mirror.rpo_ms ? interval(mirror.rpo_ms) : "none"],
    ["Rate limit", mirror.limit ? `${mirror.limit}${mirror.limit_now_bytes ? `, now ${size(mirror.limit_now_bytes)}/s` : ""}` : "none"],
    ["Change it", withCommands(`\`cairn mirror set ${mirror.name} --rpo 15m\``)],
  ]);
}

function proof(mirror) {
  const { verified } = mirror;
  return facts([
    ["Verified", verified
      ? `${ago(verified.started_ms)}: ${size(verified.read_bytes)} read, ${count(verified.damaged_total, "damaged object")}`
      : withCommands(`never; \`cairn mirror verify ${mirror.name}\``)],
    ["To be replaced", mirror.repairs > 0 ? count(mirror.repairs, "damaged object") : null],
  ]);
}

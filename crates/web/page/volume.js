// A volume, or an adopted device, with its time line.

import { get, post, segment } from "./api.js";
import { actionButton } from "./dialog.js";
import { bar, command, facts, h, say, section, table } from "./dom.js";
import { askFrees, picked, setMark, takeSnapshot, views } from "./instant.js";
import { TimeLine } from "./line.js";
import { filesHref } from "./paths.js";
import { ago, count, duration, interval, plain, size, stamp } from "./words.js";

/// Rows of the list of snapshots at first, and more of them at each press.
const ROWS = 50;

/// Runs of a schedule that the line shows.
const RUNS = 60;

/// Times for which runs of a cron expression are asked for, and how long the answer is used.
const RUN_TIMES = [3_600_000, 2 * 86_400_000, 62 * 86_400_000];
const RUNS_FRESH = 600_000;

/// The lists are asked for that often even when no number tells of a change.
const REFRESH = 20_000;

export class VolumeView {
  constructor(app, name, isDevice) {
    this.app = app;
    this.name = name;
    this.isDevice = isDevice;
    this.data = { snapshots: [], marks: [], future: [], window: null, image: null };
    this.snapshots = [];
    this.luns = [];
    this.schedules = [];
    /// Runs to come of each cron expression, by the server.
    this.runs = new Map();
    this.frees = null;
    this.history = null;
    this.problem = null;
    this.item = null;
    this.rows = ROWS;
    this.range = null;
    this.loaded = 0;
    this.seen = "";
    this.refresh = () => this.load().then(() => this.app.poll());
    this.line = new TimeLine(name, {
      onPick: (item) => {
        this.item = item;
        this.app.draw();
        if (item) say(`Picked ${item.name ?? stamp(item.at)}`);
      },
      onMove: (range) => {
        // With the time the range moves at each look, and the list need not follow that.
        const same = this.range?.shown === range.shown;
        this.range = range;
        if (!same) this.app.draw();
      },
      ready: async () => this.loading,
    });
  }

  get title() {
    return this.name;
  }

  stop() {
    this.line.gone = true;
  }

  /// What the status says of it.
  get volume() {
    return this.app.status?.volumes.find((volume) => volume.name === this.name) ?? null;
  }

  get device() {
    return this.app.status?.devices.find((device) => device.name === this.name) ?? null;
  }

  get mirror() {
    return this.app.status?.mirrors.find((mirror) => mirror.name === this.name) ?? null;
  }

  /// How many clients have something of it open.
  sessions() {
    const own = (this.app.status?.exports ?? []).filter((one) => one.name === this.name || one.name.startsWith(`${this.name}/`));
    return own.reduce((sum, one) => sum + one.sessions.length, 0);
  }

  /// A new status has come: the lists are asked for when it tells of a change.
  update() {
    const { volume, mirror } = this;
    const seen = JSON.stringify([volume?.snapshots, volume?.luns, volume?.history, volume?.role, mirror?.image]);
    if (seen !== this.seen || Date.now() - this.loaded > REFRESH) {
      this.seen = seen;
      this.load();
    }
  }

  async load() {
    if (this.loading) {
      this.again = true;
      return this.loading;
    }
    this.loaded = Date.now();
    this.loading = this.ask().finally(() => {
      this.loading = null;
      if (this.again) {
        this.again = false;
        this.load();
      }
    });
    return this.loading;
  }

  async ask() {
    const path = `/v1/volumes/${segment(this.name)}`;
    const { volume, device } = this;
    const isOpen = volume && volume.role !== "unavailable";
    const has = (volume?.history ?? device?.history) ?? null;
    // Each list is shown when it comes: none waits for another one, whose disk may hang.
    const asked = [
      isOpen && get(`${path}/snapshots`).then((snapshots) => { this.snapshots = snapshots; }),
      isOpen && get(`${path}/luns`).then((luns) => { this.luns = luns; }),
      isOpen && get(`${path}/schedules`).then((schedules) => { this.schedules = schedules; }),
      has && get(`/v1/devices/${segment(this.name)}`).then((history) => { this.history = history; }),
    ];
    if (!has) this.history = null;
    const shown = asked.map((one) => Promise.resolve(one).then(() => this.arrange()));
    const failed = (await Promise.allSettled(shown)).find((answer) => answer.status === "rejected");
    this.problem = failed ? failed.reason : null;
    this.app.draw();
  }

  /// Puts what has come on the line.
  arrange() {
    const image = this.mirror?.image ?? null;
    const lead = this.name.length + 1;
    const shown = this.snapshots.map((snapshot) => ({
      at: snapshot.created_ms,
      name: snapshot.name.slice(lead),
      held: snapshot.held,
      generation: snapshot.generation,
      current: image !== null && snapshot.name.slice(lead) === image.slice(image.indexOf("@") + 1),
    }));
    shown.sort((one, other) => one.at - other.at || one.generation - other.generation);
    this.data = {
      snapshots: shown,
      marks: (this.history?.marks ?? []).map((mark) => ({ at: mark.at_ns / 1e6, name: mark.name, consistent: mark.consistent })),
      window: this.history ? { start: this.history.start_ns / 1e6 } : null,
      image,
      future: this.future(),
    };
    this.line.set(this.data);
    this.item = this.line.picked;
    this.app.draw();
  }

  /// Runs of schedules and updates that are to come.
  future() {
    const runs = [];
    const add = (label, next, every) => {
      if (!next) return;
      for (let run = 0; run < (every ? RUNS : 1); run += 1) runs.push({ at: next + run * (every ?? 0), name: label });
    };
    const addCron = (label, { cron, zone, next_ms: next }) => {
      const known = this.runs.get(`${cron} ${zone}`)?.times.filter((at) => at > Date.now()) ?? [];
      if (known.length > 0) runs.push(...known.map((at) => ({ at, name: label })));
      else add(label, next, null);
      if (next) this.askRuns(cron, zone);
    };
    for (const schedule of this.schedules) {
      if (schedule.cron) addCron(schedule.label, schedule);
      else add(schedule.label, schedule.next_ms, schedule.every_ms);
    }
    if (this.mirror && !this.mirror.paused) {
      if (this.mirror.cron) addCron("update", this.mirror);
      else add("update", this.mirror.next_ms, this.mirror.every_ms);
    }
    return runs.sort((one, other) => one.at - other.at);
  }

  /// Asks the server when a cron expression is due, for longer and longer times until the answer has
  /// enough runs.
  async askRuns(cron, zone) {
    const key = `${cron} ${zone}`;
    const known = this.runs.get(key);
    if (known && Date.now() - known.asked < RUNS_FRESH) return;
    const found = { asked: Date.now(), times: known?.times ?? [] };
    this.runs.set(key, found);
    try {
      for (const time of RUN_TIMES) {
        const answer = await post("/v1/schedules/simulate", { schedule: { cron, zone }, for_ms: time });
        found.times = answer.kept_ms.slice(0, RUNS);
        if (found.times.length >= RUNS / 3) break;
      }
      this.arrange();
    } catch {
      // The line has the next run all the same.
    }
  }

  /// The space that a deletion of a snapshot would free; none until the server has answered.
  freesOf(name) {
    const key = `${name} ${this.snapshots.length}`;
    if (this.frees?.key !== key || Date.now() - this.frees.asked > REFRESH) {
      const last = this.frees?.key === key ? this.frees.found : null;
      const frees = { key, asked: Date.now(), found: last };
      this.frees = frees;
      askFrees(this.name, name).then((found) => {
        frees.found = found;
        this.app.draw();
      }, () => {});
    }
    return this.frees.found;
  }

  /// The line is put into its place once, and draws itself from then on.
  attach(main) {
    const place = main.querySelector(".line-place");
    if (place && !place.firstChild) place.append(this.line.element);
    this.line.draw();
  }

  render() {
    const { volume, device, mirror, name } = this;
    if (!this.app.status) return [];
    if (!volume && !device) {
      return [h("h1", {}, name), h("p", { class: "note bad" }, `There is no volume or device ${name}. `, h("a", { href: "#/" }, "All volumes"))];
    }
    const problem = volume?.problem ?? device?.problem;
    const canSnapshot = volume?.role === "normal";
    return [
      h("h1", { "data-key": "title" }, name, " ", h("span", { class: "tag" }, volume ? roleOf(volume, mirror) : "adopted device")),
      problem && h("p", { class: "note bad", "data-key": "problem" }, problem),
      this.problem && h("p", { class: "note bad", "data-key": "lists" }, `The lists are not up to date: ${this.problem.message}`),
      volume ? this.volumeFacts(volume) : deviceFacts(device),
      h(
        "p",
        { class: "buttons", "data-key": "actions" },
        canSnapshot && actionButton("Take a snapshot …", () => takeSnapshot(this), { needs: "POST /v1/volumes/{volume}/snapshots" }),
        this.history && !mirror && actionButton("Mark this instant …", () => setMark(this), { needs: "POST /v1/devices/{device}/marks" }),
        volume && volume.role !== "unavailable" && h("a", { class: "button", href: filesHref(name, null) }, "Files"),
        (mirror || this.isMirrored()) && h("a", { class: "button", href: `#/mirror/${encodeURIComponent(name)}` }, mirror ? "Mirror" : "Mirrors"),
        (volume || device) && this.history && h("a", { class: "button", href: `#/history/${encodeURIComponent(name)}` }, "History"),
        volume && !mirror && !this.isMirrored() && h("a", { class: "button", href: `#/mirror/${encodeURIComponent(name)}` }, "Price of a lag"),
      ),
      h(
        "section",
        { "data-key": "line", "aria-labelledby": "line-title" },
        h("h2", { id: "line-title" }, "Time line"),
        h("div", { class: "line-place", "data-kept": `line-${name}`, "data-key": "line-place" }),
        this.data.future.length > 0 && h("p", { class: "hint", "data-key": "coming" }, comingWords(this.data.future)),
      ),
      h("div", { class: "beside", "data-key": "beside" }, picked(this, this.item), this.list()),
      views(this),
      this.mirrors(),
      this.luns.length > 0 && this.lunTable(),
      volume && (canSnapshot || this.schedules.length > 0) && this.scheduleTable(),
    ];
  }

  volumeFacts(volume) {
    const { history } = this;
    const host = volume.host;
    return facts([
      ["Space", [bar(volume.used_bytes, volume.size_bytes, `${size(volume.used_bytes)} of ${size(volume.size_bytes)} used`), ` ${size(volume.used_bytes)} of ${size(volume.size_bytes)}, ${size(volume.free_bytes)} free`]],
      ["File system", host && `${size(host.free_bytes)} free of ${size(host.size_bytes)} at ${host.path}`],
      ["Snapshots", volume.snapshots.toLocaleString("en")],
      ["Clone of", volume.clone_of],
      ["History", history && `since ${stamp(history.start_ns / 1e6)}, ${plain(history.placement)}, ${history.granularity}; ${size(history.used_bytes)} of ${size(history.store_bytes)}`],
      ["Damaged blocks", volume.scrub?.damaged.length || null],
    ]);
  }

  /// The snapshots and marks that the line shows, as a list.
  list() {
    const all = this.line.items;
    const range = this.range ?? { start: 0, end: Infinity };
    const inside = all.filter((item) => item.at >= range.start && item.at <= range.end).reverse();
    const shown = inside.slice(0, this.rows);
    const pick = (item) => () => this.line.pick(item);
    const rows = shown.map((item) => ({
      key: `${item.kind}-${item.name}`,
      current: this.item?.kind === item.kind && this.item?.name === item.name,
      cells: [
        h("button", { type: "button", class: "link", onclick: pick(item), "aria-pressed": String(this.item?.name === item.name && this.item?.kind === item.kind) }, item.name),
        item.kind === "mark" ? "mark" : item.current ? "shown image" : item.name.startsWith("mirror.") ? "mirror base" : item.held ? "held" : "",
        stamp(item.at),
        ago(item.at),
      ],
    }));
    const more = inside.length - shown.length;
    return h(
      "section",
      { "data-key": "list", "aria-labelledby": "list-title", class: "list" },
      h("h2", { id: "list-title" }, `In this range: ${count(inside.length, "instant")}`),
      table("Snapshots and marks in the range of the time line", ["Name", "", "Taken", ["Age", "n"]], rows, "nothing in this range"),
      more > 0 && h("p", {}, h("button", { type: "button", onclick: () => { this.rows += ROWS; this.app.draw(); } }, `Show ${Math.min(more, ROWS)} more of ${more}`)),
    );
  }

  isMirrored() {
    return (this.app.status?.followers ?? []).some((follower) => follower.volume === this.name);
  }

  mirrors() {
    const own = (this.app.status?.followers ?? []).filter((follower) => follower.volume === this.name);
    return own.length > 0 && section("Mirrored by", followerTable(own));
  }

  lunTable() {
    const exported = new Map((this.app.status?.exports ?? []).map((one) => [one.name, one]));
    const rows = this.luns.map((lun) => ({
      key: lun.name,
      cells: [lun.name, size(lun.size_bytes), String(exported.get(lun.name)?.sessions.length ?? 0), lun.uris.slice(0, 1).map(command)],
    }));
    return section("LUNs", table("LUNs of the volume", ["Name", ["Size", "n"], ["Sessions", "n"], "URI"], rows));
  }

  scheduleTable() {
    const rows = this.schedules.map((schedule) => ({
      key: schedule.label,
      cells: [
        schedule.label,
        schedule.cron ? `${schedule.cron} ${schedule.zone}` : `every ${interval(schedule.every_ms)}`,
        schedule.next_ms ? ago(schedule.next_ms) : "-",
        schedule.last_ms ? ago(schedule.last_ms) : "-",
        keepWords(schedule.keep),
        schedule.problem ?? "",
      ],
    }));
    const none = `none; \`cairn snapshot schedule set ${this.name} daily --cron '0 3 * * *'\``;
    const empty = h("p", { class: "empty" }, "none; set one with ", command(none.split("`")[1]));
    return section("Schedules", rows.length > 0
      ? table("Schedules of snapshots", ["Label", "Runs", "Next", "Last", "Keeps", "Problem"], rows)
      : empty);
  }
}

/// The runs to come that the line shows, in words.
function comingWords(future) {
  const [next] = future;
  const last = future[future.length - 1];
  return `To come: ${count(future.length, "run")} until ${stamp(last.at)}; the next is ${next.name}, ${ago(next.at)}.`;
}

function deviceFacts(device) {
  return facts([
    ["Size", size(device.size_bytes)],
    ["Origin", device.origin],
    ["History", device.history ?? "none"],
    ["URI", device.uris.slice(0, 1).map(command)],
  ]);
}

function roleOf(volume, mirror) {
  if (volume.role === "unavailable") return "not open";
  if (volume.role === "destination") return mirror ? `mirror of ${mirror.source_volume}` : "mirror";
  return volume.clone_of ? "clone" : "takes writes";
}

function keepWords(keep) {
  const parts = Object.entries(keep).filter(([, number]) => number > 0).map(([rule, number]) => `${number} ${rule}`);
  return parts.length > 0 ? parts.join(", ") : "all";
}

/// The mirrors of volumes here, as this side knows them.
export function followerTable(followers) {
  const rows = followers.map((follower) => ({
    key: `${follower.volume}-${follower.name}`,
    cells: [
      follower.volume,
      follower.name.slice(0, 16),
      follower.departed ? "failed over" : follower.transferring ? "transferring" : follower.over_rpo ? "behind" : "idle",
      follower.lag_ms === 0 ? "0" : duration(follower.lag_ms),
      interval(follower.rpo_ms),
      size(follower.lag_bytes),
      follower.heard_ms ? ago(follower.heard_ms) : "-",
    ],
  }));
  return table("Mirrors of volumes here", ["Volume", "Mirror", "State", ["Lag", "n"], ["RPO", "n"], ["Changes", "n"], ["Heard", "n"]], rows);
}

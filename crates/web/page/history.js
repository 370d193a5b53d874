// The history of a volume or a device: its setting, its cost as measured, and what another setting
// would cost.

import { call, get, segment } from "./api.js";
import { actionButton } from "./dialog.js";
import { bar, command, facts, h, section, table } from "./dom.js";
import { plot } from "./plot.js";
import { Plan, sentence } from "./price.js";
import { count, duration, interval, plain, size, stamp } from "./words.js";

const REFRESH = 5000;

export class HistoryView {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.history = null;
    this.problem = null;
    this.asked = 0;
    this.plan = new Plan(app, name);
    this.refresh = () => {
      this.asked = 0;
      this.update();
    };
  }

  get title() {
    return `History of ${this.name}`;
  }

  stop() {}

  attach() {}

  async update() {
    this.plan.update();
    if (Date.now() - this.asked < REFRESH) return;
    this.asked = Date.now();
    try {
      this.history = await get(`/v1/devices/${segment(this.name)}`);
      this.problem = null;
    } catch (error) {
      this.problem = error;
    }
    this.app.draw();
  }

  render() {
    const { status } = this.app;
    if (!status) return [];
    const { history, name } = this;
    const isVolume = status.volumes.some((volume) => volume.name === name);
    return [
      h("h1", { "data-key": "title" }, `History of ${name}`),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, `${sentence(this.problem.message)}. Next: ${this.problem.next}.`),
      h(
        "p",
        { class: "buttons", "data-key": "actions" },
        h("a", { class: "button", href: `#/${isVolume ? "volume" : "device"}/${encodeURIComponent(name)}` }, "Time line"),
        history && actionButton("Change the window …", () => this.changeWindow(), { needs: "PUT /v1/devices/{device}/window" }),
      ),
      history && this.setting(),
      history && this.cost(),
      this.curves(),
      this.windows(),
    ];
  }

  setting() {
    const { history } = this;
    const { window } = history;
    const limits = [
      window.time_ms ? interval(window.time_ms) : null,
      window.bytes ? size(window.bytes) : null,
    ].filter(Boolean);
    const thin = window.thin.map((step) => `after ${interval(step.after_ms)} one instant each ${interval(step.every_ms)}`);
    return section("Setting", facts([
      ["Placement", plain(history.placement)],
      ["Granularity", plain(history.granularity)],
      ["Reaches back to", stamp(history.start_ns / 1e6)],
      ["Window", limits.length > 0 ? limits.join(", ") : "as long as there is room"],
      ["Floor", window.floor_ms ? `${interval(window.floor_ms)}; without room, writes ${window.floor_policy === "fail" ? "fail" : "wait"}` : null],
      ["Thinned", thin.join("; ")],
      ["Reduced", window.reduce && window.reduce !== "none" ? plain(window.reduce) : null],
      ["Block", size(history.block_bytes)],
    ]));
  }

  cost() {
    const { history } = this;
    const used = `${size(history.used_bytes)} of ${size(history.store_bytes)}`;
    const kinds = [
      ["Reads of the origin", history.current_reads],
      ["Writes of the origin", history.current_writes],
      ["Reads of the log", history.history_reads],
      ["Writes of the log", history.history_writes],
      ["Metadata", history.metadata],
    ];
    const rows = kinds.map(([name, io]) => ({
      key: name,
      cells: [
        name,
        io.blocks.toLocaleString("en"),
        io.operations.toLocaleString("en"),
        io.operations > 0 ? `${Math.round((100 * io.sequential) / io.operations)} %` : "-",
        history.written_blocks > 0 ? (io.blocks / history.written_blocks).toFixed(2) : "-",
      ],
    }));
    return section(
      "Cost as measured",
      facts([
        ["I/O for each written block", history.written_blocks > 0 ? history.io_per_write.toFixed(2) : "nothing was written yet"],
        ["Store", [bar(history.used_bytes, history.store_bytes, used), ` ${used}`]],
        ["An hour of history", size(history.bytes_per_hour)],
        ["Index in memory", size(history.index_bytes)],
        ["Versions", history.versions.toLocaleString("en")],
        ["Replaced in memory", history.written_blocks > 0 ? `${Math.round((100 * history.absorbed_blocks) / history.written_blocks)} % of ${count(history.written_blocks, "written block")}` : null],
        ["Stored of the contents", history.content_bytes > history.stored_bytes ? `${size(history.stored_bytes)} of ${size(history.content_bytes)}` : null],
        ["Writes that wait for room", history.waiting || null],
        ["Damaged versions", history.damaged || null],
      ]),
      table("I/O since the device was opened", ["I/O", ["Blocks", "n"], ["Operations", "n"], ["Sequential", "n"], ["For each written block", "n"]], rows),
    );
  }

  /// The cost at each granularity, as curves and as a table.
  curves() {
    const { plan } = this;
    const { live } = plan;
    const trouble = plan.trouble();
    if (!live) return section("What another setting would cost", trouble);
    const grains = live.plan.granularities;
    const named = (grain) => grain.granularity.replaceAll("_", "-");
    const present = grains.findIndex((grain) => named(grain) === this.history?.granularity);
    const line = (name, style, of) => ({ name, style, points: grains.map((grain, at) => [at, of(grain)]) });
    const most = Math.max(...grains.flatMap((grain) => [grain.io, grain.logging_io, grain.none_io]));
    const lines = [
      line("cheapest with a usable origin", "one", (grain) => grain.io),
      line("logging", "two", (grain) => grain.logging_io),
      line("without history", "three", (grain) => grain.none_io),
    ];
    const rows = grains.map((grain, at) => ({
      key: grain.granularity,
      current: at === present,
      cells: [
        plain(named(grain)),
        plain(grain.cheapest),
        grain.io.toFixed(2),
        grain.logging_io.toFixed(2),
        grain.none_io.toFixed(2),
        `${size(Math.round(grain.bytes_per_day))}${grain.beyond_trace ? " *" : ""}`,
      ],
    }));
    const { recommended } = live.plan;
    const columns = ["Granularity", "Cheapest placement", ["I/O a write", "n"], ["Logging", "n"], ["None", "n"], ["Space a day", "n"]];
    return section(
      "What another setting would cost",
      h("p", {}, `Recommended: ${plain(recommended.granularity.replaceAll("_", "-"))}, ${plain(recommended.placement)}. ${sentence(recommended.history_reason)}.`),
      plot({
        lines,
        mark: present >= 0 ? present : null,
        label: "I/O for each written block by granularity. The table has the same numbers.",
        top: `${most.toFixed(2)} blocks of I/O for each written block`,
        ends: [plain(named(grains[0])), plain(named(grains[grains.length - 1]))],
      }),
      table("Cost of each granularity", columns, rows),
      grains.some((grain) => grain.beyond_trace) && h("p", { class: "hint" }, "* The writes were observed for a shorter time than this granularity."),
      plan.basis(),
      h("p", {}, "Command: ", command(`cairn plan ${this.name} --link ${plan.link}`)),
    );
  }

  /// The space of each window.
  windows() {
    const windows = this.plan.live?.plan.windows ?? [];
    const labels = [...new Set(windows.flatMap((window) => Object.keys(window.bytes)))];
    if (labels.length === 0) return null;
    const rows = labels.map((label) => ({
      key: label,
      cells: [plain(label.replaceAll("_", "-")), ...windows.map((window) => (window.bytes[label] === undefined ? "" : size(window.bytes[label])))],
    }));
    return section("Space of a window", table("Space of a store for a window, by granularity", ["Granularity", ...windows.map((window) => [window.window, "n"])], rows));
  }

  changeWindow() {
    const { history, name } = this;
    const hours = history.window.time_ms ? interval(history.window.time_ms) : "";
    return {
      title: `Change the window of ${name}`,
      words: () => ["Older history than this is folded back, and no instant in it can be reached any more.", history.bytes_per_hour > 0 ? `An hour of history takes ${size(history.bytes_per_hour)} at present.` : null],
      fields: [{ name: "time", label: "Keep history of", value: hours, hint: "such as 12h or 7d; empty for as long as there is room" }],
      typed: name,
      line: ({ time }) => `cairn history window ${name} --time ${time || "off"}`,
      verb: "Change it",
      run: async ({ time }) => {
        const ms = time.trim() === "" ? null : lengthOf(time);
        if (time.trim() !== "" && !ms) throw Object.assign(new Error(`${time} is not a length of time`), { next: "write it as 12h or 7d" });
        await call("PUT", `/v1/devices/${segment(name)}/window`, { ...history.window, time_ms: ms });
        return ms ? `${name} keeps ${duration(ms)} of history.` : `${name} keeps history as long as there is room.`;
      },
      after: this.refresh,
    };
  }
}

/// A length of time in milliseconds.
function lengthOf(text) {
  const found = /^(\d+)\s*(s|m|h|d|w)$/.exec(text.trim());
  const units = { s: 1e3, m: 60e3, h: 3600e3, d: 86400e3, w: 7 * 86400e3 };
  return found ? Number(found[1]) * units[found[2]] : null;
}

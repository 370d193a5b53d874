// What a lag and a history would cost, from the writes of the clients: the live plan.

import { get, segment } from "./api.js";
import { command, h, section, table } from "./dom.js";
import { count, duration, interval, size } from "./words.js";

const KEY = "cairn-link";

/// The bandwidth that is assumed at first.
const LINK = "100M";

/// The plan changes slowly.
const REFRESH = 30_000;

/// A plan samples some of the written blocks: of less than this there may be none.
const WRITTEN_MIN = 1 << 20;

/// The shortest lag of the table, in seconds.
const LAG_MIN = 10;

/// Bytes a second, as the command line takes them.
export function bandwidth(text) {
  const found = /^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?(?:\/s)?$/i.exec(text.trim());
  if (!found) return null;
  return Math.round(Number(found[1]) * 1024 ** " KMGT".indexOf(found[2].toUpperCase() || " ")) || null;
}

/// The plan of a volume or a device, asked for when it is shown.
export class Plan {
  constructor(app, subject) {
    this.app = app;
    this.subject = subject;
    this.link = localStorage.getItem(KEY) ?? LINK;
    this.live = null;
    this.problem = null;
    this.asked = 0;
  }

  /// What clients have written since the server started.
  get written() {
    const own = (this.app.status?.exports ?? []).filter((one) => one.name === this.subject || one.name.startsWith(`${this.subject}/`));
    return own.reduce((sum, one) => sum + one.totals.written_bytes, 0);
  }

  update(force = false) {
    if (this.written < WRITTEN_MIN) return;
    if (!force && Date.now() - this.asked < REFRESH) return;
    this.asked = Date.now();
    this.load();
  }

  async load() {
    const link = bandwidth(this.link);
    if (!link) {
      this.problem = { message: `${this.link} is not a bandwidth`, next: "write bytes a second, such as 100M" };
      this.app.draw();
      return;
    }
    try {
      this.live = await get(`/v1/plans/${segment(this.subject)}?link=${link}`);
      this.problem = null;
    } catch (error) {
      this.live = null;
      this.problem = error;
    }
    this.app.draw();
  }

  /// The field for the bandwidth of the link.
  linkField() {
    const change = (event) => {
      event.preventDefault();
      this.link = document.getElementById("link").value;
      localStorage.setItem(KEY, this.link);
      this.update(true);
    };
    return h(
      "form",
      { class: "pick", onsubmit: change },
      h("label", { for: "link" }, "Bandwidth of the link, bytes a second"),
      h("span", { "data-kept": "link" }, h("input", { id: "link", class: "short", value: this.link, autocomplete: "off", spellcheck: "false" })),
      h("button", { type: "submit" }, "Calculate"),
    );
  }

  /// How much is known.
  basis() {
    const { live } = this;
    return h("p", { class: "hint" }, `From ${size(live.written_bytes)} that clients wrote in ${duration(live.elapsed_ms)}. One block in ${live.sampled_one_in.toLocaleString("en")} is sampled: ${count(live.sampled_blocks, "block")}.`);
  }

  trouble() {
    const { problem } = this;
    if (this.written < WRITTEN_MIN) return h("p", { class: "empty" }, `Clients have written ${size(this.written)} here since the server started. That is too little for a plan.`);
    if (problem) return h("p", { class: "empty" }, `${sentence(problem.message)}. `, problem.next ? `Next: ${problem.next}.` : null);
    return this.live ? null : h("p", { class: "empty" }, "Asking the server …");
  }

  /// What each lag of a mirror would cost.
  lags(rpoMs) {
    const { live } = this;
    const shown = live && live.plan.lags.filter((lag) => lag.lag_s >= LAG_MIN);
    const rows = (shown ?? []).map((lag) => ({
      key: String(lag.lag_s),
      current: rpoMs === lag.lag_s * 1000,
      cells: [
        interval(Math.round(lag.lag_s * 1000)),
        `${size(Math.round(lag.bytes_per_day))}${lag.beyond_trace ? " *" : ""}`,
        `${lag.pct_of_written.toFixed(0)} %`,
        `${(lag.link_share * 100).toFixed(lag.link_share < 0.1 ? 2 : 0)} %`,
        `${size(lag.peak_bytes)} in ${duration(lag.peak_transfer_s * 1000)}`,
        lag.fits ? h("span", { class: "state good" }, "fits") : h("span", { class: "state bad" }, "too much"),
      ],
    }));
    const columns = ["Lag", ["Sent a day", "n"], ["Of the writes", "n"], ["Of the link", "n"], ["Largest update", "n"], "This link"];
    return section(
      "Price of a lag",
      this.linkField(),
      this.trouble(),
      live && h("p", {}, `${sentence(live.plan.recommended.mirror_reason)}.`),
      live && table("What a mirror with a lag would cost on this link", columns, rows),
      live && shown.some((lag) => lag.beyond_trace) && h("p", { class: "hint" }, "* The writes were observed for a shorter time than this lag."),
      live && this.basis(),
      h("p", {}, "Command: ", command(`cairn plan ${this.subject} --link ${this.link}`)),
    );
  }
}

/// A text of the server at the beginning of a sentence.
export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

// What has happened: problems, jobs, and the audit log where the server has one.

import { accessWords, may } from "./access.js";
import { get } from "./api.js";
import { h, section, table, withCommands } from "./dom.js";
import { count, duration, plain, stamp } from "./words.js";

const REFRESH = 5000;

/// The request for the audit log.
const AUDIT = "GET /v1/audit";

/// Lines of the audit log that are asked for.
const LINES = 1000;

/// Rows of the table at first, and more of them at each press.
const ROWS = 200;

const KINDS = [["", "everything"], ["problem", "problems"], ["job", "jobs"], ["audit", "changes and refusals"]];

export class LogView {
  constructor(app) {
    this.app = app;
    this.audit = [];
    this.hasAudit = may(AUDIT);
    this.kind = "";
    this.text = "";
    this.failedOnly = false;
    this.rows = ROWS;
    this.asked = 0;
  }

  get title() {
    return "Log";
  }

  stop() {}

  attach() {}

  async update() {
    if (Date.now() - this.asked < REFRESH) return;
    this.asked = Date.now();
    if (this.hasAudit) {
      this.audit = await get(`/v1/audit?limit=${LINES}`).catch((error) => {
        this.problem = error;
        return [];
      });
    }
    this.app.draw();
  }

  /// All lines that fit the filter, the newest first.
  lines() {
    const { status, jobs } = this.app;
    const problems = status.problems.map((problem) => ({ kind: "problem", at: Date.now(), what: "problem", subject: problem.subject, outcome: "lasts", text: problem.message, bad: true }));
    const done = jobs.map((job) => ({
      kind: "job",
      at: job.began_ms ?? null,
      what: job.kind,
      subject: job.subject,
      outcome: job.state,
      text: job.error?.message ?? `took ${duration(job.elapsed_ms)}`,
      bad: job.state === "failed",
    }));
    const audit = this.audit.map((line) => ({
      kind: "audit",
      at: line.at_ms,
      what: line.action,
      subject: line.object,
      outcome: plain(String(line.outcome)),
      text: [line.actor, line.role && `(${plain(line.role)})`, line.from && `from ${line.from}`, line.reason].filter(Boolean).join(" "),
      bad: line.outcome !== "done" && line.outcome !== "ok",
    }));
    const text = this.text.toLowerCase();
    const fits = (line) => (!this.kind || line.kind === this.kind)
      && (!this.failedOnly || line.bad)
      && (!text || `${line.what} ${line.subject} ${line.outcome} ${line.text}`.toLowerCase().includes(text));
    return [...problems, ...done, ...audit].filter(fits).sort((one, other) => (other.at ?? 0) - (one.at ?? 0));
  }

  render() {
    if (!this.app.status) return [];
    const lines = this.lines();
    const rows = lines.slice(0, this.rows).map((line, at) => ({
      key: `${line.kind} ${line.at} ${line.subject} ${line.what} ${at}`,
      cells: [line.kind === "problem" ? "now" : line.at ? stamp(line.at) : "-", line.what, line.subject, h("span", { class: line.bad ? "state bad" : null }, line.outcome), line.text],
    }));
    const more = lines.length - rows.length;
    const changed = (change) => (event) => {
      change(event.currentTarget);
      this.rows = ROWS;
      this.app.draw();
    };
    const kinds = KINDS.filter(([kind]) => kind !== "audit" || this.hasAudit);
    return [
      h("h1", { "data-key": "title" }, "Log"),
      h(
        "div",
        { class: "pick", role: "group", "aria-label": "Filter", "data-key": "filter" },
        h("label", { for: "kind" }, "Show"),
        h("span", { "data-kept": `kind ${kinds.length}`, "data-key": "kind" }, h("select", { id: "kind", onchange: changed((field) => { this.kind = field.value; }) }, kinds.map(([kind, words]) => h("option", { value: kind }, words)))),
        h("label", { for: "text" }, "with the text"),
        h("span", { "data-kept": "text", "data-key": "text" }, h("input", { id: "text", type: "search", class: "short", autocomplete: "off", oninput: changed((field) => { this.text = field.value; }) })),
        h("span", { class: "check", "data-kept": "failed", "data-key": "failed" }, h("input", { id: "failed", type: "checkbox", onchange: changed((field) => { this.failedOnly = field.checked; }) }), h("label", { for: "failed" }, "failures only")),
      ),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, `${this.problem.message}.`),
      section(
        count(lines.length, "line"),
        h("div", { class: "log" }, table("Events, the newest first", ["Time", "Event", "Of", "Outcome", "Details"], rows, "nothing fits")),
        more > 0 && h("p", {}, h("button", { type: "button", onclick: () => { this.rows += ROWS; this.app.draw(); } }, `Show ${Math.min(more, ROWS)} more of ${more}`)),
      ),
      h("p", { class: "hint", "data-key": "note" }, withCommands(`${may(AUDIT) ? "" : `The audit log is for administrators, and you are ${accessWords()}. `}Jobs are kept until the server ends: the last 256. The log of the server has more: \`journalctl -u cairn\`.`)),
    ];
  }
}

// All of the server on one page, what is wrong first.

import { call } from "./api.js";
import { bucketHref, bucketMirrorTable } from "./bucket.js";
import { actionButton } from "./dialog.js";
import { bar, h, section, table, withCommands } from "./dom.js";
import { filesHref } from "./paths.js";
import { followerTable } from "./volume.js";
import { ago, count, duration, interval, latency, plain, rate, size } from "./words.js";

/// Jobs that are over and are still shown.
const OVER_SHOWN = 6;

const link = (kind, name) => h("a", { href: `#/${kind}/${encodeURIComponent(name)}` }, name);

export class Overview {
  constructor(app) {
    this.app = app;
  }

  get title() {
    return "Overview";
  }

  stop() {}

  update() {}

  attach() {}

  render() {
    const { status, jobs } = this.app;
    if (!status) return [];
    const { volumes, devices, mirrors, followers, bucket_mirrors: inBuckets } = status;
    return [
      h("h1", { class: "unseen", "data-key": "title" }, "Overview"),
      verdict(status),
      section("Volumes", volumeTable(volumes)),
      devices.length > 0 && section("Adopted devices", deviceTable(devices)),
      mirrors.length > 0 && section("Mirrors", mirrorTable(mirrors)),
      inBuckets.length > 0 && section("Mirrors in buckets", bucketMirrorTable(inBuckets)),
      followers.length > 0 && section("Mirrored by", followerTable(followers)),
      section("Clients", clientTable(status.exports)),
      section("Jobs", jobTable(jobs, this.app)),
    ];
  }
}

/// One line: all is well, or what is wrong.
function verdict(status) {
  const { problems } = status;
  const { length } = problems;
  if (length === 0) {
    return h("p", { class: "verdict good", "data-key": "verdict" }, h("span", { "aria-hidden": "true", class: "sign" }, "✓"), " All is well");
  }
  return h(
    "section",
    { class: "verdict bad", "data-key": "verdict", "aria-labelledby": "verdict" },
    h("h2", { id: "verdict" }, h("span", { "aria-hidden": "true", class: "sign" }, "!"), ` ${count(length, "problem")}`),
    h("ul", {}, problems.map((problem) => h(
      "li",
      { "data-key": `${problem.subject} ${problem.message}` },
      h("p", {}, h("strong", {}, subject(status, problem.subject)), `: ${problem.message}`),
      h("p", { class: "next" }, "Next: ", withCommands(problem.next)),
    ))),
  );
}

/// What a problem concerns, as a link where there is a view of it.
function subject(status, name) {
  const has = (list) => list.some((one) => one.name === name);
  if (has(status.mirrors)) return link("mirror", name);
  if (has(status.bucket_mirrors)) return h("a", { href: bucketHref(name) }, name);
  if (has(status.volumes)) return link("volume", name);
  return has(status.devices) ? link("device", name) : name;
}

function volumeTable(volumes) {
  const rows = volumes.map((volume) => {
    const { used_bytes: used, size_bytes: whole, host } = volume;
    const tight = whole > 0 && volume.free_bytes < whole / 20;
    const tightHost = host && host.free_bytes < host.unwritten_bytes;
    const text = `${size(used)} of ${size(whole)} used`;
    return {
      key: volume.name,
      cells: [
        link("volume", volume.name),
        volume.role === "normal" ? "takes writes" : volume.role === "destination" ? "mirror" : "not open",
        [bar(used, whole, text, tight), ` ${whole ? Math.round((100 * used) / whole) : 0} %`],
        size(used),
        size(volume.free_bytes),
        host ? h("span", { class: tightHost ? "warned" : null }, size(host.free_bytes)) : "-",
        String(volume.luns),
        volume.snapshots.toLocaleString("en"),
        volume.history ? h("a", { href: `#/history/${encodeURIComponent(volume.name)}`, "aria-label": `History of ${volume.name}` }, "yes") : "",
        volume.role === "unavailable" ? "" : h("a", { href: filesHref(volume.name, null), "aria-label": `Files of ${volume.name}` }, "Files"),
      ],
    };
  });
  const columns = ["Name", "Role", "Space", ["Used", "n"], ["Free", "n"], ["Disk free", "n"], ["LUNs", "n"], ["Snapshots", "n"], "History", "Files"];
  return table("Volumes", columns, rows, "none; make one with: cairn volume create vol0 --size 100G");
}

function deviceTable(devices) {
  const rows = devices.map((device) => ({
    key: device.name,
    cells: [link("device", device.name), size(device.size_bytes), device.origin, device.history ?? "none"],
  }));
  return table("Adopted devices", ["Name", ["Size", "n"], "Origin", "History"], rows);
}

/// How a mirror is, as a class for its colour.
export function toneOf(mirror) {
  return ["good", "warn", "bad"][mirror.check] ?? "bad";
}

function mirrorTable(mirrors) {
  const rows = mirrors.map((mirror) => ({
    key: mirror.name,
    cells: [
      link("mirror", mirror.name),
      h("span", { class: `state ${toneOf(mirror)}` }, plain(mirror.state)),
      `${mirror.source_volume} at ${mirror.source_address}`,
      duration(mirror.lag_ms),
      interval(mirror.rpo_ms),
      duration(mirror.image_age_ms),
      mirror.continuous ? "continuous" : mirror.paused ? "paused" : mirror.next_ms ? ago(mirror.next_ms) : "on request",
      mirror.last ? size(mirror.last.sent_bytes) : "-",
    ],
  }));
  const columns = ["Name", "State", "Source", ["Lag", "n"], ["RPO", "n"], ["Image age", "n"], "Next update", ["Last sent", "n"]];
  return table("Mirrors", columns, rows);
}

function clientTable(exports) {
  const rows = exports.flatMap((one) => one.sessions.map((session) => {
    const { read, write } = session.activity;
    const both = (of) => `${latency(of.p50_us)} / ${latency(of.p99_us)}`;
    return {
      key: `${one.name} ${session.id}`,
      cells: [
        one.name,
        session.initiator ? `iSCSI ${session.initiator}` : `NBD ${session.peer}`,
        rate(read.per_second),
        `${size(read.bytes_per_second)}/s`,
        both(read),
        rate(write.per_second),
        `${size(write.bytes_per_second)}/s`,
        both(write),
      ],
    };
  }));
  const columns = ["Export", "Client", ["Reads/s", "n"], ["Read", "n"], ["p50 / p99", "n"], ["Writes/s", "n"], ["Written", "n"], ["p50 / p99", "n"]];
  return table("Clients", columns, rows, "no client is connected");
}

/// The jobs that run, and the last that are over.
export function jobTable(jobs, app, subject = null) {
  const own = (jobs ?? []).filter((job) => subject === null || job.subject === subject);
  const running = own.filter((job) => job.state === "running");
  const over = own.filter((job) => job.state !== "running").slice(0, OVER_SHOWN);
  const rows = [...running, ...over].map((job) => {
    const runs = job.state === "running";
    const share = job.total_bytes > 0 ? `${Math.floor((100 * job.done_bytes) / job.total_bytes)} %` : size(job.done_bytes);
    return {
      key: job.id,
      cells: [
        `${job.kind} of ${job.subject}`,
        runs ? job.phase || "running" : job.state === "failed" ? h("span", { class: "state bad" }, "failed") : "done",
        runs ? [bar(job.done_bytes, job.total_bytes, `${job.kind} of ${job.subject}: ${share}`), ` ${share}`] : job.error ? job.error.message : "",
        runs ? `${size(job.rate)}/s` : "",
        runs && job.seconds_left !== null ? duration(job.seconds_left * 1000) : duration(job.elapsed_ms),
        runs ? actionButton("Cancel …", () => cancelJob(job, app), { needs: "DELETE /v1/jobs/{job}" }) : "",
      ],
    };
  });
  return table("Jobs", ["Job", "State", "Progress", ["Rate", "n"], ["Left or took", "n"], ""], rows, "none runs");
}

function cancelJob(job, app) {
  const ends = job.kind.startsWith("mirror ") && job.kind !== "mirror verify" && job.kind !== "mirror drill";
  return {
    title: `Cancel ${job.kind} of ${job.subject}`,
    words: () => [ends
      ? "The transfer ends at its next record. What it brought is there for the next one."
      : "The job ends, and has failed then. It can be run again."],
    line: () => (ends ? `cairn mirror abort ${job.subject}` : `curl -X DELETE --unix-socket DIR/control.sock http://cairn/v1/jobs/${job.id}`),
    verb: "Cancel the job",
    run: async () => {
      await call("DELETE", `/v1/jobs/${encodeURIComponent(job.id)}`);
      return "The job was asked to end.";
    },
    after: () => app.poll(),
  };
}

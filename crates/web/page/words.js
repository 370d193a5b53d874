// Numbers and times for people, as the command line writes them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Bytes.
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "-";
  let at = 0;
  let value = bytes;
  while (value >= 1024 && at < UNITS.length - 1) {
    value /= 1024;
    at += 1;
  }
  return at === 0 ? `${value} B` : `${value.toFixed(1)} ${UNITS[at]}`;
}

/// A length of time, to two digits or so.
export function duration(ms) {
  if (ms === null || ms === undefined) return "-";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 120e3) return `${(ms / 1e3).toFixed(1)} s`;
  if (ms < 7200e3) return `${Math.floor(ms / 60e3)} min`;
  if (ms < 172800e3) return `${Math.floor(ms / 3600e3)} h`;
  return `${Math.floor(ms / 86400e3)} d`;
}

/// A length of time that was set, exactly: `90m`, `1h`.
export function interval(ms) {
  if (!ms) return "-";
  const units = [["d", 86400e3], ["h", 3600e3], ["m", 60e3], ["s", 1e3]];
  const [unit, length] = units.find(([, each]) => ms % each === 0) ?? ["ms", 1];
  return `${ms / length}${unit}`;
}

/// How long ago, or how soon.
export function ago(ms) {
  if (ms === null || ms === undefined) return "-";
  const since = Date.now() - ms;
  return since < 0 ? `in ${whole(-since)}` : `${whole(since)} ago`;
}

/// Without parts of a second, which would change at each look.
function whole(ms) {
  return ms < 120e3 ? `${Math.floor(ms / 1e3)} s` : duration(ms);
}

/// Microseconds.
export function latency(us) {
  if (us === null || us === undefined) return "-";
  if (us < 10) return `${us.toFixed(1)} us`;
  if (us < 1e3) return `${us.toFixed(0)} us`;
  if (us < 1e5) return `${(us / 1e3).toFixed(1)} ms`;
  return us < 1e6 ? `${(us / 1e3).toFixed(0)} ms` : `${(us / 1e6).toFixed(1)} s`;
}

/// Requests a second.
export function rate(value) {
  return value < 10 ? value.toFixed(1) : value.toFixed(0);
}

const two = (number) => String(number).padStart(2, "0");

/// Local date and time to the second.
export function stamp(ms) {
  const at = new Date(ms);
  return `${date(at)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/// Local date.
export function date(at) {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

/// Local time of day.
export function time(at, seconds) {
  return `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? `:${two(at.getSeconds())}` : ""}`;
}

/// An instant as commands take it on every machine: UTC.
export function utc(ms) {
  return new Date(ms).toISOString().replace(/\.000Z$/, "Z").replace("T", " ");
}

/// A state or a kind of the API: `failed-over` is `failed over`.
export function plain(word) {
  return word ? word.replaceAll("-", " ") : "-";
}

/// A number with its noun.
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

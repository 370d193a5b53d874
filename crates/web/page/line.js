// The time line of a volume: snapshots, marks, the window of history, the image of a mirror and
// what is to come, on a canvas. It is a slider for the keyboard and for screen readers. Times are
// milliseconds since 1970.

import { h } from "./dom.js";
import { ago, count, date, stamp, time } from "./words.js";

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/// The shortest and the longest time that the line shows.
const SPAN_MIN = 10 * SECOND;
const SPAN_MAX = 40 * 365 * DAY;

const LANE = 38;
const AXIS = 26;
const TOP = 6;

/// How near a pointer has to be to something, in pixels.
const NEAR = 9;

const STEPS = [
  SECOND, 5 * SECOND, 15 * SECOND, 30 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR,
  6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY,
];

const HELP = "Left and right arrow: previous and next snapshot or mark. With Shift: earlier and later instant. "
  + "Plus and minus: zoom. Page up and page down: move by a screen. Home and End: first and last. 0: everything.";

export class TimeLine {
  /// `onPick` takes { kind, at, name } when something is picked, and `onMove` takes the range that
  /// is shown, and which items are in it. `ready` waits for lists that are on their way.
  constructor(name, { onPick, onMove, ready }) {
    this.name = name;
    this.onPick = onPick;
    this.onMove = onMove ?? (() => {});
    this.ready = ready ?? (async () => {});
    this.data = { snapshots: [], marks: [], future: [], window: null, image: null };
    this.items = [];
    this.picked = null;
    this.follows = true;
    this.moved = false;
    this.span = DAY;
    this.end = Date.now() + DAY / 10;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.slider = h(
      "div",
      { class: "line-slider", role: "slider", tabindex: "0", "aria-label": `Time line of ${name}`, "aria-describedby": "line-help" },
      this.canvas,
    );
    const zoom = (label, text, act) => h("button", { type: "button", "aria-label": label, onclick: act }, text);
    this.range = h("span", { class: "line-range" });
    this.goal = h("input", { id: "line-goal", class: "short", autocomplete: "off", spellcheck: "false", placeholder: "14:03", "aria-describedby": "line-goal-help" });
    this.goalHelp = h("span", { class: "hint", id: "line-goal-help", role: "status" }, "a time, or a date and a time");
    const go = (event) => {
      event.preventDefault();
      this.goTo(this.goal.value);
    };
    this.element = h(
      "div",
      { class: "line" },
      h(
        "div",
        { class: "line-tools", role: "group", "aria-label": "Zoom of the time line" },
        zoom("Zoom in", "+", () => this.zoom(0.5)),
        zoom("Zoom out", "−", () => this.zoom(2)),
        zoom("Earlier", "‹", () => this.pan(-0.5)),
        zoom("Later", "›", () => this.pan(0.5)),
        zoom("Last hour", "Hour", () => this.last(HOUR)),
        zoom("Last day", "Day", () => this.last(DAY)),
        zoom("Last month", "Month", () => this.last(31 * DAY)),
        zoom("Everything", "All", () => this.all()),
        this.range,
      ),
      h("form", { class: "pick", onsubmit: go }, h("label", { for: "line-goal" }, "Go to"), this.goal, h("button", { type: "submit" }, "Go"), this.goalHelp),
      this.slider,
      h("p", { class: "hint", id: "line-help" }, HELP),
    );
    this.colors = null;
    this.listen();
  }

  /// What there is; drawn at the next frame.
  set(data) {
    this.data = data;
    const all = [
      ...data.snapshots.map((snapshot) => ({ kind: "snapshot", ...snapshot })),
      ...data.marks.map((mark) => ({ kind: "mark", ...mark })),
    ];
    this.items = all.sort((one, other) => one.at - other.at);
    if (this.picked && this.picked.kind !== "instant") {
      const { kind, name } = this.picked;
      this.picked = this.items.find((item) => item.kind === kind && item.name === name) ?? null;
    }
    // Until the user has moved the line, it shows everything.
    if (!this.moved) this.all();
    this.draw();
  }

  /// Where the line begins.
  get start() {
    return this.end - this.span;
  }

  get width() {
    return this.slider.clientWidth || 600;
  }

  x(at) {
    return ((at - this.start) / this.span) * this.width;
  }

  at(x) {
    return this.start + (x / this.width) * this.span;
  }

  /// Shows so much time up to now.
  last(span) {
    this.show(Date.now() - span, Date.now() + span / 10);
    this.follows = true;
  }

  /// Shows all that there is, and some of what is to come.
  all() {
    const now = Date.now();
    const first = Math.min(this.items[0]?.at ?? now - HOUR, this.data.window?.start ?? now, now - MINUTE);
    const margin = (now - first) / 20;
    this.show(first - margin, now + margin * 3);
    this.follows = true;
    this.moved = false;
  }

  show(start, end) {
    this.span = Math.min(SPAN_MAX, Math.max(SPAN_MIN, end - start));
    this.end = (start + end) / 2 + this.span / 2;
    this.follows = false;
    this.moved = true;
    this.draw();
  }

  /// Makes the span so many times as long; what is at `x` stays there.
  zoom(factor, x = this.picked ? this.x(this.picked.at) : this.width / 2) {
    const place = x >= 0 && x <= this.width ? x : this.width / 2;
    const at = this.at(place);
    const span = Math.min(SPAN_MAX, Math.max(SPAN_MIN, this.span * factor));
    const start = at - (place / this.width) * span;
    this.show(start, start + span);
  }

  /// Moves by a part of what is shown.
  pan(part) {
    this.show(this.start + part * this.span, this.end + part * this.span);
  }

  /// Picks something, and shows it.
  pick(item, quietly = false) {
    this.picked = item;
    this.moved = true;
    if (item && (item.at < this.start || item.at > this.end)) {
      this.show(item.at - this.span / 2, item.at + this.span / 2);
    }
    this.draw();
    if (!quietly) this.onPick(item);
  }

  /// The instant as one to pick: within the window of history, to the second or finer.
  instant(at) {
    const reach = this.data.window;
    if (!reach) return null;
    const fine = this.span < MINUTE ? 100 : this.span < 12 * HOUR ? SECOND : MINUTE;
    const rounded = Math.round(at / fine) * fine;
    if (at < reach.start || at > Date.now()) return null;
    return { kind: "instant", at: Math.min(Math.max(rounded, Math.ceil(reach.start)), Date.now()), name: null };
  }

  /// Picks the instant of a local time: in the window of history exactly, otherwise the last
  /// snapshot or mark up to it.
  async goTo(text) {
    const at = localTime(text, Date.now());
    const tell = (words) => { this.goalHelp.textContent = words; };
    if (at === null) {
      tell("write it as 14:03, 14:03:10 or 2026-11-28 14:03");
      return;
    }
    // An instant is not the same as the snapshot before it: the history may still be on its way.
    await this.ready();
    const reach = this.data.window;
    const inside = reach && at >= reach.start && at <= Date.now();
    const before = this.items[first(this.items, at + 1) - 1];
    if (!inside && !before) {
      tell(`nothing is kept of ${stamp(at)}`);
      return;
    }
    tell(inside ? `picked ${stamp(at)}` : `${before.name} is the last before ${stamp(at)}`);
    this.pick(inside ? { kind: "instant", at, name: null } : before);
  }

  listen() {
    const { slider } = this;
    slider.addEventListener("wheel", (event) => {
      event.preventDefault();
      const lines = event.deltaMode === 1 ? 20 : 1;
      const [across, along] = [event.deltaX * lines, event.deltaY * lines];
      if (event.shiftKey || Math.abs(across) > Math.abs(along)) this.pan((across || along) / this.width);
      else this.zoom(Math.exp(along / 300), this.place(event));
    }, { passive: false });
    const pointers = new Map();
    let moved = 0;
    slider.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      slider.setPointerCapture(event.pointerId);
      if (pointers.size === 0) moved = 0;
      pointers.set(event.pointerId, this.place(event));
    });
    slider.addEventListener("pointermove", (event) => {
      const x = this.place(event);
      const before = pointers.get(event.pointerId);
      if (before === undefined) {
        slider.classList.toggle("over", this.near(x) !== null);
        return;
      }
      const [one, other] = [...pointers.values()];
      pointers.set(event.pointerId, x);
      moved += Math.abs(x - before);
      if (pointers.size === 1) {
        if (moved > 4) this.pan((before - x) / this.width);
        return;
      }
      const [now, then] = [...pointers.values()];
      const factor = Math.max(8, Math.abs(one - other)) / Math.max(8, Math.abs(now - then));
      this.zoom(factor, (now + then) / 2);
    });
    const up = (event) => {
      if (!pointers.delete(event.pointerId) || event.type === "pointercancel") return;
      if (moved <= 4 && pointers.size === 0) {
        const x = this.place(event);
        const found = this.near(x) ?? this.instant(this.at(x));
        if (found) this.pick(found);
      }
    };
    slider.addEventListener("pointerup", up);
    slider.addEventListener("pointercancel", up);
    slider.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(slider);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.colors = null;
      this.draw();
    });
  }

  place(event) {
    return event.clientX - this.slider.getBoundingClientRect().left;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.picked?.at ?? Date.now();
    const step = (direction) => {
      if (event.shiftKey && this.data.window) {
        const moved = this.instant(at + (direction * this.span * NEAR) / this.width);
        if (moved) this.pick(moved);
        return;
      }
      const next = this.neighbour(direction);
      if (next) this.pick(next);
    };
    const keys = {
      ArrowLeft: () => step(-1),
      ArrowRight: () => step(1),
      ArrowDown: () => step(-1),
      ArrowUp: () => step(1),
      Home: () => this.items[0] && this.pick(this.items[0]),
      End: () => this.items.length > 0 && this.pick(this.items[this.items.length - 1]),
      PageUp: () => this.pan(-0.9),
      PageDown: () => this.pan(0.9),
      "+": () => this.zoom(0.5),
      "=": () => this.zoom(0.5),
      "-": () => this.zoom(2),
      0: () => this.all(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  /// The item before or after what is picked.
  neighbour(direction) {
    if (!this.picked) return this.items[this.items.length - 1] ?? null;
    const exact = this.items.indexOf(this.picked);
    if (exact >= 0) return this.items[exact + direction] ?? null;
    const next = first(this.items, this.picked.at);
    return this.items[direction > 0 ? next : next - 1] ?? null;
  }

  /// The item next to a place.
  near(x) {
    const at = this.at(x);
    const from = first(this.items, at);
    const around = [this.items[from - 1], this.items[from]].filter(Boolean);
    const far = (item) => Math.abs(this.x(item.at) - x);
    const best = around.sort((one, other) => far(one) - far(other))[0];
    return best && far(best) <= NEAR ? best : null;
  }

  /// What the lanes are: those without anything are left out.
  lanes() {
    const { data } = this;
    const all = [
      ["history", "History", data.window !== null],
      ["marks", "Marks", data.marks.length > 0],
      ["snapshots", data.image ? "Images" : "Snapshots", true],
      ["future", "To come", data.future.length > 0],
    ];
    return all.filter(([, , is]) => is);
  }

  /// Draws at the next frame, once however often it is asked.
  draw() {
    if (this.frame || this.gone) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
      this.tell();
    });
  }

  /// Tells those who do not see the line where it is.
  tell() {
    const { slider, picked } = this;
    const now = Date.now();
    const bounds = [this.items[0]?.at ?? now, this.data.window?.start ?? now];
    const values = {
      "aria-valuemin": Math.floor(Math.min(...bounds) / 1000),
      "aria-valuemax": Math.floor(now / 1000),
      "aria-valuenow": Math.floor((picked?.at ?? now) / 1000),
      "aria-valuetext": picked ? `${picked.name ?? "instant"}, ${stamp(picked.at)}, ${ago(picked.at)}` : "now, nothing is picked",
    };
    for (const [name, value] of Object.entries(values)) {
      if (slider.getAttribute(name) !== String(value)) slider.setAttribute(name, value);
    }
    const shown = `${first(this.items, this.start)} to ${first(this.items, this.end)} of ${this.items.length}`;
    const text = `${stamp(this.start)} to ${stamp(this.end)}`;
    if (this.range.textContent !== text) this.range.textContent = text;
    this.onMove({ start: this.start, end: this.end, shown });
  }

  /// Looks up the colours once for each theme.
  paintColors() {
    if (this.colors) return this.colors;
    const style = getComputedStyle(this.slider);
    const names = ["ink", "soft", "faint", "rule", "accent", "band", "ground", "amber"];
    this.colors = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    this.colors.font = style.fontFamily;
    return this.colors;
  }

  paint() {
    const { canvas, width } = this;
    const lanes = this.lanes();
    const height = TOP + lanes.length * LANE + AXIS;
    const scale = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      canvas.style.height = `${height}px`;
    }
    if (this.follows) this.follow();
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const colors = this.paintColors();
    this.paintAxis(pen, colors, height);
    const now = this.x(Date.now());
    lanes.forEach(([kind, label], at) => {
      const top = TOP + at * LANE;
      pen.fillStyle = colors.rule;
      pen.fillRect(0, top + LANE - 1, width, 1);
      if (kind === "history") this.paintWindow(pen, colors, top);
      if (kind === "marks") this.paintItems(pen, colors, top, this.data.marks, colors.amber);
      if (kind === "snapshots") this.paintItems(pen, colors, top, this.data.snapshots, colors.accent);
      if (kind === "future") this.paintItems(pen, colors, top, this.data.future, colors.soft, true);
      pen.font = `11px ${colors.font}`;
      pen.textBaseline = "top";
      const wide = pen.measureText(label).width;
      pen.fillStyle = colors.ground;
      pen.fillRect(0, top + 2, wide + 8, 14);
      pen.fillStyle = colors.soft;
      pen.fillText(label, 4, top + 3);
    });
    if (now >= 0 && now <= width) {
      pen.fillStyle = colors.ink;
      pen.fillRect(Math.round(now), TOP, 1, height - TOP - AXIS);
      pen.font = `11px ${colors.font}`;
      pen.textBaseline = "top";
      const left = now + 30 > width;
      pen.textAlign = left ? "right" : "left";
      pen.fillText("now", now + (left ? -4 : 4), TOP + 3);
      pen.textAlign = "left";
    }
    if (this.picked) {
      const x = this.x(this.picked.at);
      pen.fillStyle = colors.accent;
      pen.fillRect(Math.round(x) - 1, 0, 2, height - AXIS);
      pen.beginPath();
      pen.moveTo(x - 6, 0);
      pen.lineTo(x + 6, 0);
      pen.lineTo(x, 8);
      pen.fill();
    }
  }

  /// Keeps now at its place.
  follow() {
    const ahead = this.end - this.followed;
    const now = Date.now();
    if (this.followed && ahead > 0) this.end = now + ahead;
    this.followed = now;
  }

  paintWindow(pen, colors, top) {
    const { start } = this.data.window;
    const left = Math.max(0, this.x(start));
    const right = Math.min(this.width, this.x(Date.now()));
    if (right <= left) return;
    pen.fillStyle = colors.band;
    pen.fillRect(left, top + 18, right - left, 12);
    pen.fillStyle = colors.accent;
    if (this.x(start) >= 0) pen.fillRect(left, top + 16, 2, 16);
  }

  /// Things of a lane. Those that share a few pixels are one bar that is higher the more they are.
  paintItems(pen, colors, top, items, color, hollow = false) {
    const size = 4;
    let at = first(items, this.start - (this.span / this.width) * size);
    const beyond = first(items, this.end + (this.span / this.width) * size);
    const scale = this.width / this.span;
    const begin = this.start;
    pen.fillStyle = color;
    pen.strokeStyle = color;
    pen.font = `11px ${colors.font}`;
    pen.textBaseline = "middle";
    while (at < beyond) {
      const x = (items[at].at - begin) * scale;
      const place = Math.floor(x / size);
      let next = at + 1;
      while (next < beyond && Math.floor(((items[next].at - begin) * scale) / size) === place) next += 1;
      const many = next - at;
      const middle = many === 1 ? x : (place + 0.5) * size;
      const height = Math.min(22, 9 + 4 * Math.log2(many));
      const y = top + LANE - 5 - height;
      if (hollow) pen.strokeRect(Math.round(middle) - 1.5, y + 0.5, 3, height - 1);
      else pen.fillRect(Math.round(middle) - 1.5, y, 3, height);
      if (items[at].current) {
        pen.beginPath();
        pen.arc(middle, top + LANE - 10, 6, 0, 7);
        pen.stroke();
      }
      const room = next < beyond ? (items[next].at - begin) * scale - middle : Infinity;
      if (many > 1 && room > 12 + 7 * String(many).length) {
        pen.fillStyle = colors.soft;
        pen.fillText(String(many), middle + 4, top + LANE - 12);
        pen.fillStyle = color;
      }
      at = next;
    }
  }

  paintAxis(pen, colors, height) {
    const base = height - AXIS;
    pen.fillStyle = colors.rule;
    pen.fillRect(0, base, this.width, 1);
    pen.font = `11px ${colors.font}`;
    pen.textBaseline = "top";
    for (const { at, text, strong } of ticks(this.start, this.end, this.width)) {
      const x = Math.round(this.x(at));
      pen.fillStyle = strong ? colors.faint : colors.rule;
      pen.fillRect(x, TOP, 1, base - TOP);
      pen.fillStyle = strong ? colors.ink : colors.soft;
      pen.fillText(text, x + 3, base + 6);
    }
  }

  /// The lane's contents in words.
  summary() {
    const { snapshots, marks } = this.data;
    return `${count(snapshots.length, "snapshot")}, ${count(marks.length, "mark")}`;
  }
}

/// A local time as people write it; a time of day is the last one that has passed.
export function localTime(text, now) {
  const found = /^(?:(\d{4})-(\d\d)-(\d\d)[ T]+)?(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?$/.exec(text.trim());
  if (!found) return null;
  const [, year, month, day, hour, minute, second = "0", part = "0"] = found;
  const at = new Date(now);
  if (year) at.setFullYear(Number(year), Number(month) - 1, Number(day));
  at.setHours(Number(hour), Number(minute), Number(second), Number(part.padEnd(3, "0")));
  if (!year && at.getTime() > now) at.setDate(at.getDate() - 1);
  return Number.isNaN(at.getTime()) ? null : at.getTime();
}

/// The place of the first item at `at` or later.
function first(items, at) {
  let [low, high] = [0, items.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (items[middle].at < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/// Where the axis has lines, and what is written there: local time.
export function ticks(start, end, width) {
  const wanted = (end - start) / Math.max(2, width / 92);
  const found = [];
  const step = STEPS.find((candidate) => candidate >= wanted);
  const push = (at, text, strong) => {
    if (at >= start && at <= end) found.push({ at, text, strong });
  };
  if (step && step < DAY) {
    const midnight = new Date(start);
    midnight.setHours(0, 0, 0, 0);
    let at = midnight.getTime() + Math.floor((start - midnight.getTime()) / step) * step;
    for (; at <= end; at += step) {
      const local = new Date(at);
      const isDay = local.getHours() === 0 && local.getMinutes() === 0 && local.getSeconds() === 0;
      push(at, isDay ? date(local).slice(5) : time(local, step < MINUTE), isDay);
    }
    return found;
  }
  if (step) {
    const days = step / DAY;
    const at = new Date(start);
    at.setHours(0, 0, 0, 0);
    at.setDate(at.getDate() - ((Math.round(at.getTime() / DAY)) % days));
    for (; at.getTime() <= end; at.setDate(at.getDate() + days)) {
      push(at.getTime(), date(at).slice(5), at.getDate() <= days && at.getMonth() === 0);
    }
    return found;
  }
  const months = [1, 3, 6, 12, 24, 60, 120, 240].find((each) => each * 30.4 * DAY >= wanted) ?? 480;
  const at = new Date(new Date(start).getFullYear(), 0, 1);
  if (months > 12) at.setFullYear(at.getFullYear() - (at.getFullYear() % (months / 12)));
  for (; at.getTime() <= end; at.setMonth(at.getMonth() + months)) {
    const isYear = at.getMonth() === 0;
    push(at.getTime(), isYear ? String(at.getFullYear()) : date(at).slice(0, 7), isYear);
  }
  return found;
}

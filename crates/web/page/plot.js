// Curves, as SVG that scales with the page. The words around a curve say the same.

import { h } from "./dom.js";

const [WIDTH, HEIGHT] = [640, 130];

function make(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/// Draws lines over a common range from 0.
/// - lines: [{ name, style, points: [[x, y], ...] }]; a point without y is a gap.
/// - limit: a value that is drawn as a line of its own.
/// - label: the whole in words, for people who do not see it.
/// - top: the words for the highest value; ends: the words for the two ends of the x axis.
export function plot({ lines, limit, label, top, ends, mark, names = true }) {
  const points = lines.flatMap((line) => line.points).filter(([, y]) => y !== null);
  if (points.length < 2) return null;
  const xs = points.map(([x]) => x);
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const most = Math.max(limit ?? 0, ...points.map(([, y]) => y)) || 1;
  const x = (at) => 2 + ((at - first) / (last - first || 1)) * (WIDTH - 4);
  const y = (value) => HEIGHT - 3 - (value / most) * (HEIGHT - 8);
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": label, preserveAspectRatio: "none" });
  if (limit !== null && limit !== undefined) svg.append(make("line", { x1: 0, x2: WIDTH, y1: y(limit), y2: y(limit), class: "limit" }));
  if (mark !== null && mark !== undefined) svg.append(make("line", { x1: x(mark), x2: x(mark), y1: 0, y2: HEIGHT, class: "mark" }));
  for (const line of lines) {
    for (const stretch of stretches(line.points)) {
      svg.append(make("polyline", { class: line.style, points: stretch.map(([at, value]) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(" ") }));
    }
  }
  return h(
    "figure",
    { class: "plotted" },
    h("p", { class: "hint" }, top),
    svg,
    h("p", { class: "ends hint" }, h("span", {}, ends[0]), h("span", {}, ends[1])),
    names && h("p", { class: "legend" }, lines.map((line) => h("span", {}, h("span", { class: `swatch ${line.style}`, "aria-hidden": "true" }), line.name))),
  );
}

/// The parts of a line between its gaps.
function stretches(points) {
  const parts = [[]];
  for (const point of points) {
    if (point[1] === null) parts.push([]);
    else parts[parts.length - 1].push(point);
  }
  return parts.filter((part) => part.length > 0);
}

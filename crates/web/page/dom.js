// Elements, and how a view that is drawn again keeps the elements that are there.

/// Makes an element. Attributes with a function are handlers; those with null, undefined or false
/// are left out. Children are elements, texts, or lists of both.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element[name] = value;
    else if (name === "value") element.value = value;
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/// Attributes that belong to the element that is there: the policy of the page forbids to set a
/// style as text, and people open and close details.
const OWN = ["open", "style"];

const HANDLERS = ["onclick", "onsubmit", "oninput", "onchange", "onkeydown", "ontoggle"];

/// Makes `old` look like `fresh`, and changes what differs alone: focus, selections and open parts
/// stay. The inside of an element with `data-kept` is its own business.
export function morph(old, fresh) {
  if (old.dataset?.kept !== undefined && old.dataset.kept === fresh.dataset?.kept) return old;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !OWN.includes(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (!OWN.includes(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const handler of HANDLERS) if (old[handler] !== fresh[handler]) old[handler] = fresh[handler];
  if (fresh.measure) fresh.measure(old);
  morphInside(old, [...fresh.childNodes]);
  return old;
}

/// Makes the children of `old` look like these.
export function morphInside(old, children) {
  const keyed = new Map();
  for (const child of old.childNodes) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let place = old.firstChild;
  for (const child of children) {
    const key = child.dataset?.key;
    let match = key ? keyed.get(key) : place;
    if (!key && match?.dataset?.key) match = null;
    const fits = match && match.nodeType === child.nodeType && match.nodeName === child.nodeName;
    if (!fits) {
      old.insertBefore(child, place);
      continue;
    }
    if (match !== place) old.insertBefore(match, place);
    else place = place.nextSibling;
    if (child.nodeType === Node.TEXT_NODE) {
      if (match.data !== child.data) match.data = child.data;
    } else {
      morph(match, child);
    }
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

/// Says something to people who do not see the page.
export function say(text) {
  const live = document.getElementById("live");
  if (live.textContent === text) live.textContent = "";
  live.textContent = text;
}

/// A table that scrolls by itself where it is wider than the page. A column is its title, or a list
/// of its title and a class: `n` for numbers.
export function table(caption, columns, rows, empty = "none") {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const classes = columns.map((column) => (Array.isArray(column) ? column[1] : null));
  const titles = columns.map((column) => (Array.isArray(column) ? column[0] : column));
  const head = h("tr", {}, titles.map((title, at) => h("th", { scope: "col", class: classes[at] }, title)));
  const body = rows.map(({ key, cells, current }) => h(
    "tr",
    { "data-key": key, "aria-current": current ? "true" : null },
    cells.map((cell, at) => (at === 0
      ? h("th", { scope: "row", class: classes[at] }, cell)
      : h("td", { class: classes[at] }, cell))),
  ));
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, head), h("tbody", {}, body)),
  );
}

/// Facts, as pairs of a term and what it is. Pairs without the second part are left out.
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value))));
}

/// A section with a heading.
export function section(title, ...children) {
  const id = `s-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return h("section", { "aria-labelledby": id, "data-key": id }, h("h2", { id }, title), ...children);
}

/// A command line with a button that copies it.
export function command(text) {
  const copy = async (event) => {
    const button = event.currentTarget;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      say("Copied");
    } catch {
      // Without TLS the browser has no clipboard for pages: the line is selected for Ctrl-C.
      getSelection().selectAllChildren(button.previousSibling);
      button.textContent = "Ctrl-C";
      say("The command is selected. Press Control C to copy it.");
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  return h(
    "span",
    { class: "command" },
    h("code", {}, text),
    h("button", { class: "copy", type: "button", "aria-label": `Copy ${text}`, onclick: copy }, "Copy"),
  );
}

/// A text in which commands stand between backticks.
export function withCommands(text) {
  return text.split("`").map((part, at) => {
    if (at % 2 === 0) return part;
    return part.startsWith("cairn ") ? command(part) : h("code", {}, part);
  });
}

/// A bar with what it stands for as text beside it.
export function bar(part, whole, label, warn = false) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  const inside = h("span", { class: "fill" });
  inside.measure = (element) => { element.style.width = `${(100 * share).toFixed(1)}%`; };
  inside.measure(inside);
  return h("span", { class: warn ? "bar warn" : "bar", role: "img", "aria-label": label }, inside);
}

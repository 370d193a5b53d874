// What makes the page hard to use: a list, which is empty when all is well.
(() => {
  const findings = [];
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    return { rgb: parts.slice(0, 3), alpha: parts[3] ?? 1 };
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { rgb, alpha } = parse(getComputedStyle(at).backgroundColor);
      if (alpha === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const isShown = (element) => element.offsetParent !== null && element.getClientRects().length > 0;
  const words = (element) => `${element.tagName} "${(element.textContent || element.id).trim().slice(0, 40)}"`;

  // Text: 4.5 to 1, large text 3 to 1 (WCAG 1.4.3). What is disabled does not count.
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !isShown(element) || element.closest("button:disabled, .unseen, .skip, noscript, script")) continue;
    const style = getComputedStyle(element);
    const [one, other] = [light(parse(style.color).rgb), light(ground(element))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    if (ratio < least) findings.push(`contrast ${ratio.toFixed(2)} of ${words(element)}`);
  }

  // Names, and targets of 24 pixels for a finger (WCAG 4.1.2, 2.5.8).
  const named = (element) => {
    const label = element.labels?.[0]?.textContent;
    const by = element.getAttribute("aria-labelledby");
    const pointed = by && document.getElementById(by)?.textContent;
    return (element.getAttribute("aria-label") || pointed || label || element.textContent || element.alt || "").trim();
  };
  for (const element of document.querySelectorAll("button, a, input, [role], section, nav, dialog, svg")) {
    if (!isShown(element) || ["status", "alert", "presentation"].includes(element.getAttribute("role"))) continue;
    if (!named(element)) findings.push(`no name: ${element.outerHTML.slice(0, 100)}`);
  }
  for (const element of document.querySelectorAll("button")) {
    const { width, height } = element.getBoundingClientRect();
    if (isShown(element) && (width < 24 || height < 23.5)) findings.push(`small: ${words(element)} ${width} x ${height}`);
  }

  // Structure.
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids)) if (ids.filter((other) => other === id).length > 1) findings.push(`the id ${id} twice`);
  for (const element of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    const pointed = `${element.getAttribute("aria-labelledby") ?? ""} ${element.getAttribute("aria-describedby") ?? ""}`;
    for (const id of pointed.split(" ").filter(Boolean)) if (!document.getElementById(id)) findings.push(`no element ${id}`);
  }
  if (document.querySelectorAll("h1").length !== 1) findings.push(`${document.querySelectorAll("h1").length} main headings`);
  if (!document.title || !document.documentElement.lang) findings.push("no title or language");
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption || table.querySelector("th:not([scope])")) findings.push("a table without a caption or scopes");
  }
  for (const image of document.querySelectorAll("img:not([alt])")) findings.push(`no text for ${image.src}`);

  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) findings.push(`the page is ${root.scrollWidth} wide in ${root.clientWidth}`);
  return findings;
})();

// The frame of the page: the session, the view that the address names, and the status of the
// server. A stream says when it has changed; without the stream it is asked for again and again. A
// page that is not visible does neither.

import { accessWords, learnAccess, may } from "./access.js";
import { changes, get, leaveForProvider, returnFromProvider, session, signIn, signOut, takeSignIn } from "./api.js";
import { h, morphInside, say, withCommands } from "./dom.js";
import { DumpFilesView, DumpsView } from "./dumps.js";
import { Exports, Peers } from "./exports.js";
import { FilesView } from "./files.js";
import { BucketMirrorView } from "./bucket.js";
import { FleetView } from "./fleet.js";
import { HistoryView } from "./history.js";
import { LogView } from "./log.js";
import { MirrorView } from "./mirror.js";
import { Overview } from "./overview.js";
import { VolumeView } from "./volume.js";
import { count, duration } from "./words.js";

/// Between an answer and the next request, in milliseconds: shorter while a job runs.
const EVERY = 2000;
const EVERY_BUSY = 1000;

/// The same while the stream of changes works: only ages change without a message.
const EVERY_HEARD = 10_000;

/// After the stream has ended it is tried again.
const STREAM_AGAIN = 10_000;

const main = document.getElementById("main");
const nav = document.getElementById("views");
const banner = document.getElementById("banner");
const leave = document.getElementById("leave");

const app = {
  status: null,
  jobs: [],
  view: null,
  signedIn: false,
  problems: null,

  /// Draws the view at the next frame, once however often it is asked.
  draw() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      if (this.signedIn) drawView();
    });
  },

  /// Asks for the status now.
  poll() {
    clearTimeout(timer);
    return ask();
  },
};

let timer = 0;
let asking = null;
let askAgain = false;

/// The stream of changes: what ends it, and whether it works.
let stream = null;
let hears = false;

/// Listens for changes while the page is visible.
async function listen() {
  if (stream || !app.signedIn || document.visibilityState !== "visible") return;
  const own = new AbortController();
  stream = own;
  try {
    await changes(own.signal, () => { hears = true; }, () => ask());
  } catch {
    // Without it the page asks: that says what is wrong.
  }
  if (stream !== own) return;
  stream = null;
  hears = false;
  if (!own.signal.aborted) {
    ask();
    setTimeout(listen, STREAM_AGAIN);
  }
}

function hush() {
  stream?.abort();
  stream = null;
  hears = false;
}
let silentSince = 0;

/// Asks for the status. A change that is heard while an answer is on its way is asked for after it.
async function ask() {
  if (asking) {
    askAgain = true;
    return asking;
  }
  asking = askOnce().finally(() => {
    asking = null;
    if (askAgain && app.signedIn) {
      askAgain = false;
      ask();
    }
  });
  return asking;
}

async function askOnce() {
  try {
    [app.status, app.jobs] = await Promise.all([get("/v1/status"), get("/v1/jobs")]);
    silentSince = 0;
    banner.replaceChildren();
    tellProblems();
    app.view?.update();
    app.draw();
  } catch (error) {
    if (!app.signedIn) return;
    silentSince ||= Date.now();
    const since = `since ${duration(Date.now() - silentSince)}`;
    const what = `${error.message}${app.status ? `; the page shows the last state (${since})` : ""}. `;
    const line = h("p", { class: "note bad" }, what, error.next ? withCommands(`Next: ${error.next}`) : null);
    // It is an alert: it is said again only when it begins.
    if (banner.firstChild) morphInside(banner, [line]);
    else banner.append(line);
  } finally {
    clearTimeout(timer);
    if (app.signedIn && document.visibilityState === "visible") {
      const busy = app.jobs.some((job) => job.state === "running");
      timer = setTimeout(ask, hears ? EVERY_HEARD : busy ? EVERY_BUSY : EVERY);
    }
  }
}

/// Says it when problems come or go.
function tellProblems() {
  const now = app.status.problems.length;
  if (app.problems !== null && now !== app.problems) say(now === 0 ? "All is well" : count(now, "problem"));
  app.problems = now;
}

const ROUTES = [
  [/^#\/volume\/([^/]+)$/, (name) => new VolumeView(app, name, false)],
  [/^#\/device\/([^/]+)$/, (name) => new VolumeView(app, name, true)],
  [/^#\/mirror\/([^/]+)$/, (name) => new MirrorView(app, name)],
  [/^#\/bucket-mirror\/([^/]+)$/, (name) => new BucketMirrorView(app, name)],
  [/^#\/history\/([^/]+)$/, (name) => new HistoryView(app, name)],
  [/^#\/files\/([^/]+)((?:\/[^/]+)*)\/?$/, (name, rest) => filesView(name, rest)],
  [/^#\/dumps$/, () => new DumpsView(app, "dumps", null)],
  [/^#\/(dumps|dump-folders)\/([^/]+)$/, (route, place) => new DumpsView(app, route, decodeURIComponent(place))],
  [/^#\/(dumps|dump-folders)\/([^/]+)\/([^/]+)((?:\/[^/]+)*)\/?$/, (route, place, of, rest) => new DumpFilesView(app, route, decodeURIComponent(place), decodeURIComponent(of), rest.split("/").filter(Boolean))],
  [/^#\/exports$/, () => new Exports(app)],
  [/^#\/fleet$/, () => new FleetView(app)],
  [/^#\/log$/, () => new LogView(app)],
  [/^#\/peers$/, () => new Peers(app)],
  [/^(#\/?)?$/, () => new Overview(app)],
];

function route() {
  for (const [pattern, make] of ROUTES) {
    const found = pattern.exec(location.hash);
    if (!found) continue;
    let view;
    try {
      const [, name] = found;
      view = make(name === undefined ? name : decodeURIComponent(name), ...found.slice(2));
    } catch {
      // An address that is cut within a character.
      break;
    }
    open(view);
    return;
  }
  location.replace("#/");
}

/// `VOLUME` or `VOLUME@INSTANT`, and the encoded names of a folder.
function filesView(instant, rest) {
  const at = instant.indexOf("@");
  const names = rest.split("/").filter(Boolean);
  return at < 0 ? new FilesView(app, instant, null, names) : new FilesView(app, instant.slice(0, at), instant.slice(at + 1), names);
}

function open(view) {
  const isFirst = app.view === null;
  app.view?.stop();
  app.view = view;
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  main.replaceChildren();
  if (app.status) view.update();
  drawView();
  scrollTo(0, 0);
  if (!isFirst) main.focus({ preventScroll: true });
}

function drawView() {
  const { view } = app;
  if (!view) return;
  const children = view.render().filter((child) => child);
  if (children.length === 0) children.push(h("p", { class: "empty" }, "Asking the server …"));
  morphInside(main, children);
  view.attach(main);
  drawFrame();
}

/// The parts around the view.
function drawFrame() {
  const { status, view } = app;
  const lead = app.problems ? `(${app.problems}) ` : "";
  document.title = `${lead}${view.title} · Cairn`;
  nav.hidden = false;
  leave.hidden = false;
  const links = [["#/", "Overview"], ["#/fleet", "Fleet"], ["#/exports", "Exports"], ["#/peers", "Peers"], ["#/dumps", "Dumps"], ["#/log", "Log"]];
  const here = location.hash || "#/";
  morphInside(nav, links.map(([href, text]) => h("a", { href, "aria-current": here === href ? "page" : null }, text)));
  const text = status ? `${status.data} · ${status.version} · up ${duration(status.uptime_ms)}` : "";
  const server = document.getElementById("server");
  if (server.textContent !== text) server.textContent = text;
  const who = document.getElementById("who");
  if (who.textContent !== accessWords()) who.textContent = accessWords();
}

/// The button that leads to the identity provider, where one is configured. The sign-in works at
/// one address of the page, to which the button leads first.
function providerButton(provider, error) {
  if (!provider) return null;
  const text = `Sign in with ${provider.name}`;
  if (provider.origin !== location.origin) {
    return h("p", { class: "buttons" }, h("a", { class: "button", href: `${provider.origin}/` }, `${text} at ${provider.origin}`));
  }
  const leaveHere = async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    error.replaceChildren();
    try {
      await leaveForProvider();
    } catch (refused) {
      error.replaceChildren(...problemLines(refused));
      button.disabled = false;
      button.focus();
    }
  };
  return h("p", { class: "buttons" }, h("button", { type: "button", id: "provider", onclick: leaveHere }, text));
}

/// The form in which the token is given; or, on the page of `cairn web`, how to get a link.
function showSignIn({ proof, provider }, problem) {
  app.signedIn = false;
  hush();
  app.view?.stop();
  app.view = null;
  app.status = null;
  clearTimeout(timer);
  banner.replaceChildren();
  nav.hidden = true;
  leave.hidden = true;
  document.title = "Sign in · Cairn";
  document.getElementById("server").textContent = "";
  document.getElementById("who").textContent = "";
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
  const error = h("div", { role: "alert", id: "sign-in-error" }, problem ? problemLines(problem) : null);
  if (proof === "link") {
    main.replaceChildren(h(
      "section",
      { class: "sign-in" },
      h("h1", {}, "This page needs a link"),
      error,
      h("p", {}, withCommands("Run `cairn web` in a terminal, and open the link that it prints. A link works once.")),
    ));
    return;
  }
  const input = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, "aria-describedby": "token-hint sign-in-error" });
  const submit = async (event) => {
    event.preventDefault();
    error.replaceChildren();
    try {
      await signIn(input.value);
      await begin();
    } catch (refused) {
      error.replaceChildren(...problemLines(refused));
      input.setAttribute("aria-invalid", "true");
      input.select();
      input.focus();
    }
  };
  main.replaceChildren(h(
    "form",
    { class: "sign-in", onsubmit: submit },
    h("h1", {}, "Sign in"),
    h("p", { class: "field" }, h("label", { for: "token" }, "Token of the API"), input),
    h("p", { class: "hint", id: "token-hint" }, "One of ", h("code", {}, "cairn token create"), ", or the content of the file ", h("code", {}, "http-token"), " of the data directory of the server."),
    error,
    h("p", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in")),
    providerButton(provider, error),
  ));
  (document.getElementById("provider") ?? input).focus();
}

function problemLines(problem) {
  return [
    h("p", { class: "note bad" }, `Not signed in: ${problem.message}.`, problem.next ? h("span", {}, " Next: ", withCommands(problem.next), ".") : null),
  ];
}

async function begin() {
  app.signedIn = true;
  await learnAccess();
  if (!may("GET /v1/status")) {
    showTooLow();
    return;
  }
  listen();
  await ask();
  if (app.signedIn) route();
}

/// A lock keeper has mirrors and locks, and uses commands.
function showTooLow() {
  app.signedIn = false;
  leave.hidden = false;
  document.title = "No access · Cairn";
  main.replaceChildren(h(
    "section",
    { class: "sign-in" },
    h("h1", {}, "This role has no page"),
    h("p", {}, `You are ${accessWords()}. The page needs the status of the server, which this role may not read.`),
    h("p", {}, withCommands("Use commands such as `cairn mirror list` and `cairn mirror set`, or sign in with another token.")),
  ));
}

async function start() {
  let problem = null;
  const link = /^#link=([\w-]+)$/.exec(location.hash);
  if (link) {
    // The secret must stay neither in the address nor in the history of the browser.
    history.replaceState(null, "", location.pathname);
    try {
      await signIn(link[1]);
    } catch (error) {
      problem = error;
    }
  }
  if (location.pathname === "/oidc") {
    const query = new URLSearchParams(location.search);
    const kept = takeSignIn();
    // The code must stay neither in the address nor in the history of the browser. The view is that
    // at which the sign-in began.
    history.replaceState(null, "", `/${kept.view?.startsWith("#/") ? kept.view : ""}`);
    try {
      await returnFromProvider(kept, query);
    } catch (error) {
      problem = error;
    }
  }
  try {
    const shown = await session();
    if (shown.signed_in) await begin();
    else showSignIn(shown, problem);
  } catch (error) {
    main.replaceChildren(h("p", { class: "note bad" }, `${error.message}. `, withCommands(error.next)));
    setTimeout(start, EVERY);
  }
}

document.addEventListener("cairn-signed-out", async () => {
  if (!app.signedIn) return;
  app.signedIn = false;
  const shown = await session().catch(() => ({ proof: "token" }));
  showSignIn(shown, { message: "the session has ended", next: null });
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && app.signedIn) {
    listen();
    ask();
  } else {
    hush();
    clearTimeout(timer);
  }
});
addEventListener("hashchange", () => {
  if (/^#link=/.test(location.hash)) start();
  else if (app.signedIn && (location.hash === "" || location.hash.startsWith("#/"))) route();
});
document.getElementById("skip").addEventListener("click", () => main.focus());
leave.addEventListener("click", async () => {
  await signOut().catch(() => {});
  const shown = await session().catch(() => ({ proof: "token" }));
  showSignIn(shown, null);
});
start();

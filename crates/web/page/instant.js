// What is picked on the time line: what it is, how to use it, and what going back to it costs.

import { call, get, post, segment } from "./api.js";
import { act, actionButton } from "./dialog.js";
import { command, facts, h, section } from "./dom.js";
import { filesHref } from "./paths.js";
import { ago, duration, size, stamp, utc } from "./words.js";

/// The requests of actions here. To hold a snapshot needs the role that may take one.
const VIEW = "POST /v1/devices/{device}/views";
const HOLD = "POST /v1/volumes/{volume}/snapshots";
const RELEASE = "POST /v1/volumes/{volume}/snapshots/{snapshot}/hold";

/// The URI of the same LUN in a snapshot or a view.
function uriOf(lun, shown) {
  const [volume] = lun.name.split("/");
  const uri = lun.uris[0];
  return uri ? uri.replace(`/${volume}/`, `/${encodeURIComponent(shown)}/`) : null;
}

/// The part of the page about what is picked.
export function picked(view, item) {
  if (!item) {
    return h(
      "section",
      { class: "picked", "data-key": "picked", "aria-labelledby": "picked-title" },
      h("h2", { id: "picked-title" }, "Instant"),
      h("p", { class: "empty" }, "Pick a snapshot or an instant on the time line, or in the list."),
    );
  }
  const parts = item.kind === "snapshot" ? ofSnapshot(view, item) : ofInstant(view, item);
  return h(
    "section",
    { class: "picked", "data-key": "picked", "aria-labelledby": "picked-title" },
    h("h2", { id: "picked-title" }, item.kind === "snapshot" ? `${view.name}@${item.name}` : item.name ?? stamp(item.at)),
    parts,
  );
}

function ofSnapshot(view, item) {
  const full = `${view.name}@${item.name}`;
  const { snapshots } = view.data;
  const at = snapshots.findIndex((snapshot) => snapshot.name === item.name);
  const before = snapshots[at - 1];
  const isMirror = view.volume?.role === "destination";
  const buttons = [
    h("a", { class: "button", href: filesHref(view.name, item.name) }, "Files"),
    actionButton("Clone …", () => cloneOf(view, item), { needs: "POST /v1/clones" }),
    !isMirror && actionButton("Roll back …", () => rollBack(view, item.name), { danger: true, needs: "POST /v1/volumes/{volume}/snapshots/{snapshot}/rollback" }),
    !isMirror && actionButton(item.held ? "Release" : "Hold", () => hold(view, item), { needs: item.held ? RELEASE : HOLD }),
    !isMirror && actionButton("Delete …", () => remove(view, item), { danger: true, needs: "DELETE /v1/volumes/{volume}/snapshots/{snapshot}" }),
  ];
  return [
    facts([
      ["Taken", `${stamp(item.at)}, ${ago(item.at)}`],
      ["Generation", item.generation.toLocaleString("en")],
      ["Before it", before ? `${before.name}, ${duration(item.at - before.at)} earlier` : "no other snapshot"],
      ["Held", item.held ? "yes: it cannot be deleted" : "no"],
      ["Its deletion would free", freesWords(view, item)],
    ]),
    h("p", { class: "buttons" }, buttons),
    h("h3", {}, "Look at it"),
    h("p", {}, "Its files: ", command(`cairn mount ${full} /mnt`)),
    (view.luns ?? []).map((lun) => h("p", { "data-key": lun.name }, `Its LUN ${lun.name.split("/")[1]}: `, command(uriOf(lun, full) ?? full))),
  ];
}

/// The space that a deletion of a snapshot would free, alone and with its neighbours.
export const askFrees = (volume, snapshot) => get(`/v1/volumes/${segment(volume)}/snapshots/${segment(snapshot)}/frees`);

function freesWords(view, item) {
  const frees = view.freesOf(item.name);
  if (!frees) return "…";
  const short = (name) => name.slice(view.name.length + 1);
  const together = (other) => other && `${size(other.bytes)} together with ${short(other.name)}`;
  const parts = [`${size(frees.alone_bytes)} alone`, together(frees.with_earlier), together(frees.with_later)];
  if (frees.with_both_bytes !== null) parts.push(`${size(frees.with_both_bytes)} with both`);
  return parts.filter(Boolean).join("; ");
}

function ofInstant(view, item) {
  const isMirror = view.volume?.role === "destination";
  const argument = item.kind === "mark" ? `--mark ${item.name}` : `--at '${utc(item.at)}'`;
  const instant = item.kind === "mark" ? { mark: item.name } : { at_ns: item.at * 1e6 };
  const shown = (view.history?.views ?? []).find((one) => !one.writable && one.at_ns === instant.at_ns);
  const buttons = [
    view.volume && (shown
      ? h("a", { class: "button", href: filesHref(view.name, shown.name.slice(view.name.length + 1)) }, "Files")
      : actionButton("Files …", () => filesAt(view, item, argument, instant), { needs: VIEW })),
    actionButton("View …", () => viewAt(view, item, argument, instant), { needs: VIEW }),
    !isMirror && actionButton("Revert …", () => revert(view, item, argument, instant), { danger: true, needs: "POST /v1/devices/{device}/revert" }),
    isMirror && actionButton("Rewind …", () => revert(view, item, argument, instant, true), { danger: true, needs: "POST /v1/mirrors/{mirror}/rewind" }),
  ];
  return [
    facts([
      ["Instant", `${stamp(item.at)}, ${ago(item.at)}`],
      ["In UTC", utc(item.at)],
      ["Quiesced", item.kind === "mark" ? (item.consistent ? "yes" : "no") : null],
    ]),
    h("p", { class: "buttons" }, buttons),
  ];
}

function cloneOf(view, item) {
  const full = `${view.name}@${item.name}`;
  return {
    title: `Clone ${full}`,
    words: () => ["A clone is a writable volume. It shares the blocks of the snapshot and takes no space at first."],
    fields: [{ name: "name", label: "Name of the clone", value: `${view.name}-clone` }],
    line: ({ name }) => `cairn clone create ${full} ${name}`,
    verb: "Clone",
    run: async ({ name }) => {
      const clone = await post("/v1/clones", { volume: view.name, snapshot: item.name, name });
      return [`Made volume ${clone.name} with ${clone.luns} LUN(s).`, `Its LUNs: \`cairn lun list ${clone.name}\``];
    },
    after: view.refresh,
  };
}

/// Rolls a volume back to a snapshot; also the undo of that.
export function rollBack(view, snapshot) {
  const full = `${view.name}@${snapshot}`;
  return {
    title: `Roll back ${view.name}`,
    words: async () => {
      await post("/v1/dry-run", { what: "rollback", volume: view.name, snapshot });
      const item = view.data.snapshots.find((found) => found.name === snapshot);
      const sessions = view.sessions();
      return [
        `This brings ${view.name} back to ${full}; the state before is kept as a snapshot.`,
        item ? `What was written since, in the last ${duration(Date.now() - item.at)}, is then in that snapshot alone.` : null,
        sessions > 0 ? `${sessions} session(s) of clients use this volume now.` : null,
      ];
    },
    typed: view.name,
    line: () => `cairn snapshot rollback ${full}`,
    verb: "Roll back",
    run: async () => {
      const undo = await post(`/v1/volumes/${segment(view.name)}/snapshots/${segment(snapshot)}/rollback`);
      const name = undo.name.slice(view.name.length + 1);
      return {
        text: [`${view.name} is at ${full}.`, `To undo: \`cairn snapshot rollback ${undo.name}\``],
        undo: { label: "Undo …", act: () => act(rollBack(view, name)) },
      };
    },
    after: view.refresh,
  };
}

function hold(view, item) {
  const full = `${view.name}@${item.name}`;
  const held = !item.held;
  return {
    title: held ? `Hold ${full}` : `Release ${full}`,
    words: () => [held ? "A held snapshot cannot be deleted, also by a schedule." : "The snapshot can then be deleted, also by a schedule."],
    line: () => `cairn snapshot ${held ? "hold" : "release"} ${full}`,
    verb: held ? "Hold" : "Release",
    run: async () => {
      await post(`/v1/volumes/${segment(view.name)}/snapshots/${segment(item.name)}/hold`, { held });
      return held ? `${full} is held.` : `${full} can be deleted.`;
    },
    after: view.refresh,
  };
}

function remove(view, item) {
  const full = `${view.name}@${item.name}`;
  return {
    title: `Delete ${full}`,
    words: async () => {
      await post("/v1/dry-run", { what: "delete-snapshot", volume: view.name, snapshot: item.name });
      const frees = await askFrees(view.name, item.name).catch(() => null);
      return [
        `This deletes ${full}. What only it shows is lost, and cannot be brought back.`,
        frees && `It frees ${size(frees.alone_bytes)}.`,
      ];
    },
    typed: view.name,
    line: () => `cairn snapshot delete ${full}`,
    verb: "Delete",
    run: async () => {
      const freed = await call("DELETE", `/v1/volumes/${segment(view.name)}/snapshots/${segment(item.name)}`);
      view.line.pick(null);
      return `Deleted ${full}, freed ${size(freed.freed_bytes)}.`;
    },
    after: view.refresh,
  };
}

function viewAt(view, item, argument, instant) {
  const name = nameOfView(item);
  return {
    title: `View of ${view.name}`,
    words: () => ["This exports what was there at that instant, read-only, beside the present state."],
    fields: [{ name: "name", label: "Name of the view", value: name }],
    line: (values) => `cairn history view ${view.name} ${argument} --export ${values.name}`,
    verb: "View",
    run: async (values) => {
      const made = await post(`/v1/devices/${segment(view.name)}/views`, { name: values.name, instant, writable: false });
      return [
        `${made.name} shows ${stamp(made.at_ns / 1e6)}.`,
        ...made.uris.map((uri) => `\`${uri}\``),
        `To end it: \`cairn history view ${view.name} --delete ${values.name}\``,
      ];
    },
    after: view.refresh,
  };
}

/// Shows the files of an instant, through a view of it.
function filesAt(view, item, argument, instant) {
  const name = nameOfView(item);
  let made = null;
  return {
    title: `Files of ${view.name} at ${item.name ?? stamp(item.at)}`,
    words: () => [`This makes the read-only view ${view.name}@${name}, which shows what was there at that instant. The page of its files has a button that ends it.`],
    line: () => `cairn history view ${view.name} ${argument} --export ${name}`,
    verb: "Show them",
    run: async () => {
      made = await post(`/v1/devices/${segment(view.name)}/views`, { name, instant, writable: false });
      return `${made.name} shows ${stamp(made.at_ns / 1e6)}.`;
    },
    after: () => { location.hash = filesHref(view.name, name); },
  };
}

const nameOfView = (item) => (item.kind === "mark" ? item.name : `at-${utc(item.at).replace(/[^0-9]/g, "").slice(0, 14)}`);

/// Brings a volume, a device or a mirror back to an instant; also the undo of that.
function revert(view, item, argument, instant, isMirror = false) {
  const path = isMirror ? `/v1/mirrors/${segment(view.name)}/rewind` : `/v1/devices/${segment(view.name)}/revert`;
  const line = isMirror ? "cairn mirror rewind" : "cairn history revert";
  return {
    title: `${isMirror ? "Rewind" : "Revert"} ${view.name}`,
    words: async () => {
      const would = await post(path, { ...instant, dry_run: true });
      const pauses = isMirror ? ", pauses its updates" : "";
      const at = would.at_ns / 1e6;
      return [
        `This brings ${view.name} back to ${stamp(at)}, the last instant kept up to ${item.name ?? stamp(item.at)}${pauses}, and ends its ${would.sessions_ended} session(s).`,
        `What was written since, in the last ${duration(Date.now() - at)}, stays in the history: a mark leads back to it.`,
      ];
    },
    typed: view.name,
    line: () => `${line} ${view.name} ${argument}`,
    verb: isMirror ? "Rewind" : "Revert",
    run: async () => {
      const done = await post(path, { ...instant, dry_run: false });
      const undo = { kind: "mark", name: done.undo, at: Date.now() };
      const found = done.findings.length > 0 ? `Its check finds ${done.findings.length} thing(s) wrong there: ${done.findings[0]}` : null;
      return {
        text: [
          `${view.name} shows ${stamp(done.at_ns / 1e6)}; ${done.sessions_ended} session(s) were ended.`,
          found,
          `To undo: \`${line} ${view.name} --mark ${done.undo}\``,
          isMirror ? `Its updates are paused; to resume them: \`cairn mirror resume ${view.name}\`` : null,
        ],
        undo: { label: "Undo …", act: () => act(revert(view, undo, `--mark ${done.undo}`, { mark: done.undo }, isMirror)) },
      };
    },
    after: view.refresh,
  };
}

/// Takes a snapshot.
export function takeSnapshot(view) {
  const now = utc(Date.now()).replace(/[^0-9]/g, "").slice(0, 14);
  return {
    title: `Take a snapshot of ${view.name}`,
    words: () => ["A snapshot keeps the volume as it is now. Clients do not notice it."],
    fields: [{ name: "name", label: "Name", value: `page-${now}` }],
    line: ({ name }) => `cairn snapshot create ${view.name}@${name}`,
    verb: "Take it",
    run: async ({ name }) => {
      const made = await post(`/v1/volumes/${segment(view.name)}/snapshots`, { name });
      return `Made ${made.name}.`;
    },
    after: view.refresh,
  };
}

/// Sets a mark in a history.
export function setMark(view) {
  return {
    title: `Mark this instant of ${view.name}`,
    words: () => ["A mark names the present instant of the history."],
    fields: [{ name: "name", label: "Name", value: "", hint: "for example before-upgrade" }],
    line: ({ name }) => `cairn history mark ${view.name} ${name}`,
    verb: "Mark",
    run: async ({ name }) => {
      const made = await post(`/v1/devices/${segment(view.name)}/marks`, { name, consistent: false });
      return `${made.name} is ${stamp(made.at_ns / 1e6)}.`;
    },
    after: view.refresh,
  };
}

/// Ends the export of an instant. What was written to a clone is lost with it.
function endView(view, one) {
  const name = one.name.slice(view.name.length + 1);
  return {
    title: `End ${one.name}`,
    words: () => [one.writable
      ? `This deletes the clone ${one.name} and everything written to it.`
      : "The view is no longer exported. The history stays as it is."],
    typed: one.writable ? view.name : undefined,
    line: () => `cairn history ${one.writable ? "clone" : "view"} ${view.name} --delete ${name}`,
    verb: "End it",
    run: async () => {
      await call("DELETE", `/v1/devices/${segment(view.name)}/views/${segment(name)}?writable=${one.writable}`);
      return `${one.name} is no longer exported.`;
    },
    after: view.refresh,
  };
}

/// The views and clones of a history.
export function views(view) {
  const shown = view.history?.views ?? [];
  if (shown.length === 0) return null;
  const rows = shown.map((one) => h("li", { "data-key": one.name }, h("strong", {}, one.name), ` ${one.writable ? "clone" : "view"} of ${stamp(one.at_ns / 1e6)} `, one.uris.slice(0, 1).map(command), " ", actionButton("End …", () => endView(view, one), { needs: "DELETE /v1/devices/{device}/views/{view}" })));
  return section("Views and clones", h("ul", { class: "plain" }, rows));
}

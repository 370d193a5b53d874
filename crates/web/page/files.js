// The files of a volume, now or at an instant: folders, versions, downloads, restores, differences.

import { call, get, jobDone, post, segment } from "./api.js";
import { whyNot } from "./access.js";
import { actionButton } from "./dialog.js";
import { h, say, section, table } from "./dom.js";
import { encoded, filesHref, namesOf, placeBody, placeQuery, readable, readablePath, shell } from "./paths.js";
import { ago, count, plain, size, stamp } from "./words.js";

/// Rows of a table at first, and more of them at each press.
const ROWS = 200;

/// Snapshots in the list of instants. The time line has them all.
const INSTANTS = 100;

const DAY = 86_400_000;

/// How far back the page looks for files that were deleted, besides the newest and the oldest
/// snapshot.
const LOOK_BACK = [DAY, 7 * DAY];

/// The requests of actions here.
const RESTORE = "POST /v1/volumes/{volume}/files/restore";
const DOWNLOAD = "POST /v1/volumes/{volume}/files/downloads";

/// Names in the order that people expect.
const ORDER = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

export class FilesView {
  constructor(app, volume, at, names) {
    this.app = app;
    this.volume = volume;
    this.at = at;
    this.names = names;
    this.entries = null;
    this.deleted = [];
    this.snapshots = [];
    this.views = [];
    this.versions = null;
    this.changes = null;
    this.chosen = null;
    this.problem = null;
    this.rows = ROWS;
    this.more = null;
    this.refresh = () => this.load();
  }

  get title() {
    return `Files of ${this.at ? `${this.volume}@${this.at}` : this.volume}`;
  }

  get path() {
    return `/v1/volumes/${segment(this.volume)}`;
  }

  stop() {
    this.gone = true;
  }

  attach() {}

  /// What the status says of the volume.
  get status() {
    return this.app.status?.volumes.find((volume) => volume.name === this.volume) ?? null;
  }

  get isMirror() {
    return this.status?.role === "destination";
  }

  update() {
    // A folder of the present changes at any time; the listing is asked for when it is opened.
    if (!this.begun && this.status) {
      this.begun = true;
      this.load();
    }
  }

  async load() {
    try {
      const asked = [get(`${this.path}/snapshots`), this.list(this.at, null)];
      const device = this.status?.history ? get(`/v1/devices/${segment(this.volume)}`) : null;
      const [snapshots, listing] = await Promise.all(asked);
      const lead = this.volume.length + 1;
      // A mirror's base is gone with its next update; of a mirror itself there may be nothing else.
      const lasts = (one) => this.isMirror || one.name === this.at || !one.name.startsWith("mirror.");
      this.snapshots = snapshots.map((one) => ({ name: one.name.slice(lead), at: one.created_ms })).filter(lasts).reverse();
      this.entries = sorted(listing.entries);
      this.more = listing.more;
      this.problem = null;
      this.app.draw();
      this.views = (await device)?.views.filter((view) => !view.writable).map((view) => view.name.slice(lead)) ?? [];
      if (!this.at) await this.findDeleted();
    } catch (error) {
      this.problem = error;
      this.entries ??= [];
    }
    if (!this.gone) this.app.draw();
  }

  list(at, after) {
    const query = `${placeQuery(at, this.names)}${after ? `&after=${after}` : ""}`;
    return get(`${this.path}/files?${query}`);
  }

  async loadMore() {
    const listing = await this.list(this.at, this.more);
    this.entries = sorted([...this.entries, ...listing.entries]);
    this.more = listing.more;
    this.rows = this.entries.length;
    this.app.draw();
  }

  /// Names that some snapshots show in this folder and that are not there now.
  async findDeleted() {
    const here = new Set(this.entries.map(encoded));
    // More names than the page has asked for: those that it lacks need not be deleted.
    if (this.more) return;
    const found = new Map();
    for (const snapshot of lookedAt(this.snapshots)) {
      let listing;
      try {
        listing = await this.list(snapshot.name, null);
      } catch {
        // The folder did not exist then.
        continue;
      }
      for (const entry of listing.entries) {
        const name = encoded(entry);
        if (!here.has(name) && !found.has(name)) found.set(name, { ...entry, at: snapshot.name });
      }
    }
    this.deleted = sorted([...found.values()]);
  }

  render() {
    if (!this.app.status) return [];
    if (!this.status) {
      return [h("h1", {}, this.title), h("p", { class: "note bad" }, `There is no volume ${this.volume}. `, h("a", { href: "#/" }, "All volumes"))];
    }
    const taken = this.snapshots.find((one) => one.name === this.at)?.at;
    return [
      h("h1", { "data-key": "title" }, `Files of ${this.volume} `, h("span", { class: "tag" }, this.at ? `at ${this.at}` : this.isMirror ? "as the mirror shows it" : "now")),
      this.instants(taken),
      this.crumbs(),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, `${this.problem.message}. `, this.problem.next ? `Next: ${this.problem.next}.` : null),
      this.folder(),
      this.deleted.length > 0 && this.deletedTable(),
      this.chosen && this.versionsPart(),
      this.difference(),
    ];
  }

  /// Which instant is shown, and how to show another one.
  instants(taken) {
    const options = [
      ["", "now"],
      ...this.views.map((name) => [name, `${name} (view of an instant)`]),
      ...this.snapshots.slice(0, INSTANTS).map(({ name, at }) => [name, `${name}, ${stamp(at)}`]),
    ];
    if (this.at && !options.some(([name]) => name === this.at)) options.splice(1, 0, [this.at, this.at]);
    const go = (event) => { location.hash = filesHref(this.volume, event.currentTarget.value || null, this.names); };
    const isView = this.views.includes(this.at);
    return h(
      "div",
      { class: "pick", "data-key": "instants" },
      h("label", { for: "at" }, "Instant"),
      choice("at", options, this.at ?? "", go),
      taken && h("span", { class: "hint" }, `taken ${ago(taken)}`),
      isView && actionButton("End this view …", () => this.endView(), { needs: "DELETE /v1/devices/{device}/views/{view}" }),
      h("a", { class: "button", href: `#/volume/${encodeURIComponent(this.volume)}` }, "Time line"),
    );
  }

  endView() {
    return {
      title: `End the view ${this.volume}@${this.at}`,
      words: () => ["The instant is no longer shown. The history stays as it is."],
      line: () => `cairn history view ${this.volume} --delete ${this.at}`,
      verb: "End it",
      run: async () => {
        await call("DELETE", `/v1/devices/${segment(this.volume)}/views/${segment(this.at)}?writable=false`);
        return "The view has ended.";
      },
      after: () => { location.hash = filesHref(this.volume, null, this.names); },
    };
  }

  crumbs() {
    const parts = this.names.map((name, at) => [readable(name), this.names.slice(0, at + 1)]);
    const all = [[this.at ? `${this.volume}@${this.at}` : this.volume, []], ...parts];
    return h(
      "nav",
      { class: "crumbs", "aria-label": "Folder", "data-key": "crumbs" },
      h("ol", {}, all.map(([text, names], at) => h(
        "li",
        {},
        h("a", { href: filesHref(this.volume, this.at, names), "aria-current": at === all.length - 1 ? "page" : null }, text),
      ))),
    );
  }

  folder() {
    if (this.entries === null) return h("p", { class: "empty", "data-key": "folder" }, "Asking the server …");
    const rows = this.entries.slice(0, this.rows).map((entry) => ({
      key: encoded(entry),
      current: this.chosen === encoded(entry),
      cells: [this.nameOf(entry), entry.kind === "file" ? size(entry.bytes) : "", entry.problem ? h("span", { class: "state bad" }, entry.problem) : stamp(entry.modified_ms), this.buttons(entry)],
    }));
    const more = this.entries.length - rows.length;
    return section(
      "Folder",
      h("div", { class: "files" }, table("Files in this folder", ["Name", ["Size", "n"], "Changed", ""], rows, "the folder is empty")),
      more > 0 && h("p", {}, h("button", { type: "button", onclick: () => { this.rows += ROWS; this.app.draw(); } }, `Show ${Math.min(more, ROWS)} more of ${more}`)),
      more === 0 && this.more && h("p", {}, h("button", { type: "button", onclick: () => this.loadMore() }, "Show more names")),
      h(
        "p",
        { class: "buttons" },
        this.downloadButton("Download this folder (tar)", this.names, { archive: "tar", label: "Download this folder as a tar file" }),
        this.downloadButton("Download this folder (zip)", this.names, { archive: "zip", label: "Download this folder as a zip file" }),
      ),
    );
  }

  nameOf(entry, at = this.at) {
    const names = [...this.names, encoded(entry)];
    if (entry.kind === "directory") return h("a", { href: filesHref(this.volume, at, names) }, `${entry.name}/`);
    return entry.target ? `${entry.name} → ${entry.target}` : entry.name;
  }

  buttons(entry, at = this.at) {
    const names = [...this.names, encoded(entry)];
    const canDownload = entry.kind === "file" || entry.kind === "directory";
    return h(
      "span",
      { class: "row" },
      entry.kind !== "directory" && h("button", { type: "button", "aria-pressed": String(this.chosen === encoded(entry)), "aria-label": `Versions of ${entry.name}`, onclick: () => this.choose(encoded(entry)) }, "Versions"),
      canDownload && this.downloadButton("Download", names, { at, label: `Download ${entry.name}` }),
      at && !this.isMirror && actionButton("Restore …", () => this.restore(names, at), { "aria-label": `Restore ${entry.name} …`, needs: RESTORE }),
    );
  }

  /// Downloads a file, or a folder as a tar or zip file.
  downloadButton(text, names, { at = this.at, archive = "tar", label }) {
    const line = () => `cairn mount ${at ? `${this.volume}@${at}` : this.volume} /mnt`;
    if (whyNot(DOWNLOAD)) return actionButton(text, () => ({ title: label, line }), { needs: DOWNLOAD, "aria-label": label });
    const start = async () => {
      try {
        const { url, file_name: fileName } = await post(`${this.path}/files/downloads`, { ...placeBody(at, names), archive });
        // The browser streams it to the disk, and shows its own progress.
        const link = h("a", { href: url, download: fileName });
        document.body.append(link);
        link.click();
        link.remove();
        say(`The download of ${fileName} begins`);
      } catch (error) {
        this.problem = error;
        this.app.draw();
      }
    };
    return h("button", { type: "button", onclick: start, "aria-label": label }, text);
  }

  /// Restores a file or a folder beside the present one.
  restore(names, at) {
    const path = readablePath(names);
    return {
      title: `Restore ${path} from ${at}`,
      words: async () => {
        const plan = await post(`${this.path}/files/restore/plan`, placeBody(at, names));
        return [
          `This restores it as ${plan.path}, with its content and attributes of ${at}.`,
          plan.beside ? "A file of that name is there now. It stays as it is." : "Nothing is overwritten.",
        ];
      },
      line: () => `cairn mount ${this.volume}@${at} /mnt && cp -a /mnt${shell(path)} DIRECTORY`,
      verb: "Restore",
      run: async () => {
        const job = await jobDone(await post(`${this.path}/files/restore`, placeBody(at, names)));
        const { outcome } = job;
        return [`Restored ${outcome.path}: ${count(outcome.files, "file")}, ${size(outcome.bytes)}.`];
      },
      after: this.refresh,
    };
  }

  deletedTable() {
    const rows = this.deleted.slice(0, ROWS).map((entry) => ({
      key: `deleted-${encoded(entry)}`,
      cells: [this.nameOf(entry, entry.at), entry.kind === "file" ? size(entry.bytes) : "", `@${entry.at}`, this.buttons(entry, entry.at)],
    }));
    return section("Deleted from this folder", h("div", { class: "files" }, table("Names that snapshots have and that are not here now", ["Name", ["Size", "n"], "Last seen", ""], rows)));
  }

  async choose(name) {
    this.chosen = this.chosen === name ? null : name;
    this.versions = null;
    this.app.draw();
    if (this.chosen) await this.loadVersions(null);
  }

  async loadVersions(before) {
    const chosen = this.chosen;
    const query = `${placeQuery(null, [...this.names, chosen])}${before ? `&before=${encodeURIComponent(before)}` : ""}`;
    try {
      const found = await get(`${this.path}/files/versions?${query}`);
      if (this.chosen !== chosen) return;
      this.versions = { list: [...(this.versions?.list ?? []), ...found.versions], more: found.more };
      say(count(this.versions.list.length, "version"));
    } catch (error) {
      this.versions = { list: [], more: null, problem: error.message };
    }
    this.app.draw();
  }

  versionsPart() {
    const { versions, chosen } = this;
    const names = [...this.names, chosen];
    const title = `Versions of ${readable(chosen)}`;
    if (!versions) return section(title, h("p", { class: "empty" }, "Asking the server …"));
    const rows = versions.list.map((version, at) => {
      const { entry } = version;
      const since = version.since && short(version.since);
      const shown = version.at ? (version.since === version.at ? since : `${since} to ${short(version.at)}`) : since ? `${since} to now` : "now";
      return {
        key: `${at} ${shown}`,
        cells: [
          shown,
          entry ? (entry.kind === "file" ? size(entry.bytes) : plain(entry.kind)) : version.problem ? h("span", { class: "state bad" }, version.problem) : "did not exist",
          entry ? stamp(entry.modified_ms) : "",
          entry && h(
            "span",
            { class: "row" },
            entry.kind === "file" && this.downloadButton("Download", names, { at: version.at, label: `Download ${entry.name} of ${shown}` }),
            version.at && !this.isMirror && actionButton("Restore …", () => this.restore(names, version.at), { "aria-label": `Restore ${entry.name} of ${shown} …`, needs: RESTORE }),
          ),
        ],
      };
    });
    return section(
      title,
      versions.problem && h("p", { class: "note bad" }, versions.problem),
      h("div", { class: "files" }, table(title, ["Shown by", ["Size", "n"], "Changed", ""], rows, "no version")),
      versions.more && h("p", {}, h("button", { type: "button", onclick: () => this.loadVersions(versions.more) }, "Look at older snapshots")),
    );
  }

  /// The files that differ between two instants.
  difference() {
    const options = this.snapshots.slice(0, INSTANTS).map(({ name, at }) => [name, `${name}, ${stamp(at)}`]);
    // The maps of a view are not those of the volume.
    if (options.length === 0 || this.views.includes(this.at)) return null;
    // The one before, if there is one.
    const place = options.findIndex(([name]) => name === this.at);
    const from = this.from ?? options[place + 1]?.[0] ?? options[0][0];
    const show = async () => {
      this.changes = { asking: true };
      this.app.draw();
      const [first, last] = this.inOrder(from, this.at);
      const to = last ? `&to=${encodeURIComponent(last)}` : "";
      try {
        this.changes = { first, last, list: await get(`${this.path}/files/diff?from=${encodeURIComponent(first)}${to}`) };
        say(count(this.changes.list.length, "difference"));
      } catch (error) {
        this.changes = { problem: error };
      }
      this.app.draw();
    };
    return h(
      "section",
      { "data-key": "difference", "aria-labelledby": "difference" },
      h("h2", { id: "difference" }, "Differences"),
      h(
        "div",
        { class: "pick" },
        h("label", { for: "from" }, "Compare with"),
        choice("from", options, from, (event) => { this.from = event.currentTarget.value; this.changes = null; this.app.draw(); }),
        h("button", { type: "button", onclick: show }, "Compare"),
      ),
      this.changes && this.changesTable(),
    );
  }

  /// The earlier one of two snapshots first; none is now.
  inOrder(one, other) {
    const place = (name) => this.snapshots.findIndex((snapshot) => snapshot.name === name);
    return other && place(other) > place(one) ? [other, one] : [one, other];
  }

  changesTable() {
    const { asking, problem, list, first, last } = this.changes;
    if (asking) return h("p", { class: "empty" }, "Comparing …");
    if (problem) return h("p", { class: "note bad" }, `${problem.message}. `, problem.next ? `Next: ${problem.next}.` : null);
    const inside = readablePath(this.names).replace(/\/?$/, "/");
    const here = list.filter((change) => (change.path ?? "").startsWith(inside) || (change.from ?? "").startsWith(inside));
    const rows = here.slice(0, ROWS).map((change) => ({
      key: `${change.change} ${change.number} ${change.path}`,
      cells: [
        h("a", { href: filesHref(this.volume, change.change === "deleted" ? first : last ?? null, namesOf(change.path ?? "/", change.path_bytes).slice(0, -1)) }, `${change.path ?? `file ${change.number}`}${change.directory ? "/" : ""}`),
        change.change,
        change.from ?? "",
      ],
    }));
    const words = `${count(here.length, "difference")} below this folder, from ${first} to ${last ?? "now"}${here.length > rows.length ? `; the first ${rows.length} are shown` : ""}. Command: `;
    const line = `cairn snapshot diff ${this.volume}@${first}${last ? ` ${this.volume}@${last}` : ""}`;
    return h("div", {}, h("p", {}, words, h("code", {}, line)), table("Files that differ", ["Path", "Change", "Was"], rows, "nothing differs"));
  }
}

/// A list to choose from, which keeps what is chosen while the view is drawn again.
function choice(id, options, value, onchange) {
  const select = h("select", { id, onchange }, options.map(([name, text]) => h("option", { value: name }, text)));
  select.value = value;
  return h("span", { "data-kept": `${id} ${value} ${options.length}`, "data-key": id }, select);
}

function sorted(entries) {
  const isFolder = (entry) => (entry.kind === "directory" ? 0 : 1);
  return [...entries].sort((one, other) => isFolder(one) - isFolder(other) || ORDER.compare(one.name, other.name));
}

/// The base of a mirror has a long name that means nothing to people.
const short = (name) => (name.startsWith("mirror.") ? "a mirror's base" : name);

/// The snapshots in which deleted files are looked for: the newest first.
function lookedAt(snapshots) {
  if (snapshots.length === 0) return [];
  const now = Date.now();
  const older = LOOK_BACK.map((back) => snapshots.find((one) => one.at <= now - back));
  return [...new Set([snapshots[0], ...older, snapshots[snapshots.length - 1]])].filter(Boolean);
}

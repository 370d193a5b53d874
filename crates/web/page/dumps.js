// Image dumps in buckets and in folders of the server, and the files in them: nothing is restored.

import { get, post, segment } from "./api.js";
import { whyNot } from "./access.js";
import { actionButton } from "./dialog.js";
import { h, say, section, table, withCommands } from "./dom.js";
import { encoded, readable } from "./paths.js";
import { ago, count, plain, size, stamp } from "./words.js";

/// Rows of a table at first, and more of them at each press.
const ROWS = 200;

/// The kinds of places that have dumps: the part of the page's address, the part of the API's, the
/// request of a download, and the words for a person.
const BUCKET = { route: "dumps", api: "buckets", download: "POST /v1/buckets/{bucket}/files/downloads", whole: "bucket" };
const FOLDER = { route: "dump-folders", api: "dump-folders", download: "POST /v1/dump-folders/{folder}/files/downloads", whole: "folder" };

const kindOf = (route) => (route === FOLDER.route ? FOLDER : BUCKET);

/// Characters of the id of a dump that people see.
const ID_SHOWN = 8;

const ORDER = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/// The address of a place, and of a folder in a dump there.
const placeHref = (kind, name) => `#/${kind.route}/${encodeURIComponent(name)}`;
const href = (kind, place, of, names = []) => `${placeHref(kind, place)}/${encodeURIComponent(of)}${names.map((name) => `/${name}`).join("")}`;

/// The buckets and folders, and the dumps of the one that is chosen.
export class DumpsView {
  constructor(app, route, place) {
    this.app = app;
    this.kind = kindOf(route);
    this.place = place;
    this.buckets = null;
    this.folders = null;
    this.dumps = null;
    this.problem = null;
  }

  get title() {
    return this.place ? `Image dumps in ${this.place}` : "Image dumps";
  }

  stop() {
    this.gone = true;
  }

  attach() {}

  update() {
    if (this.begun) return;
    this.begun = true;
    this.load();
  }

  async load() {
    try {
      [this.buckets, this.folders] = await Promise.all([get("/v1/buckets"), get("/v1/dump-folders")]);
      this.app.draw();
      // The store may take its time; the page shows the rest meanwhile.
      if (!this.place) return;
      const found = await get(`/v1/${this.kind.api}/${segment(this.place)}/dumps`);
      // A bucket lists the newest last.
      this.dumps = this.kind === FOLDER ? found : [...found.dumps].reverse();
    } catch (error) {
      this.problem = error;
    }
    if (!this.gone) this.app.draw();
  }

  render() {
    if (!this.app.status) return [];
    const row = (kind, name, more) => ({
      key: name,
      current: kind === this.kind && name === this.place,
      cells: [h("a", { href: placeHref(kind, name) }, name), ...more],
    });
    const buckets = (this.buckets ?? []).map((bucket) => row(BUCKET, bucket.name, [bucket.place]));
    const folders = (this.folders ?? []).map((folder) => row(FOLDER, folder.path, []));
    return [
      h("h1", { "data-key": "title" }, this.title),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, `${this.problem.message}. `, this.problem.next ? withCommands(`Next: ${this.problem.next}.`) : null),
      section("Buckets", this.buckets === null
        ? h("p", { class: "empty" }, "Asking the server …")
        : table("Buckets of this server", ["Name", "Place"], buckets, "none; add one with: cairn bucket add")),
      folders.length > 0 && section("Folders", table("Folders of this server", ["Folder"], folders)),
      this.place && section("Image dumps", this.table()),
      h("p", { class: "hint", "data-key": "note" }, withCommands("The page shows dumps in files of the folders that the server was started with (`cairn serve --dumps DIR`). Others are read by commands, with the rights of their user: `cairn image list FILE /` and `cairn image cat FILE PATH`.")),
    ];
  }

  table() {
    if (!this.dumps) return h("p", { class: "empty" }, this.problem ? "not known" : "Asking the store …");
    if (this.kind === FOLDER) return this.folderTable();
    const rows = this.dumps.map((dump) => ({
      key: dump.id,
      cells: [
        h("a", { href: href(BUCKET, this.place, `${dump.volume_id}@${dump.id}`) }, `${dump.volume}@${dump.snapshot}`),
        dump.level,
        stamp(dump.created_ms),
        ago(dump.created_ms),
        size(dump.bytes),
        dump.id.slice(0, ID_SHOWN),
        dump.locked_until_ms ? `locked until ${stamp(dump.locked_until_ms)}` : "",
      ],
    }));
    return table("Image dumps, the newest first", ["Volume and snapshot", "Level", "Made", ["Age", "n"], ["Size", "n"], "Id", ""], rows, "none; make one with: cairn image dump vol0 --to BUCKET:");
  }

  folderTable() {
    const rows = this.dumps.map((dump) => {
      const lacks = dump.parts - dump.files.length;
      return {
        key: dump.id,
        cells: [
          lacks > 0 ? dump.volume : h("a", { href: href(FOLDER, this.place, dump.id) }, dump.volume),
          dump.files.join(", "),
          dump.level,
          stamp(dump.created_ms),
          ago(dump.created_ms),
          size(dump.bytes),
          lacks > 0 ? h("span", { class: "state bad" }, `${count(lacks, "part")} missing`) : dump.id.slice(0, ID_SHOWN),
        ],
      };
    });
    return table("Image dumps, the newest first", ["Volume", "Files", "Level", "Made", ["Age", "n"], ["Size", "n"], "Id"], rows, `none; make one with: cairn image dump vol0 --to ${this.place}/vol0.cairn`);
  }
}

/// A folder in a dump.
export class DumpFilesView {
  constructor(app, route, place, of, names) {
    this.app = app;
    this.kind = kindOf(route);
    this.place = place;
    this.of = of;
    this.names = names;
    this.entries = null;
    this.more = null;
    this.rows = ROWS;
    this.problem = null;
  }

  get title() {
    return `Files of a dump in ${this.place}`;
  }

  stop() {
    this.gone = true;
  }

  attach() {}

  update() {
    if (this.begun) return;
    this.begun = true;
    this.load(null);
  }

  async load(after) {
    const query = new URLSearchParams({ of: this.of, path_bytes: this.names.join("/") });
    if (after) query.set("after", after);
    try {
      const listing = await get(`/v1/${this.kind.api}/${segment(this.place)}/files?${query}`);
      const all = [...(this.entries ?? []), ...listing.entries];
      const isFolder = (entry) => (entry.kind === "directory" ? 0 : 1);
      this.entries = all.sort((one, other) => isFolder(one) - isFolder(other) || ORDER.compare(one.name, other.name));
      this.more = listing.more;
      say(count(this.entries.length, "name"));
    } catch (error) {
      this.problem = error;
      this.entries ??= [];
    }
    if (!this.gone) this.app.draw();
  }

  render() {
    if (!this.app.status) return [];
    return [
      h("h1", { "data-key": "title" }, `Files of a dump in ${this.place} `, h("span", { class: "tag" }, shown(this.of))),
      h("p", { class: "buttons", "data-key": "up" }, h("a", { class: "button", href: placeHref(this.kind, this.place) }, `All dumps of the ${this.kind.whole}`)),
      this.crumbs(),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, `${this.problem.message}. `, this.problem.next ? withCommands(`Next: ${this.problem.next}.`) : null),
      this.folder(),
    ];
  }

  crumbs() {
    const all = [["the dump", []], ...this.names.map((name, at) => [readable(name), this.names.slice(0, at + 1)])];
    return h(
      "nav",
      { class: "crumbs", "aria-label": "Folder", "data-key": "crumbs" },
      h("ol", {}, all.map(([text, names], at) => h(
        "li",
        {},
        h("a", { href: href(this.kind, this.place, this.of, names), "aria-current": at === all.length - 1 ? "page" : null }, text),
      ))),
    );
  }

  folder() {
    if (this.entries === null) return h("p", { class: "empty", "data-key": "folder" }, "Asking the store …");
    const rows = this.entries.slice(0, this.rows).map((entry) => {
      const names = [...this.names, encoded(entry)];
      const name = entry.kind === "directory" ? h("a", { href: href(this.kind, this.place, this.of, names) }, `${entry.name}/`) : entry.target ? `${entry.name} → ${entry.target}` : entry.name;
      const canDownload = entry.kind === "file" || entry.kind === "directory";
      return {
        key: encoded(entry),
        cells: [
          name,
          entry.kind === "file" ? size(entry.bytes) : entry.kind === "directory" ? "" : plain(entry.kind),
          entry.problem ? h("span", { class: "state bad" }, entry.problem) : stamp(entry.modified_ms),
          canDownload && this.download("Download", names, "tar", `Download ${entry.name}`),
        ],
      };
    });
    const more = this.entries.length - rows.length;
    return section(
      "Folder",
      h("div", { class: "files" }, table("Files in this folder", ["Name", ["Size", "n"], "Changed", ""], rows, "the folder is empty")),
      more > 0 && h("p", {}, h("button", { type: "button", onclick: () => { this.rows += ROWS; this.app.draw(); } }, `Show ${Math.min(more, ROWS)} more of ${more}`)),
      more === 0 && this.more && h("p", {}, h("button", { type: "button", onclick: () => { this.rows += 1000; this.load(this.more); } }, "Show more names")),
      h(
        "p",
        { class: "buttons" },
        this.download("Download this folder (tar)", this.names, "tar", "Download this folder as a tar file"),
        this.download("Download this folder (zip)", this.names, "zip", "Download this folder as a zip file"),
      ),
    );
  }

  download(text, names, archive, label) {
    const dump = this.kind === FOLDER ? `${this.place}/FILE` : `${this.place}:${shown(this.of)}`;
    const line = () => `cairn image extract ${dump} /${names.map(readable).join("/")} --to DIRECTORY`;
    const needs = this.kind.download;
    if (whyNot(needs)) return actionButton(text, () => ({ title: label, line }), { needs, "aria-label": label });
    const start = async () => {
      try {
        const place = { of: this.of, at: null, path: "", path_bytes: names.join("/"), archive };
        const { url, file_name: fileName } = await post(`/v1/${this.kind.api}/${segment(this.place)}/files/downloads`, place);
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
}

/// A dump by a shorter id, as commands take it as well.
function shown(of) {
  const [volume, dump] = of.split("@");
  return dump ? `${volume}@${dump.slice(0, ID_SHOWN)}` : of;
}

// Image dumps in buckets, and the files in them: nothing is restored.

import { get, post, segment } from "./api.js";
import { whyNot } from "./access.js";
import { actionButton } from "./dialog.js";
import { h, say, section, table, withCommands } from "./dom.js";
import { encoded, readable } from "./paths.js";
import { ago, count, plain, size, stamp } from "./words.js";

/// Rows of a table at first, and more of them at each press.
const ROWS = 200;

/// The request of a download here.
const DOWNLOAD = "POST /v1/buckets/{bucket}/files/downloads";

/// Characters of the id of a dump that people see.
const ID_SHOWN = 8;

const ORDER = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

/// The address of a folder in a dump.
const href = (bucket, of, names = []) => `#/dumps/${encodeURIComponent(bucket)}/${encodeURIComponent(of)}${names.map((name) => `/${name}`).join("")}`;

/// The buckets, and the dumps of the one that is chosen.
export class DumpsView {
  constructor(app, bucket) {
    this.app = app;
    this.bucket = bucket;
    this.buckets = null;
    this.dumps = null;
    this.problem = null;
  }

  get title() {
    return this.bucket ? `Image dumps in ${this.bucket}` : "Image dumps";
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
      this.buckets = await get("/v1/buckets");
      this.app.draw();
      // The store may take its time; the page shows the rest meanwhile.
      if (this.bucket) this.dumps = await get(`/v1/buckets/${segment(this.bucket)}/dumps`);
    } catch (error) {
      this.problem = error;
    }
    if (!this.gone) this.app.draw();
  }

  render() {
    if (!this.app.status) return [];
    const buckets = (this.buckets ?? []).map((bucket) => ({
      key: bucket.name,
      current: bucket.name === this.bucket,
      cells: [h("a", { href: `#/dumps/${encodeURIComponent(bucket.name)}` }, bucket.name), bucket.place],
    }));
    return [
      h("h1", { "data-key": "title" }, this.title),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, `${this.problem.message}. `, this.problem.next ? withCommands(`Next: ${this.problem.next}.`) : null),
      section("Buckets", this.buckets === null
        ? h("p", { class: "empty" }, "Asking the server …")
        : table("Buckets of this server", ["Name", "Place"], buckets, "none; add one with: cairn bucket add")),
      this.bucket && section("Image dumps", this.table()),
      h("p", { class: "hint", "data-key": "note" }, withCommands("Dumps in files are read by commands, with the rights of their user: `cairn image list FILE /` and `cairn image cat FILE PATH`.")),
    ];
  }

  table() {
    if (!this.dumps) return h("p", { class: "empty" }, this.problem ? "not known" : "Asking the store …");
    const rows = [...this.dumps.dumps].reverse().map((dump) => ({
      key: dump.id,
      cells: [
        h("a", { href: href(this.bucket, `${dump.volume_id}@${dump.id}`) }, `${dump.volume}@${dump.snapshot}`),
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
}

/// A folder in a dump.
export class DumpFilesView {
  constructor(app, bucket, of, names) {
    this.app = app;
    this.bucket = bucket;
    this.of = of;
    this.names = names;
    this.entries = null;
    this.more = null;
    this.rows = ROWS;
    this.problem = null;
  }

  get title() {
    return `Files of a dump in ${this.bucket}`;
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
      const listing = await get(`/v1/buckets/${segment(this.bucket)}/files?${query}`);
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
      h("h1", { "data-key": "title" }, `Files of a dump in ${this.bucket} `, h("span", { class: "tag" }, shown(this.of))),
      h("p", { class: "buttons", "data-key": "up" }, h("a", { class: "button", href: `#/dumps/${encodeURIComponent(this.bucket)}` }, "All dumps of the bucket")),
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
        h("a", { href: href(this.bucket, this.of, names), "aria-current": at === all.length - 1 ? "page" : null }, text),
      ))),
    );
  }

  folder() {
    if (this.entries === null) return h("p", { class: "empty", "data-key": "folder" }, "Asking the store …");
    const rows = this.entries.slice(0, this.rows).map((entry) => {
      const names = [...this.names, encoded(entry)];
      const name = entry.kind === "directory" ? h("a", { href: href(this.bucket, this.of, names) }, `${entry.name}/`) : entry.target ? `${entry.name} → ${entry.target}` : entry.name;
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
    const line = () => `cairn image extract ${this.bucket}:${shown(this.of)} /${names.map(readable).join("/")} --to DIRECTORY`;
    if (whyNot(DOWNLOAD)) return actionButton(text, () => ({ title: label, line }), { needs: DOWNLOAD, "aria-label": label });
    const start = async () => {
      try {
        const place = { of: this.of, at: null, path: "", path_bytes: names.join("/"), archive };
        const { url, file_name: fileName } = await post(`/v1/buckets/${segment(this.bucket)}/files/downloads`, place);
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

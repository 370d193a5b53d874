// What clients can open and who may, and the servers that may mirror volumes of this one.

import { get } from "./api.js";
import { command, h, section, table, withCommands } from "./dom.js";
import { ago, duration, plain, size } from "./words.js";

export class Exports {
  constructor(app) {
    this.app = app;
  }

  get title() {
    return "Exports";
  }

  stop() {}

  update() {}

  attach() {}

  render() {
    const { status } = this.app;
    if (!status) return [];
    const rows = status.exports.map((one) => ({
      key: one.name,
      cells: [
        one.name,
        size(one.size_bytes),
        one.closed ? "closed" : one.read_only ? "read-only" : "read-write",
        String(one.sessions.length),
        allowed(one.access),
        size(one.totals.read_bytes),
        size(one.totals.written_bytes),
        one.uris.slice(0, 1).map(command),
      ],
    }));
    const columns = ["Name", ["Size", "n"], "Mode", ["Sessions", "n"], "iSCSI initiators", ["Read", "n"], ["Written", "n"], "URI"];
    return [
      h("h1", { "data-key": "title" }, "Exports"),
      h("p", { "data-key": "where" }, `NBD clients connect to ${status.nbd.join(", ") || "no address"}; iSCSI initiators to ${status.iscsi.join(", ") || "no address (off)"}.`),
      section("What clients can open", table("Exports", columns, rows, "none; make a LUN with: cairn lun create vol0/db --size 10G")),
      h("p", { "data-key": "change" }, withCommands("To change who may use one: `cairn export set VOLUME/LUN --network 10.0.0.0/24`")),
    ];
  }
}

function allowed(access) {
  const parts = [
    access.initiators.length > 0 ? access.initiators.join(", ") : null,
    access.networks.length > 0 ? `from ${access.networks.join(", ")}` : null,
    access.chap ? `CHAP as ${access.chap}` : null,
  ].filter(Boolean);
  return parts.length > 0 ? parts.join("; ") : "any";
}

export class Peers {
  constructor(app) {
    this.app = app;
    this.peers = null;
    this.problem = null;
  }

  get title() {
    return "Peers";
  }

  stop() {}

  attach() {}

  async update() {
    if (Date.now() - (this.asked ?? 0) < 5000) return;
    this.asked = Date.now();
    try {
      this.peers = await get("/v1/peers");
      this.problem = null;
    } catch (error) {
      this.problem = error;
    }
    this.app.draw();
  }

  render() {
    const { status } = this.app;
    if (!status) return [];
    const rows = (this.peers ?? []).map((peer) => ({
      key: peer.id,
      cells: [
        peer.id,
        plain(peer.state),
        peer.volume ?? "all volumes",
        peer.fingerprint ? h("code", {}, peer.fingerprint.slice(0, 23), "…") : "-",
        ago(peer.invited_ms),
        peer.state === "invited" ? duration(Math.max(0, peer.expires_ms - Date.now())) : "-",
        peer.pinned_ms ? ago(peer.pinned_ms) : "-",
      ],
    }));
    const columns = ["Id", "State", "May mirror", "Certificate", ["Invited", "n"], ["Expires in", "n"], ["First came", "n"]];
    return [
      h("h1", { "data-key": "title" }, "Peers"),
      this.problem && h("p", { class: "note bad", "data-key": "problem" }, this.problem.message),
      h("p", { "data-key": "where" }, status.mirror ? `Mirrors connect to ${[status.mirror, ...status.mirror_further].join(", ")}.` : "This server takes no mirrors: it runs with --mirror off."),
      section("Servers that may mirror from here", this.peers === null ? h("p", { class: "empty" }, "Asking …") : table("Peers", columns, rows)),
      h("p", { "data-key": "invite" }, withCommands("To invite one: `cairn peer invite`. To revoke one: `cairn peer revoke ID`.")),
      h("p", { class: "hint", "data-key": "own" }, "Certificate of this server: ", h("code", {}, status.fingerprint)),
    ];
  }
}

// The source's side of mirrors: the servers that follow a volume here, what a lag would cost, and the
// way back after a failover.

import { call, jobDone, post, segment } from "./api.js";
import { actionButton } from "./dialog.js";
import { h, section, table } from "./dom.js";
import { Plan } from "./price.js";
import { ago, count, duration, interval, size, stamp } from "./words.js";

/// The mirrors of a volume, as its source knows them.
export class SourceSide {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.plan = new Plan(app, name);
  }

  update() {
    this.plan.update();
  }

  get followers() {
    return (this.app.status?.followers ?? []).filter((follower) => follower.volume === this.name);
  }

  /// Sections of a view.
  parts() {
    const { followers } = this;
    const rpo = followers.map((follower) => follower.rpo_ms).find(Boolean) ?? null;
    return [
      section("Mirrored by", this.table(followers)),
      this.plan.lags(rpo),
    ];
  }

  table(followers) {
    const rows = followers.map((follower) => ({
      key: follower.name,
      cells: [
        follower.peer ?? follower.name.slice(0, 16),
        follower.departed
          ? h("span", { class: "state bad" }, "failed over")
          : follower.transferring ? "transferring" : follower.over_rpo ? h("span", { class: "state bad" }, "behind") : "idle",
        follower.lag_ms === 0 ? "0" : duration(follower.lag_ms),
        interval(follower.rpo_ms),
        size(follower.lag_bytes),
        follower.heard_ms ? ago(follower.heard_ms) : "-",
        h("span", { class: "row" }, this.actions(follower)),
      ],
    }));
    const columns = ["Mirror", "State", ["Lag", "n"], ["RPO", "n"], ["Changes", "n"], ["Heard", "n"], ""];
    return table("Mirrors of this volume", columns, rows, "no server mirrors this volume; invite one with: cairn peer invite");
  }

  actions(follower) {
    if (follower.departed) {
      return [
        actionButton("Rehearse the way back …", () => followAgain(this.app, this.name, follower.name, "rehearse"), { needs: "POST /v1/mirrors/{mirror}/divergence" }),
        actionButton("Follow it …", () => followAgain(this.app, this.name, follower.name, "resync"), { danger: true, needs: "POST /v1/mirrors/{mirror}/resync" }),
        actionButton("Fail back …", () => followAgain(this.app, this.name, follower.name, "failback"), { danger: true, needs: "POST /v1/mirrors/{mirror}/failback" }),
      ];
    }
    return [
      actionButton("Let it take over …", () => this.allow(follower), { needs: "POST /v1/volumes/{volume}/allow-reverse" }),
      actionButton("Forget …", () => this.forget(follower), { danger: true, needs: "DELETE /v1/volumes/{volume}/followers/{follower}" }),
    ];
  }

  allow(follower) {
    const { name } = this;
    return {
      title: `Let the mirror of ${name} take over`,
      words: () => ["For 15 minutes, this mirror may become the source. Its administrator then changes the roles, which ends the sessions of the clients here."],
      line: () => `cairn mirror allow-reverse ${name} --mirror ${follower.name}`,
      verb: "Let it take over",
      run: async () => {
        const allowed = await post(`/v1/volumes/${segment(name)}/allow-reverse`, { mirror: follower.name, for_ms: null });
        return [`The mirror may take over until ${stamp(allowed.until_ms)}.`, `Next, on its server: \`cairn mirror reverse ${name}\``];
      },
      after: () => this.app.poll(),
    };
  }

  forget(follower) {
    const { name } = this;
    return {
      title: `Forget the mirror ${follower.peer ?? follower.name} of ${name}`,
      words: () => [
        "This releases all that is kept for it. If it comes again, it compares all blocks, or starts with a full copy.",
        follower.lag_bytes ? `It lacks ${size(follower.lag_bytes)} of changes.` : null,
      ],
      typed: name,
      line: () => `cairn mirror forget ${name} ${follower.name}`,
      verb: "Forget it",
      run: async () => {
        await call("DELETE", `/v1/volumes/${segment(name)}/followers/${segment(follower.name)}`);
        return "The mirror is forgotten.";
      },
      after: () => this.app.poll(),
    };
  }
}

const WAYS = {
  rehearse: { title: "Rehearsal: follow the other side again", command: "resync", verb: undefined },
  resync: { title: "Follow the other side", command: "resync", verb: "Follow it" },
  failback: { title: "Fail back", command: "failback", verb: "Fail back" },
};

/// Makes a volume follow the other side after a failover, or says what that would discard.
export function followAgain(app, name, mirror, way) {
  const { title, command, verb } = WAYS[way];
  const path = `/v1/mirrors/${segment(name)}`;
  const which = mirror ? ` --mirror ${mirror}` : "";
  return {
    title: `${title}: ${name}`,
    words: async () => {
      const divergence = await post(`${path}/divergence`, { mirror });
      return [
        verb ? null : "Nothing is done. It would do this:",
        `1. ${name} follows ${divergence.volume} at ${divergence.address}, from ${divergence.common ?? "a comparison of all blocks"}${divergence.common_ms ? `, of ${stamp(divergence.common_ms)}` : ""}.`,
        divergence.diverged
          ? `2. Discarded: ${size(divergence.lost_bytes)} that only this side has${divergence.snapshots.length > 0 ? `, and ${count(divergence.snapshots.length, "snapshot")}` : ""}.`
          : "2. Nothing is discarded: the other side has all that was written here.",
        way === "failback" ? "3. Then the roles change: this side takes writes again, and the other side follows it." : null,
        divergence.other_takes_writes || divergence.other_is_mirror ? null : "The other side does not take writes, and can't be followed now.",
        divergence.diverged ? `To keep a copy first: \`cairn mirror ${command} ${name}${which} --spill FILE\`` : null,
      ];
    },
    typed: verb ? name : undefined,
    line: () => `cairn mirror ${command} ${name}${which}${verb ? " --discard" : " -n"}`,
    verb,
    run: async () => {
      await jobDone(await post(`${path}/${command}`, { mirror, discard: true }));
      return way === "failback" ? `${name} takes writes again.` : `${name} follows the other side.`;
    },
    after: () => app.poll(),
  };
}

//! PostgreSQL on a disk with a history. A disk with a database is adopted where it is, a table is
//! dropped under load, and views and clones find the last instant before that. The disk is
//! reverted, undone and reverted again, and the table is present with every transaction that was
//! acknowledged before. After a release it is a plain disk with the last served content.
//!
//! The server is killed under the load, and in the middle of each command.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{Checksum, Rng};
use serde_json::Value;

use crate::mount::{Mounted, Taken, cannot_mount};
use crate::postgres::{Ledger, Load, Postgres, programs};
use crate::program::{run as run_program, wait_until};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

const VOLUME_BYTES: u64 = 2 << 30;
/// Of the disk, and of a short run's.
const DISK_BYTES: u64 = 512 << 20;
const SHORT_DISK_BYTES: u64 = 256 << 20;
/// How each round's disk remembers.
const PLACEMENTS: [&str; 5] = ["hybrid", "logging", "checkpointing", "split-down-stream", "split-stream"];
/// The size of a read for a digest.
const PIECE: u32 = 4 << 20;
/// The export of the disk.
const DEVICE: &str = "disk0";

fn disk_bytes(world: &World) -> u64 {
    if world.short { SHORT_DISK_BYTES } else { DISK_BYTES }
}

/// The wall clock as `--at` takes it.
fn now() -> Result<String> {
    Ok(run_program(Command::new("date").args(["-u", "+%Y-%m-%d %H:%M:%S.%NZ"]))?.trim().to_owned())
}

/// Rounds, each with a placement, a granularity and an origin of its own: 20 are all of them.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    if programs().is_none() {
        return Ok(Verdict::without("postgresql"));
    }
    // The database's user passes through.
    std::fs::set_permissions(&world.folder, std::fs::Permissions::from_mode(0o755))?;
    let cairn = Cairn::start(world, "rewound", &["--mirror", "off"])?;
    cairn.make_lun(VOLUME_BYTES, disk_bytes(world))?;
    if let Some(verdict) = cannot_mount(world, &cairn)? {
        return Ok(verdict);
    }
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut walk = Walk::new(world, &cairn, round);
        let outcome = walk.all(&mut facts);
        outcome.with_context(|| format!("round {round}: {} {}", walk.placement, walk.granularity))?;
        facts.add("rounds", 1);
    }
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// A round.
struct Walk<'a> {
    world: &'a World,
    cairn: &'a Cairn,
    rng: Rng,
    placement: &'static str,
    granularity: &'static str,
    /// None: the disk is a LUN.
    image: Option<PathBuf>,
    history: PathBuf,
}

impl<'a> Walk<'a> {
    fn new(world: &'a World, cairn: &'a Cairn, round: u32) -> Self {
        let placement = PLACEMENTS[round as usize % PLACEMENTS.len()];
        let image = (round % 2 == 1).then(|| world.folder.join(format!("disk{round}.img")));
        let granularity = if matches!(round % 4, 1 | 2) { "1s" } else { "every-write" };
        let history = world.folder.join(format!("history{round}"));
        Self { world, cairn, rng: world.rng(round), placement, granularity, image, history }
    }

    fn all(&mut self, facts: &mut Facts) -> Result<()> {
        let ledger = Arc::new(Ledger::new(self.world)?);
        let before = self.make_database(&ledger)?;
        self.adopt(&before, facts)?;
        let site = self.attach(DEVICE, "rewound")?;
        let site = if self.rng.one_in(2) { self.kill_under_load(site, &ledger, facts)? } else { site };
        let (instants, promised) = self.drop_table(site, &ledger)?;
        self.look(&instants, facts)?;
        self.revert(&instants.before, facts)?;

        let (mounted, mut postgres) = self.attach(DEVICE, "rewound")?;
        facts.add("rows found", postgres.compare(&ledger, &promised)?);
        postgres.check_indexes()?;
        facts.add("transactions brought back", promised.len() as u64);
        // The disk is one that is worked on, also while it is copied in the background.
        let load = postgres.load(self.world, &ledger)?;
        wait_for(&ledger, &load, 20)?;
        load.end();
        let promised: Vec<u64> = [promised, postgres_rows(&postgres)?].concat();
        postgres.stop()?;
        mounted.detach()?;
        self.release(facts)?;

        let (mounted, mut postgres) = self.attach_plain(Taken::AfterKill)?;
        postgres.compare(&ledger, &promised).context("after the release")?;
        postgres.stop()?;
        mounted.detach()?;
        std::fs::remove_file(&self.history)?;
        self.image.as_ref().map_or(Ok(()), std::fs::remove_file)?;
        Ok(())
    }

    /// A disk with a database and without a history; returns its digest.
    fn make_database(&self, ledger: &Arc<Ledger>) -> Result<Checksum> {
        if let Some(image) = &self.image {
            std::fs::File::create_new(image)?.set_len(disk_bytes(self.world))?;
        }
        let (mounted, mut postgres) = self.attach_plain(Taken::Empty)?;
        postgres.make_tables()?;
        let load = postgres.load(self.world, ledger)?;
        wait_for(ledger, &load, 5)?;
        load.end();
        postgres.stop()?;
        mounted.detach()?;
        self.digest_plain()
    }

    /// The disk without its history.
    fn attach_plain(&self, taken: Taken) -> Result<(Mounted, Postgres)> {
        let mounted = match &self.image {
            Some(image) => Mounted::attach_file(self.world, image, taken)?,
            None => Mounted::attach(self.world, self.cairn, "vol0/db", taken)?,
        };
        let postgres = Postgres::start(self.world, &mounted.folder, "plain", taken == Taken::Empty)?;
        Ok((mounted, postgres))
    }

    fn digest_plain(&self) -> Result<Checksum> {
        match &self.image {
            Some(image) => Ok(Checksum::of(&std::fs::read(image)?)),
            None => self.digest("vol0/db"),
        }
    }

    /// Of all that an export shows.
    fn digest(&self, export: &str) -> Result<Checksum> {
        let mut disk = self.cairn.disk(export)?;
        let length = disk_bytes(self.world);
        let mut bytes = Vec::with_capacity(length as usize);
        for offset in (0..length).step_by(PIECE as usize) {
            bytes.extend_from_slice(&disk.read(offset, PIECE)?);
        }
        disk.disconnect()?;
        Ok(Checksum::of(&bytes))
    }

    /// Mounts an export as after a power cut, and starts the database.
    fn attach(&self, export: &str, name: &str) -> Result<(Mounted, Postgres)> {
        let mounted = Mounted::attach(self.world, self.cairn, export, Taken::AfterKill)?;
        let postgres = Postgres::start(self.world, &mounted.folder, name, false)?;
        Ok((mounted, postgres))
    }

    /// Runs a command that must succeed; sometimes the server is killed in the middle of it first,
    /// and restarted. `is_sound` checks the state after each kill, and `is_done` decides for a
    /// command that was refused afterwards whether the earlier attempt had completed.
    fn insist(
        &mut self,
        arguments: &[&str],
        facts: &mut Facts,
        is_sound: impl Fn(&Self) -> Result<()>,
        is_done: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        while self.rng.one_in(if self.world.short { 4 } else { 2 }) {
            // Most of them early, some late.
            let longest = 1 << (8 + self.rng.below(12));
            let moment = Duration::from_micros(self.rng.below(longest));
            std::thread::scope(|scope| -> Result<()> {
                let killer = scope.spawn(|| {
                    std::thread::sleep(moment);
                    self.cairn.kill()
                });
                // Its outcome does not matter.
                let _ = self.cairn.command(arguments).output()?;
                killer.join().map_err(|_| anyhow::anyhow!("the killer panicked"))?
            })?;
            facts.add("kills", 1 + self.cairn.serve_after_stumbling(&mut self.rng)?);
            facts.add("kills in a command", 1);
            is_sound(self).with_context(|| format!("killed in {arguments:?}"))?;
        }
        let mut said = Value::Null;
        // A client that was ended is a session for a moment longer.
        wait_until("its sessions have ended", || {
            said = self.cairn.said(arguments)?;
            Ok(said["error"] != "busy")
        })?;
        if said["message_type"] == "error" && !is_done(&said) {
            bail!("{arguments:?}: {said}");
        }
        Ok(said)
    }

    fn adopt(&mut self, before: &Checksum, facts: &mut Facts) -> Result<()> {
        let image = self.image.as_ref().map(|image| image.display().to_string());
        let origin = image.unwrap_or_else(|| "lun:vol0/db".to_owned());
        let (history, placement, granularity) =
            (self.history.display().to_string(), self.placement, self.granularity);
        let adopt = ["device", "adopt", DEVICE, "--origin", &origin, "--history", &history];
        let how = ["--placement", placement, "--granularity", granularity, "--window", "24h"];
        let command = [&adopt[..], &how, &["--history-size", "2G"]].concat();
        self.insist(&command, facts, |_| Ok(()), |said| said["error"] == "taken")?;
        ensure!(self.digest(DEVICE)? == *before, "it was adopted with another content");
        Ok(())
    }

    /// The disk comes back with every transaction that was acknowledged.
    fn kill_under_load(
        &mut self,
        (mounted, mut postgres): (Mounted, Postgres),
        ledger: &Arc<Ledger>,
        facts: &mut Facts,
    ) -> Result<(Mounted, Postgres)> {
        let load = postgres.load(self.world, ledger)?;
        wait_for(ledger, &load, 1 + self.rng.below(if self.world.short { 20 } else { 200 }))?;
        self.cairn.kill()?;
        load.end();
        postgres.end_at_once()?;
        mounted.detach()?;
        facts.add("kills", 1 + self.cairn.serve_after_stumbling(&mut self.rng)?);
        facts.add("kills under load", 1);
        let site = self.attach(DEVICE, "rewound")?;
        site.1.compare(ledger, &ledger.acknowledged())?;
        Ok(site)
    }

    /// A table is dropped under load. Returns instants, and the transactions that had been
    /// acknowledged before that.
    fn drop_table(
        &mut self,
        (mounted, mut postgres): (Mounted, Postgres),
        ledger: &Arc<Ledger>,
    ) -> Result<(Instants, Vec<u64>)> {
        let load = postgres.load(self.world, ledger)?;
        wait_for(ledger, &load, 20 + self.rng.below(if self.world.short { 50 } else { 1000 }))?;
        self.wait_for_an_instant()?;
        let early = now()?;
        self.cairn.json(&["history", "mark", DEVICE, "good"])?;
        wait_for(ledger, &load, 10)?;
        let promised = ledger.acknowledged();
        self.wait_for_an_instant()?;
        let before = now()?;
        postgres.sql("drop table acknowledged")?;
        self.wait_for_an_instant()?;
        let after = now()?;
        load.end();
        postgres.end_at_once()?;
        mounted.detach()?;
        Ok((Instants { early, before, after }, promised))
    }

    /// Everything acknowledged until now is in a kept instant.
    fn wait_for_an_instant(&self) -> Result<()> {
        let start = Instant::now();
        let each = Duration::from_millis(if self.granularity == "1s" { 1100 } else { 0 });
        wait_until("time passes", || Ok(start.elapsed() >= each))
    }

    /// The steps of an administrator who knows only that the table is gone.
    fn look(&mut self, instants: &Instants, facts: &mut Facts) -> Result<()> {
        let looks = [
            ("early", ["--at", &instants.early], true),
            ("good", ["--mark", "good"], true),
            ("after", ["--at", &instants.after], false),
            ("before", ["--at", &instants.before], true),
        ];
        for (name, at, expected) in looks.into_iter().skip(if self.world.short { 2 } else { 0 }) {
            let (view, clone) = (format!("{name}-seen"), name.to_owned());
            let taken = |said: &Value| said["error"] == "taken";
            for (kind, shown) in [("view", &view), ("clone", &clone)] {
                let command = [&["history", kind, DEVICE][..], &at, &["--as", shown]].concat();
                self.insist(&command, facts, |_| Ok(()), taken)?;
            }
            let (export, of_view) = (format!("{DEVICE}@{name}"), format!("{DEVICE}@{view}"));
            let seen = self.digest(&of_view)?;
            ensure!(self.digest(&export)? == seen, "a clone begins as another disk than the view of {at:?}");
            let (mounted, mut postgres) = self.attach(&export, name)?;
            let found = postgres.sql("select to_regclass('acknowledged') is not null")?.trim() == "t";
            postgres.stop()?;
            mounted.detach()?;
            ensure!(found == expected, "at {at:?} the table is there: {found}");
            ensure!(
                self.digest(&of_view)? == seen,
                "what is written to a clone is seen in the view of {at:?}"
            );
            facts.add("clones that came up", 1);
            let gone = |said: &Value| said["error"] == "not-found";
            let delete = ["history", "clone", DEVICE, "--delete", &clone, "--yes"];
            self.insist(&delete, facts, |_| Ok(()), gone)?;
            if name != "before" {
                let delete = ["history", "view", DEVICE, "--delete", &view, "--yes"];
                self.insist(&delete, facts, |_| Ok(()), gone)?;
            }
        }
        Ok(())
    }

    /// Back to an instant, from there to the earlier state, and back again, under a client that
    /// reconnects.
    fn revert(&mut self, at: &str, facts: &mut Facts) -> Result<()> {
        let (present, target) = (self.digest(DEVICE)?, self.digest(&format!("{DEVICE}@before-seen"))?);
        let mut connected = self.cairn.disk(DEVICE)?;
        connected.read(0, PIECE)?;
        let either = |walk: &Self| {
            let found = walk.digest(DEVICE)?;
            ensure!(found == present || found == target, "it is neither what it was nor what it was to be");
            Ok(())
        };
        let never = |_: &Value| false;
        let revert = ["history", "revert", DEVICE, "--at", at, "--yes"];
        self.insist(&revert, facts, either, never)?;
        ensure!(connected.read(0, PIECE).is_err(), "the session of a client goes on over a revert");
        ensure!(self.digest(DEVICE)? == target, "it is not the disk of {at}");
        ensure!(self.digest(&format!("{DEVICE}@before-seen"))? == target, "the view is another one");
        // Where a kill was too late, others were made after it.
        let undo = ["history", "revert", DEVICE, "--mark", "before-revert-1", "--yes"];
        self.insist(&undo, facts, either, never)?;
        ensure!(self.digest(DEVICE)? == present, "it is not undone");
        self.insist(&revert, facts, either, never)?;
        ensure!(self.digest(DEVICE)? == target, "it is not the disk of {at}");
        facts.add("reverts", 3);
        let status = self.cairn.json(&["history", "status", DEVICE])?;
        ensure!(status["views"].as_array().is_some_and(|views| views.len() == 1), "{status}");
        Ok(())
    }

    /// Leaves a plain disk with the last served content, and nothing else.
    fn release(&mut self, facts: &mut Facts) -> Result<()> {
        let served = self.digest(DEVICE)?;
        let delete = ["history", "view", DEVICE, "--delete", "before-seen", "--yes"];
        self.insist(&delete, facts, |_| Ok(()), |said| said["error"] == "not-found")?;
        let unchanged = |walk: &Self| {
            let list = walk.cairn.said(&["device", "list"])?;
            let is_there = list.as_array().is_some_and(|list| !list.is_empty());
            let found = if is_there { walk.digest(DEVICE)? } else { walk.digest_plain()? };
            ensure!(found == served, "its content is another one");
            Ok(())
        };
        self.insist(&["device", "release", DEVICE, "--yes"], facts, unchanged, |said| {
            said["error"] == "not-found"
        })?;
        ensure!(self.digest_plain()? == served, "what is left is not what was served last");
        let left = std::fs::read_dir(self.cairn.data.join("devices"))?.flatten().collect::<Vec<_>>();
        ensure!(left.is_empty(), "of a device that was released there is still {left:?}");
        Ok(())
    }
}

/// Times of a walk.
struct Instants {
    early: String,
    before: String,
    after: String,
}

/// The existing rows.
fn postgres_rows(postgres: &Postgres) -> Result<Vec<u64>> {
    Ok(postgres.sql("select id from acknowledged")?.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// Waits until `more` further transactions are acknowledged.
fn wait_for(ledger: &Ledger, load: &Load, more: u64) -> Result<()> {
    let wanted = ledger.count() + more;
    wait_until("transactions are acknowledged", || {
        ensure!(!load.is_broken(), "a client of the database failed; see psql.log");
        Ok(ledger.count() >= wanted)
    })
}

//! PostgreSQL through an iSCSI initiator (qemu's), on disks with copy-on-write and with
//! redirect-on-write history. The server is killed under it and the initiator continues by itself.
//! Then server, initiator and database are killed together, and every acknowledged transaction is
//! present. A clone of a mark has the database of that moment. Reports pgbench's rate on each, and
//! on a LUN without a history.

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::Rng;

use crate::mount::{Mounted, Taken, cannot_mount};
use crate::postgres::{Ledger, Load, Postgres, programs};
use crate::program::{is_installed, wait_until};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

const VOLUME_BYTES: u64 = 4 << 30;
const LUN_SIZE: &str = "512M";
const DAEMON: &str = "qemu-storage-daemon";

/// A disk of a kind.
struct Kind {
    name: &'static str,
    /// None: it is a LUN that remembers nothing.
    placement: Option<&'static str>,
    /// pgbench's rates on it, before and after the first mark.
    rates: [&'static str; 2],
}

static KINDS: [Kind; 3] = [
    Kind {
        name: "plain",
        placement: None,
        rates: ["transactions a second, plain", "transactions a second, plain again"],
    },
    Kind {
        name: "cow",
        placement: Some("checkpointing"),
        rates: ["transactions a second, cow before a mark", "transactions a second, cow after it"],
    },
    Kind {
        name: "row",
        placement: Some("logging"),
        rates: ["transactions a second, row before a mark", "transactions a second, row after it"],
    },
];

/// A disk with a database.
struct Disk<'a> {
    kind: &'static Kind,
    world: World,
    cairn: &'a Cairn,
    portal: &'a str,
    ledger: Arc<Ledger>,
    // Dropped from top to bottom: each depends on the next.
    postgres: Option<Postgres>,
    mounted: Option<Mounted>,
}

impl<'a> Disk<'a> {
    fn new(world: &World, cairn: &'a Cairn, portal: &'a str, kind: &'static Kind) -> Result<Self> {
        let name = kind.name;
        let folder = world.folder.join(name);
        std::fs::create_dir(&folder)?;
        let world = World { folder, ..world.clone() };
        let lun = format!("vol0/{name}");
        cairn.cli(&["lun", "create", &lun, "--size", LUN_SIZE])?;
        if let Some(placement) = kind.placement {
            let origin = format!("lun:{lun}");
            let history = world.folder.join("history").display().to_string();
            let adopt = ["device", "adopt", name, "--origin", &origin, "--history", &history];
            let how = [
                "--history-size",
                "2G",
                "--placement",
                placement,
                "--granularity",
                "marks",
                "--window",
                "24h",
            ];
            cairn.json(&[&adopt[..], &how].concat())?;
        }
        let ledger = Arc::new(Ledger::new(&world)?);
        let mut disk = Self { kind, world, cairn, portal, ledger, postgres: None, mounted: None };
        disk.come_up(Taken::Empty)?;
        disk.postgres()?.make_tables()?;
        Ok(disk)
    }

    fn target(&self) -> String {
        let volume = if self.kind.placement.is_some() { "" } else { "vol0." };
        format!("iqn.2026-11.io.cairn:{volume}{}", self.kind.name)
    }

    fn postgres(&self) -> Result<&Postgres> {
        self.postgres.as_ref().context("no database")
    }

    fn come_up(&mut self, taken: Taken) -> Result<()> {
        let mounted = Mounted::attach_by_initiator(&self.world, self.portal, &self.target(), taken)?;
        let folder = mounted.folder.clone();
        self.mounted = Some(mounted);
        self.postgres = Some(Postgres::start(&self.world, &folder, self.kind.name, taken == Taken::Empty)?);
        Ok(())
    }

    /// Measures pgbench, before a mark and after it.
    fn measure(&self, facts: &mut Facts) -> Result<()> {
        let seconds = if self.world.short { 1 } else { 10 };
        facts.max(self.kind.rates[0], self.postgres()?.rate(seconds)?);
        self.mark("first", facts)?;
        if !self.world.short {
            facts.max(self.kind.rates[1], self.postgres()?.rate(seconds)?);
        }
        Ok(())
    }

    fn mark(&self, name: &str, facts: &mut Facts) -> Result<()> {
        if self.kind.placement.is_some() {
            self.cairn.json(&["history", "mark", self.kind.name, name])?;
            facts.add("marks", 1);
        }
        Ok(())
    }

    fn wait_for(&self, load: &Load, answers: u64) -> Result<()> {
        let wanted = self.ledger.count() + answers;
        wait_until("transactions are acknowledged", || {
            if load.is_broken() {
                bail!("a client of the database failed; see the logs in {}", self.world.folder.display());
            }
            Ok(self.ledger.count() >= wanted)
        })
    }

    /// A kill that the initiator gets over, and one that it does not outlive.
    fn round(&mut self, round: u32, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let answers = if self.world.short { 20 } else { 200 };
        let load = self.postgres()?.load(&self.world, &self.ledger)?;
        self.wait_for(&load, 1 + rng.below(answers))?;
        if rng.one_in(2) {
            self.mark(&format!("round{round}"), facts)?;
        }
        self.cairn.kill()?;
        facts.add("kills", 1 + self.cairn.serve_after_stumbling(rng)?);
        // Every client may have had a transaction in progress at the kill: more than that must be
        // acknowledged.
        self.wait_for(&load, 20)?;
        facts.add("kills that the initiator got over", 1);
        self.cairn.kill()?;
        let mut mounted = self.mounted.take().context("not mounted")?;
        mounted.cut()?;
        load.end();
        self.postgres.take().context("no database")?.end_at_once()?;
        mounted.detach()?;
        facts.add("kills", 1 + self.cairn.serve_after_stumbling(rng)?);
        self.come_up(Taken::AfterKill)?;
        let rows = self.postgres()?.compare(&self.ledger, &self.ledger.acknowledged())?;
        facts.max("transactions acknowledged", self.ledger.count());
        facts.max("rows found", rows);
        Ok(())
    }

    /// The moment of the first mark, before any recorded transaction.
    fn look_back(&self, facts: &mut Facts) -> Result<()> {
        let past = format!("{}-past", self.kind.name);
        self.cairn.json(&["history", "clone", self.kind.name, "--mark", "first", "--as", &past])?;
        let target = format!("{}.{past}", self.target());
        let mounted = Mounted::attach_by_initiator(&self.world, self.portal, &target, Taken::AfterKill)?;
        let mut postgres = Postgres::start(&self.world, &mounted.folder, &past, false)?;
        let rows = postgres.compare(&self.ledger, &[])?;
        ensure!(rows == 0, "the mark shows {rows} rows that came after it");
        ensure!(
            postgres.sql("select count(*) > 0 from pgbench_history")?.trim() == "t",
            "and not what came before"
        );
        postgres.stop()?;
        mounted.detach()?;
        facts.add("marks that came up", 1);
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        self.postgres()?.check_indexes()?;
        self.postgres.take().context("no database")?.stop()?;
        self.mounted.take().context("not mounted")?.detach()
    }
}

/// Rounds, on either kind of disk that remembers in turn.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    if programs().is_none() {
        return Ok(Verdict::without("postgresql"));
    }
    if !is_installed(DAEMON) {
        return Ok(Verdict::without(DAEMON));
    }
    // The database's user passes through.
    std::fs::set_permissions(&world.folder, std::fs::Permissions::from_mode(0o755))?;
    // The portal's address stays the same, or an initiator would not find it again.
    let portal = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let cairn = Cairn::start(world, "target", &["--mirror", "off", "--iscsi", &portal])?;
    cairn.cli(&["volume", "create", "vol0", "--size", &VOLUME_BYTES.to_string()])?;
    if let Some(verdict) = cannot_mount(world, &cairn)? {
        return Ok(verdict);
    }
    let mut facts = Facts::default();
    let mut disks = Vec::new();
    // A short run checks requirements; the plain LUN's rate is only for comparison.
    for kind in KINDS.iter().filter(|kind| kind.placement.is_some() || !world.short) {
        let disk = Disk::new(world, &cairn, &portal, kind).with_context(|| kind.name)?;
        disk.measure(&mut facts).with_context(|| kind.name)?;
        match kind.placement {
            Some(_) => disks.push(disk),
            // Only its rate is needed.
            None => disk.end()?,
        }
    }
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let count = disks.len();
        let disk = &mut disks[round as usize % count];
        disk.round(round, &mut facts, &mut rng)
            .with_context(|| format!("round {round}, {}", disk.kind.name))?;
        facts.add("rounds", 1);
    }
    for disk in disks {
        let name = disk.kind.name;
        disk.look_back(&mut facts).with_context(|| name)?;
        disk.end().with_context(|| name)?;
    }
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

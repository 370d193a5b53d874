//! PostgreSQL on a volume that is mirrored into an encrypted bucket. Its machine is lost with all
//! data, within an update or after it. Another server opens the volume at its last image, and the
//! database comes up with every transaction that was acknowledged before that image. It continues
//! there, until that machine is lost.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use cairn_base::Rng;

use crate::mount::{Mounted, Taken, cannot_mount};
use crate::postgres::{Ledger, Postgres, programs};
use crate::program::{Running, wait_until};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;
use crate::store::ObjectStore;

const VOLUME_BYTES: u64 = 2 << 30;
const LUN_BYTES: u64 = 512 << 20;
const BUCKET: &str = "machines";
/// The name of the bucket on each server.
const NAME: &str = "offsite";
const MIRROR: &str = "offsite:vol0";
/// Stores that the home of a volume may be; the first one that is installed is used.
const STORES: &[&str] = &["versitygw", "minio", "ceph"];

/// A machine, and the database on it.
struct Machine {
    // Dropped from top to bottom: each depends on the next.
    postgres: Option<Postgres>,
    disk: Option<Mounted>,
    cairn: Cairn,
}

struct Site<'a> {
    world: &'a World,
    store: ObjectStore,
    key: PathBuf,
    ledger: Arc<Ledger>,
    /// Transactions of the last image.
    promised: Vec<u64>,
    /// Those that the present machine began with, and how many were acknowledged until then.
    found: (Vec<u64>, usize),
}

/// The loss of one machine after the other.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    if programs().is_none() {
        return Ok(Verdict::without("postgresql"));
    }
    // The database's user passes through.
    std::fs::set_permissions(&world.folder, std::fs::Permissions::from_mode(0o755))?;
    let mut none = Verdict::without("an object store");
    let mut store = None;
    for kind in STORES {
        match ObjectStore::start(world, kind)? {
            Ok(started) => {
                store = Some(started);
                break;
            }
            Err(verdict) => none = verdict,
        }
    }
    let Some(store) = store else { return Ok(none) };
    store.make_bucket(BUCKET)?;
    let cairn = Cairn::start_alone(world, "machine0")?;
    cairn.make_lun(VOLUME_BYTES, LUN_BYTES)?;
    if let Some(verdict) = cannot_mount(world, &cairn)? {
        return Ok(verdict);
    }
    let key = world.folder.join("bucket.key");
    cairn.cli(&["key", "create", &key.display().to_string(), "--yes"])?;
    let ledger = Arc::new(Ledger::new(world)?);
    let (promised, found) = (Vec::new(), (Vec::new(), 0));
    let mut site = Site { world, store, key, ledger, promised, found };
    let disk = Mounted::attach(world, &cairn, "vol0/db", Taken::Empty)?;
    let postgres = Postgres::start(world, &disk.folder, "machine", true)?;
    postgres.make_tables()?;
    site.store.add_to(&cairn, (BUCKET, NAME), Some(&site.key))?;
    cairn.json(&["mirror", "create", "vol0", "--to", "offsite:"])?;
    let mut machine = Machine { postgres: Some(postgres), disk: Some(disk), cairn };
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let outcome = site.lose(machine, round, &mut facts, &mut rng);
        machine = outcome.with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    let mut postgres = machine.postgres.take().context("no database")?;
    postgres.check_indexes()?;
    postgres.stop()?;
    machine.disk.take().context("not mounted")?.detach()?;
    machine.cairn.check("vol0")?;
    machine.cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

impl Site<'_> {
    /// Every transaction that must be in an image that begins now.
    fn present(&self) -> Vec<u64> {
        let (found, since) = &self.found;
        let acknowledged = self.ledger.acknowledged();
        found.iter().chain(acknowledged.get(*since..).unwrap_or_default()).copied().collect()
    }

    /// Makes images under load, loses the machine, and returns the next one.
    fn lose(
        &mut self,
        mut machine: Machine,
        round: u32,
        facts: &mut Facts,
        rng: &mut Rng,
    ) -> Result<Machine> {
        let mut postgres = machine.postgres.take().context("no database")?;
        let load = postgres.load(self.world, &self.ledger)?;
        for _ in 0..1 + rng.below(3) {
            let wanted = self.ledger.count() + 1 + rng.below(if self.world.short { 50 } else { 500 });
            wait_until("transactions are acknowledged", || {
                ensure!(!load.is_broken(), "a client of the database failed before the loss");
                Ok(self.ledger.count() >= wanted)
            })?;
            let before = self.present();
            machine.cairn.json(&["mirror", "update", MIRROR])?;
            self.promised = before;
            facts.add("images", 1);
        }
        // The last update is cut by the loss, or just in time.
        let before = self.present();
        let log = self.world.folder.join("update.log");
        let mut update = Running::start(&mut machine.cairn.command(&["mirror", "update", MIRROR]), &log)?;
        let moment = Duration::from_micros(rng.below(400_000));
        if update.ended_within(moment)?.is_some_and(|status| status.success()) {
            self.promised = before;
            facts.add("images", 1);
        }
        machine.cairn.kill()?;
        load.end();
        drop(update);
        postgres.end_at_once()?;
        machine.disk.take().context("not mounted")?.detach()?;
        std::fs::remove_dir_all(&machine.cairn.data)?;
        drop(machine);
        facts.add("machines lost", 1);
        self.open(round, facts, rng)
    }

    /// The next machine opens the volume.
    fn open(&mut self, round: u32, facts: &mut Facts, rng: &mut Rng) -> Result<Machine> {
        let cairn = Cairn::start_alone(self.world, &format!("machine{}", round + 1))?;
        self.store.add_to(&cairn, (BUCKET, NAME), Some(&self.key))?;
        let start = std::time::Instant::now();
        cairn.json(&["volume", "open", MIRROR])?;
        facts.max("ms until a volume was open", start.elapsed().as_millis() as u64);
        if rng.one_in(3) {
            // Before everything is local.
            cairn.kill()?;
            cairn.serve()?;
            facts.add("kills before all was local", 1);
        }
        let disk = Mounted::attach(self.world, &cairn, "vol0/db", Taken::AfterKill)?;
        let postgres = Postgres::start(self.world, &disk.folder, "machine", false)?;
        facts.max("ms until the database was up", start.elapsed().as_millis() as u64);
        postgres.compare(&self.ledger, &self.promised).context("on the next machine")?;
        facts.add("transactions promised", self.promised.len() as u64);
        let there = postgres.rows()?;
        let acknowledged = self.ledger.acknowledged();
        let missing = acknowledged.len() - acknowledged.iter().filter(|id| there.contains(id)).count();
        facts.max("transactions after the last image, lost so far", missing as u64);
        self.found = (there.into_iter().collect(), acknowledged.len());
        wait_until("all blocks are local", || {
            let shown = cairn.json(&["volume", "show", "vol0"])?;
            match shown["bucket"]["problem"].as_str() {
                Some(problem) => bail!("the volume has a problem: {problem}"),
                None => Ok(shown["bucket"]["regions_left"] == 0),
            }
        })?;
        cairn.json(&["mirror", "create", "vol0", "--to", "offsite:", "--take-over"])?;
        self.promised = self.found.0.clone();
        Ok(Machine { postgres: Some(postgres), disk: Some(disk), cairn })
    }
}

//! PostgreSQL on a LUN or on the files of a volume: after each kill it comes up with every
//! acknowledged transaction; from the mirror, with those before the last image.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use cairn_base::Rng;

use crate::mount::{Mounted, Taken, cannot_mount};
use crate::postgres::{Ledger, Load, Postgres, programs};
use crate::program::{run as run_program, wait_until};
use crate::scenario::{Facts, Verdict, World};
use crate::scenarios::files::{Tree, cannot_mount as cannot_mount_files};
use crate::server::Cairn;

const VOLUME_BYTES: u64 = 2 << 30;
const LUN_BYTES: u64 = 512 << 20;

/// The storage of the database.
#[derive(Clone, Copy)]
pub(crate) enum On {
    Lun,
    Files,
}

enum Ground {
    Lun(Mounted),
    Files(Tree),
}

impl Ground {
    fn new(world: &World, cairn: &Cairn, volume: &str, (on, taken): (On, Taken)) -> Result<Self> {
        Ok(match on {
            On::Lun => Self::Lun(Mounted::attach(world, cairn, &format!("{volume}/db"), taken)?),
            On::Files => Self::Files(Tree::mount(world, cairn, volume)?),
        })
    }

    fn folder(&self) -> &Path {
        match self {
            Self::Lun(mounted) => &mounted.folder,
            Self::Files(tree) => &tree.folder,
        }
    }

    /// It is not in use any more.
    fn leave(self, cairn: &Cairn) -> Result<()> {
        match self {
            Self::Lun(mounted) => mounted.detach(),
            Self::Files(tree) => cairn.cli(&["unmount", &tree.folder.display().to_string()]).map(drop),
        }
    }
}

/// The parts of both scenarios.
struct Site<'a> {
    world: &'a World,
    on: On,
    ledger: Arc<Ledger>,
    // Dropped from top to bottom: each depends on the next.
    postgres: Option<Postgres>,
    ground: Option<Ground>,
    cairn: Cairn,
}

impl<'a> Site<'a> {
    /// A new database, or why there can't be one here.
    fn new(world: &'a World, on: On, mirror: &str) -> Result<Result<Self, Verdict>> {
        if programs().is_none() {
            return Ok(Err(Verdict::without("postgresql")));
        }
        // The database's user passes through.
        std::fs::set_permissions(&world.folder, std::fs::Permissions::from_mode(0o755))?;
        let cairn = Cairn::start(world, "source", &["--mirror", mirror])?;
        let cannot = match on {
            On::Lun => {
                cairn.make_lun(VOLUME_BYTES, LUN_BYTES)?;
                cannot_mount(world, &cairn)?
            }
            On::Files => {
                cairn.make_volume(VOLUME_BYTES)?;
                cannot_mount_files(&[])?
            }
        };
        if let Some(verdict) = cannot {
            return Ok(Err(verdict));
        }
        let ground = Ground::new(world, &cairn, "vol0", (on, Taken::Empty))?;
        let postgres = Postgres::start(world, ground.folder(), "source", true)?;
        postgres.make_tables()?;
        let ledger = Arc::new(Ledger::new(world)?);
        Ok(Ok(Self { world, on, cairn, ground: Some(ground), postgres: Some(postgres), ledger }))
    }

    fn postgres(&self) -> Result<&Postgres> {
        self.postgres.as_ref().context("no database")
    }

    /// Starts the load and waits until `answers` more transactions are acknowledged.
    fn load(&self, answers: u64) -> Result<Load> {
        let load = self.postgres()?.load(self.world, &self.ledger)?;
        self.wait_for(&load, answers)?;
        Ok(load)
    }

    fn wait_for(&self, load: &Load, answers: u64) -> Result<()> {
        let wanted = self.ledger.count() + answers;
        wait_until("transactions are acknowledged", || {
            if load.is_broken() {
                bail!(
                    "a client of the database failed before the kill; see psql.log and postgres-source.log"
                );
            }
            Ok(self.ledger.count() >= wanted)
        })
    }

    /// SIGKILL of the server under a running load, and the end of everything that used it.
    fn kill_under(&mut self, load: Load) -> Result<()> {
        self.cairn.kill()?;
        // Clients that run on see errors now; whatever is still acknowledged must hold as well.
        load.end();
        self.postgres.take().context("no database")?.end_at_once()?;
        self.ground = match self.ground.take() {
            Some(Ground::Files(tree)) => {
                tree.is_gone()?;
                Some(Ground::Files(tree))
            }
            // A file system whose disk is gone unmounts all the same.
            Some(Ground::Lun(mounted)) => mounted.detach().map(|()| None)?,
            None => None,
        };
        Ok(())
    }

    /// Starts all again and compares.
    fn come_back(&mut self, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        facts.add("kills", 1 + self.cairn.serve_after_stumbling(rng)?);
        self.cairn.check("vol0")?;
        let ground = match self.ground.take() {
            Some(Ground::Files(tree)) => {
                tree.is_back()?;
                Ground::Files(tree)
            }
            _ => Ground::new(self.world, &self.cairn, "vol0", (self.on, Taken::AfterKill))?,
        };
        let postgres = Postgres::start(self.world, ground.folder(), "source", false)?;
        let rows = postgres.compare(&self.ledger, &self.ledger.acknowledged())?;
        facts.max("transactions acknowledged", self.ledger.count());
        facts.max("rows found", rows);
        facts.add("recoveries", 1);
        (self.ground, self.postgres) = (Some(ground), Some(postgres));
        Ok(())
    }

    /// The last comparison.
    fn end(mut self) -> Result<()> {
        self.postgres()?.check_indexes()?;
        self.postgres.take().context("no database")?.stop()?;
        self.ground.take().context("not mounted")?.leave(&self.cairn)?;
        self.cairn.check("vol0")?;
        self.cairn.log_is_clean()
    }
}

/// Kills of the server under the database.
pub(crate) fn killed(world: &World, rounds: u32, on: On) -> Result<Verdict> {
    let mut site = match Site::new(world, on, "off")? {
        Ok(site) => site,
        Err(verdict) => return Ok(verdict),
    };
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let load = site.load(1 + rng.below(if world.short { 50 } else { 500 }))?;
        let outcome = site.kill_under(load).and_then(|()| site.come_back(&mut facts, &mut rng));
        outcome.with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    site.end()?;
    Ok(Verdict::Passed(facts))
}

/// A mirror that is updated under the database; either server is killed within an update; failover.
pub(crate) fn mirrored(world: &World, rounds: u32, on: On) -> Result<Verdict> {
    let mut site = match Site::new(world, on, "127.0.0.1:0")? {
        Ok(site) => site,
        Err(verdict) => return Ok(verdict),
    };
    let destination = Cairn::start_alone(world, "destination")?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let outcome = fail_over(&mut site, &destination, round, &mut facts, &mut rng);
        outcome.with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    site.end()?;
    destination.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

fn fail_over(
    site: &mut Site<'_>,
    destination: &Cairn,
    round: u32,
    facts: &mut Facts,
    rng: &mut Rng,
) -> Result<()> {
    let copy = format!("copy{round}");
    let load = site.load(1 + rng.below(50))?;
    let token = site.cairn.json(&["peer", "invite"])?["token"].as_str().context("no token")?.to_owned();
    // Transactions acknowledged before an update begins are in the image that it brings.
    let mut promised = site.ledger.acknowledged();
    destination.json(&["mirror", "create", "vol0", &token, "--as", &copy])?;
    facts.add("images", 1);
    for _ in 0..rng.below(4) {
        site.wait_for(&load, 1 + rng.below(50))?;
        let before = site.ledger.acknowledged();
        destination.json(&["mirror", "update", &copy])?;
        promised = before;
        facts.add("images", 1);
    }
    // The last update is cut, on one side or the other, or just in time.
    let log = site.world.folder.join("update.log");
    let before = site.ledger.acknowledged();
    let mut update = destination.command(&["mirror", "update", &copy]);
    let mut update = crate::program::Running::start(&mut update, &log)?;
    let moment = std::time::Duration::from_micros(rng.below(150_000));
    if update.ended_within(moment)?.is_some_and(|status| status.success()) {
        promised = before;
        facts.add("images", 1);
    }
    let of_destination = rng.one_in(2);
    if of_destination {
        destination.kill()?;
        facts.add("kills of the destination", 1 + destination.serve_after_stumbling(rng)?);
    }
    site.kill_under(load)?;
    drop(update);
    destination.json(&["mirror", "failover", &copy, "--yes"])?;
    facts.add("failovers", 1);
    destination.check(&copy)?;
    let ground = Ground::new(site.world, destination, &copy, (site.on, Taken::AfterKill))?;
    let mut postgres = Postgres::start(site.world, ground.folder(), "destination", false)?;
    postgres.compare(&site.ledger, &promised).context("on the mirror after failover")?;
    facts.add("transactions promised by the mirror", promised.len() as u64);
    postgres.sql("insert into acknowledged values (0)").context("the mirror takes writes")?;
    postgres.stop()?;
    ground.leave(destination)?;
    run_program(&mut destination.command(&["volume", "delete", &copy, "--yes"]))?;
    site.come_back(facts, rng)
}

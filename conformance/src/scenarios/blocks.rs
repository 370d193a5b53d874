//! Our own load: several clients with requests in flight on one LUN, concurrent snapshots, and a
//! server that is killed after a random number of answers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, bail};
use cairn_base::{BLOCK_SIZE, Rng};
use cairn_frontend_nbd::{Client, ClientError, ClientRequest};
use parking_lot::Mutex;

use crate::model::{Model, Shown};
use crate::program::wait_until;
use crate::scenario::{Facts, Verdict, World};
use crate::server::{Cairn, connect};

/// Connections to the LUN.
const CLIENTS: usize = 3;
/// Requests that each keeps in flight.
const DEPTH: usize = 8;
/// Blocks of the longest request.
const RUN_BLOCKS_MAX: u64 = 16;
/// Snapshots that stay; the oldest is deleted first.
const SNAPSHOTS_MAX: usize = 3;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A run of the scenario.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    let blocks = if world.short { 512 } else { 4096 };
    let cairn = Cairn::start_alone(world, "server")?;
    cairn.make_lun(blocks * BLOCK * 8 + (64 << 20), blocks * BLOCK)?;
    let model = Mutex::new(Model::new(world.seed, blocks as usize));
    let mut shown = Vec::new();
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        one(&cairn, &model, &mut shown, &mut facts, &mut rng).with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    cairn.stop()?;
    cairn.serve()?;
    compare(&cairn, &model, &shown, &mut facts)?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// Load, kill, restart, comparison.
fn one(
    cairn: &Cairn,
    model: &Mutex<Model>,
    shown: &mut Vec<Shown>,
    facts: &mut Facts,
    rng: &mut Rng,
) -> Result<()> {
    let dying = AtomicBool::new(false);
    let answers = AtomicU64::new(0);
    let flushes = AtomicU64::new(0);
    let until = 1 + if rng.one_in(4) { rng.below(50) } else { rng.below(6000) };
    let socket = cairn.socket();
    let (mut of_clients, mut of_snapshots) = (rng.fork(), rng.fork());
    let load = Load { socket: &socket, model, dying: &dying, answers: &answers, flushes: &flushes };
    let ended = std::thread::scope(|scope| -> Result<()> {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut rng = of_clients.fork();
                let load = &load;
                scope.spawn(move || load.client(&mut rng))
            })
            .collect();
        let snapshots = scope.spawn(|| snapshots(cairn, model, shown, &dying, &mut of_snapshots));
        let moment = wait_until("the clients are answered", || {
            let broken = clients.iter().any(|client| client.is_finished()) || snapshots.is_finished();
            Ok(broken || answers.load(Ordering::Relaxed) >= until)
        });
        dying.store(true, Ordering::SeqCst);
        cairn.kill()?;
        moment?;
        for client in clients {
            client.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        snapshots.join().map_err(|_| anyhow::anyhow!("the maker of snapshots panicked"))?
    });
    ended?;
    facts.add("kills", 1 + cairn.serve_after_stumbling(rng)?);
    facts.add("answers", answers.load(Ordering::Relaxed));
    facts.add("flushes", flushes.load(Ordering::Relaxed));
    compare(cairn, model, shown, facts)?;
    delete_others(cairn, shown)
}

/// Deletes the snapshots whose creation or deletion the kill cut: they may be there, and would fill
/// the volume in time.
fn delete_others(cairn: &Cairn, shown: &[Shown]) -> Result<()> {
    let list = cairn.json(&["snapshot", "list", "vol0"])?;
    for snapshot in list.as_array().context("no list of snapshots")? {
        let name = snapshot["name"].as_str().context("a snapshot without a name")?;
        if !shown.iter().any(|shown| name == format!("vol0@{}", shown.name)) {
            cairn.cli(&["snapshot", "delete", name, "--yes"])?;
        }
    }
    Ok(())
}

/// Compares the LUN and every snapshot that was made.
fn compare(cairn: &Cairn, model: &Mutex<Model>, shown: &[Shown], facts: &mut Facts) -> Result<()> {
    let mut model = model.lock();
    let bytes = read(cairn, "vol0/db", model.blocks())?;
    model.settle(&bytes)?;
    facts.add("blocks compared", model.blocks() as u64);
    for shown in shown {
        let bytes = read(cairn, &format!("vol0@{}/db", shown.name), model.blocks())?;
        model.compare_snapshot(shown, &bytes)?;
        facts.add("snapshots compared", 1);
    }
    cairn.check("vol0")
}

fn read(cairn: &Cairn, export: &str, blocks: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; blocks * BLOCK_SIZE];
    cairn.disk(export)?.read_all(0, &mut bytes, 1 << 20, 4).with_context(|| format!("reading {export}"))?;
    Ok(bytes)
}

/// Makes and deletes snapshots until the server dies.
fn snapshots(
    cairn: &Cairn,
    model: &Mutex<Model>,
    shown: &mut Vec<Shown>,
    dying: &AtomicBool,
    rng: &mut Rng,
) -> Result<()> {
    while !dying.load(Ordering::SeqCst) {
        if shown.len() >= SNAPSHOTS_MAX {
            // After the request, it may be gone.
            let oldest = shown.remove(0);
            cairn.said(&["snapshot", "delete", &format!("vol0@{}", oldest.name), "--yes"])?;
            continue;
        }
        let name = format!("s{:016x}", rng.next());
        let oldest = model.lock().snapshot_begins();
        let said = cairn.said(&["snapshot", "create", &format!("vol0@{name}")])?;
        if said["message_type"] != "error" {
            let made = model.lock().snapshot_made(name, oldest);
            shown.push(made);
        } else if !dying.load(Ordering::SeqCst) {
            bail!("a snapshot was refused: {said}");
        }
    }
    Ok(())
}

/// State shared by the clients of a round.
struct Load<'a> {
    socket: &'a Path,
    model: &'a Mutex<Model>,
    dying: &'a AtomicBool,
    answers: &'a AtomicU64,
    flushes: &'a AtomicU64,
}

#[derive(Clone, Copy)]
enum Asked {
    /// Of a run: a new version, with FUA or not.
    Change(u32, u32, bool),
    Read(u32),
    /// The writes that it covers.
    Flush(usize),
}

impl Load<'_> {
    /// One client, until the server dies.
    fn client(&self, rng: &mut Rng) -> Result<()> {
        match self.talk(rng) {
            Err(error) if self.dying.load(Ordering::SeqCst) && is_broken(&error) => Ok(()),
            other => other,
        }
    }

    fn talk(&self, rng: &mut Rng) -> Result<()> {
        let mut disk = connect(self.socket, "vol0/db")?;
        let mut asked = HashMap::new();
        loop {
            while asked.len() < DEPTH {
                match self.ask(&mut disk, rng)? {
                    Some((cookie, what)) => asked.insert(cookie, what),
                    None => break,
                };
            }
            let completion = disk.complete()?;
            let answer = completion.outcome?;
            let mut model = self.model.lock();
            match asked.remove(&completion.cookie).context("an answer to nothing")? {
                Asked::Change(start, length, durable) => model.answer(start, length, durable),
                Asked::Read(start) => model.compare(start, &answer.data)?,
                Asked::Flush(sent) => {
                    model.flush_answered(sent);
                    self.flushes.fetch_add(1, Ordering::Relaxed);
                }
            }
            self.answers.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Submits a request; none when all the blocks tried are busy.
    fn ask(&self, disk: &mut Client, rng: &mut Rng) -> Result<Option<(u64, Asked)>> {
        let kind = rng.below(100);
        if kind < 6 {
            let sent = self.model.lock().flush_sent();
            return Ok(Some((disk.submit(ClientRequest::Flush)?, Asked::Flush(sent))));
        }
        let Some((start, length)) = self.model.lock().claim(rng, RUN_BLOCKS_MAX) else { return Ok(None) };
        let (offset, bytes) = (u64::from(start) * BLOCK, u64::from(length) * BLOCK);
        if kind < 16 {
            let cookie = disk.submit(ClientRequest::Read { offset, length: bytes as u32 })?;
            return Ok(Some((cookie, Asked::Read(start))));
        }
        let zeroes = kind < 26;
        let data = self.model.lock().submit(start, length, zeroes);
        let fua = !zeroes && rng.one_in(8);
        let request = match (zeroes, kind % 2) {
            (false, _) => ClientRequest::Write { offset, data: &data, fua },
            (true, 0) => ClientRequest::Trim { offset, length: bytes },
            (true, _) => {
                ClientRequest::WriteZeroes { offset, length: bytes, no_hole: kind < 20, fast: false }
            }
        };
        Ok(Some((disk.submit(request)?, Asked::Change(start, length, fua))))
    }
}

/// The connection broke, or there is none.
fn is_broken(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<ClientError>(),
        Some(ClientError::Connection(_) | ClientError::Closed | ClientError::Connect { .. })
    )
}

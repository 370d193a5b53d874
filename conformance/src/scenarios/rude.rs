//! Clients that behave badly: one stops reading its replies, one disconnects in the middle of a
//! write.

use anyhow::{Context, Result, bail};
use cairn_base::{BLOCK_SIZE, Rng};
use cairn_frontend_nbd::{Address, Client, ClientOptions, ClientRequest};

use crate::model::Model;
use crate::probe::{PROBE_BYTES, Probe};
use crate::program::wait_until;
use crate::relay::Relay;
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// Sessions that stop reading.
const DEAF: usize = 8;
/// Blocks of the longest write that is cut.
const CUT_BLOCKS_MAX: u64 = 512;

/// Clients that send requests and read no answers, beside one that works; their sessions are closed
/// when their LUN must go.
pub(crate) fn deaf(world: &World, rounds: u32) -> Result<Verdict> {
    let cairn = Cairn::start_alone(world, "server")?;
    let lun_bytes: u64 = if world.short { 32 << 20 } else { 256 << 20 };
    // Tight: blocks that a session which does not listen kept from being used again would be
    // missed.
    cairn.make_lun(lun_bytes * 2 + (32 << 20), lun_bytes)?;
    cairn.cli(&["lun", "create", "vol0/lun", "--size", &PROBE_BYTES.to_string()])?;
    let mut probe = Probe::new(&cairn, "vol0/lun", world.seed)?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let outcome = deaf_round(&cairn, &mut probe, &mut rng, lun_bytes, &mut facts);
        outcome.with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    probe.compare_all(&cairn, "vol0/lun")?;
    // A rollback closes sessions, also those that are stuck in a reply.
    cairn.cli(&["snapshot", "create", "vol0@before"])?;
    let stuck = deaf_client(&cairn, &mut world.rng(rounds), lun_bytes)?;
    cairn.cli(&["snapshot", "rollback", "vol0@before", "--yes"])?;
    drop(stuck);
    probe.compare_all(&cairn, "vol0/lun").context("after a rollback to what was there")?;
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

fn deaf_round(
    cairn: &Cairn,
    probe: &mut Probe,
    rng: &mut Rng,
    lun_bytes: u64,
    facts: &mut Facts,
) -> Result<()> {
    let mut deaf = (0..DEAF).map(|_| deaf_client(cairn, rng, lun_bytes)).collect::<Result<Vec<_>>>()?;
    probe.judge("clients that do not read their replies", facts)?;
    // All of the LUN is written several times over: their sessions hold no space.
    let mut disk = cairn.disk("vol0/db")?;
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..4 {
        for offset in (0..lun_bytes).step_by(bytes.len()) {
            rng.fill(&mut bytes);
            disk.write(offset, &bytes)?;
        }
        disk.flush()?;
    }
    drop(disk);
    cairn.cli(&["snapshot", "create", "vol0@beside"])?;
    cairn.cli(&["snapshot", "delete", "vol0@beside", "--yes"])?;
    probe.judge("a LUN written over beside them", facts)?;
    // A client that continues to read gets all that it asked for.
    let mut late = deaf.pop().context("no client")?;
    while late.in_flight() > 0 {
        late.complete()?.outcome.context("replies that were left unread for a while")?;
    }
    facts.add("clients that stopped reading", DEAF as u64);
    Ok(())
}

/// One that has asked for 64 MiB and takes nothing.
fn deaf_client(cairn: &Cairn, rng: &mut Rng, lun_bytes: u64) -> Result<Client> {
    let mut disk = cairn.disk("vol0/db")?;
    for _ in 0..4 {
        let offset = rng.below(lun_bytes - (16 << 20)) / 4096 * 4096;
        disk.submit(ClientRequest::Read { offset, length: 16 << 20 })?;
    }
    disk.submit(ClientRequest::Flush)?;
    Ok(disk)
}

/// Connections that end in the middle of a write.
pub(crate) fn cut(world: &World, rounds: u32) -> Result<Verdict> {
    let cairn = Cairn::start(world, "server", &["--mirror", "off", "--nbd", "127.0.0.1:0"])?;
    let blocks = 4096;
    cairn.make_lun(256 << 20, blocks as u64 * BLOCK_SIZE as u64)?;
    cairn.cli(&["lun", "create", "vol0/lun", "--size", &PROBE_BYTES.to_string()])?;
    let status = cairn.json(&["status"])?;
    let tcp = status["nbd"].as_array().context("no NBD addresses")?.iter().filter_map(|at| at.as_str());
    let tcp = tcp.into_iter().find(|at| at.starts_with("127.0.0.1:")).context("no NBD over TCP")?;
    let relay = Relay::to(tcp)?;
    let address: Address = Address::Tcp(relay.address.clone());
    let mut probe = Probe::new(&cairn, "vol0/lun", world.seed)?;
    let mut model = Model::new(world.seed, blocks);
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        relay.forth.open();
        let mut disk = Client::connect(&address, &ClientOptions::new("vol0/db"))?;
        // Some whole writes, then one that arrives in part.
        let mut cut = None;
        for _ in 0..1 + rng.below(3) {
            let (start, length) = model.claim(&mut rng, CUT_BLOCKS_MAX).context("all blocks are busy")?;
            let data = model.submit(start, length, false);
            let offset = u64::from(start) * BLOCK_SIZE as u64;
            if cut.is_none() && rng.one_in(2) {
                relay.forth.cut_after(rng.below(data.len() as u64 + 64) as usize);
                cut = Some((start, length));
                let request = ClientRequest::Write { offset, data: &data, fua: false };
                if disk.submit(request).is_ok_and(|_| disk.complete().is_ok()) {
                    bail!("a write that was cut was answered");
                }
                break;
            }
            disk.write(offset, &data)?;
            model.answer(start, length, false);
        }
        drop(disk);
        facts.add("writes cut", u64::from(cut.is_some()));
        // The session ends by itself; until then it counts as one.
        wait_until("the session of a client that went ends", || {
            let status = cairn.json(&["status"])?;
            let exports = status["exports"].as_array().context("no exports")?;
            let db =
                exports.iter().find(|export| export["name"] == "vol0/db").context("no export vol0/db")?;
            Ok(db["sessions"].as_array().context("no sessions")?.is_empty())
        })?;
        // No acknowledged data is lost, and each block of the cut write is old or new.
        let mut bytes = vec![0; blocks * BLOCK_SIZE];
        let mut disk = cairn.disk("vol0/db")?;
        disk.flush()?;
        disk.read_all(0, &mut bytes, 1 << 20, 4)?;
        let answered = model.flush_sent();
        model.flush_answered(answered);
        model.settle(&bytes).with_context(|| format!("round {round}"))?;
        probe.judge("clients that go in the middle of a write", &mut facts)?;
        facts.add("rounds", 1);
    }
    probe.compare_all(&cairn, "vol0/lun")?;
    cairn.check("vol0")?;
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

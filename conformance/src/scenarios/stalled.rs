//! A mirror whose other side stalls: nothing comes, nothing is taken, and no connection breaks.

use anyhow::{Context, Result, bail};
use cairn_base::Rng;

use crate::probe::{PROBE_BYTES, Probe};
use crate::program::{Running, wait_until};
use crate::relay::Relay;
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// In this scenario, the other side is given up after this long without a byte.
const PATIENCE: &str = "3s";

/// The two servers, with a relay between them.
struct Sites<'a> {
    world: &'a World,
    source: Cairn,
    destination: Cairn,
    relay: Relay,
    lun_bytes: u64,
}

/// The stalled part.
#[derive(Clone, Copy)]
enum Stall {
    /// The source sends and nothing arrives: to the source, the destination stops reading; to the
    /// destination, the source stops sending.
    Image,
    /// The destination's requests and acknowledgements do not arrive.
    Questions,
}

/// A run of the scenario.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    let lun_bytes: u64 = if world.short { 24 << 20 } else { 128 << 20 };
    let source = Cairn::start(world, "source", &["--mirror", "127.0.0.1:0", "--mirror-patience", PATIENCE])?;
    let destination =
        Cairn::start(world, "destination", &["--mirror", "off", "--mirror-patience", PATIENCE])?;
    source.make_lun(lun_bytes * 4 + (64 << 20), lun_bytes)?;
    source.cli(&["lun", "create", "vol0/lun", "--size", &PROBE_BYTES.to_string()])?;
    destination.cli(&["volume", "create", "own", "--size", "64M"])?;
    destination.cli(&["lun", "create", "own/lun", "--size", &PROBE_BYTES.to_string()])?;
    let listens = source.json(&["status"])?["mirror"].as_str().context("no mirror address")?.to_owned();
    let relay = Relay::to(&listens)?;
    let token = source.json(&["peer", "invite", "--advertise", &relay.address])?;
    let token = token["token"].as_str().context("no token")?.to_owned();
    let sites = Sites { world, source, destination, relay, lun_bytes };
    let mut probes = (
        Probe::new(&sites.source, "vol0/lun", world.seed)?,
        Probe::new(&sites.destination, "own/lun", world.seed)?,
    );
    sites.write(&mut world.rng(0))?;
    sites.destination.json(&["mirror", "create", "vol0", &token])?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round + 1);
        for stall in [Stall::Image, Stall::Questions] {
            let outcome = sites.stall(stall, &mut probes, &mut rng, &mut facts);
            outcome.with_context(|| format!("round {round}"))?;
        }
        facts.add("rounds", 1);
    }
    probes.0.compare_all(&sites.source, "vol0/lun")?;
    probes.1.compare_all(&sites.destination, "own/lun")?;
    sites.source.check("vol0")?;
    sites.destination.check("vol0")?;
    sites.source.log_is_clean()?;
    sites.destination.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

impl Sites<'_> {
    /// New content for all of the LUN.
    fn write(&self, rng: &mut Rng) -> Result<()> {
        let mut bytes = vec![0; self.lun_bytes as usize];
        rng.fill(&mut bytes);
        let mut disk = self.source.disk("vol0/db")?;
        disk.write_all(0, &bytes, 1 << 20, 8)?;
        Ok(disk.flush()?)
    }

    fn read(&self, cairn: &Cairn) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.lun_bytes as usize];
        cairn.disk("vol0/db")?.read_all(0, &mut bytes, 1 << 20, 8)?;
        Ok(bytes)
    }

    fn stall(
        &self,
        stall: Stall,
        probes: &mut (Probe, Probe),
        rng: &mut Rng,
        facts: &mut Facts,
    ) -> Result<()> {
        let before = self.read(&self.destination)?;
        self.write(rng)?;
        let (valve, passes) = match stall {
            // Into the middle of the image: past the handshake, and before its end.
            Stall::Image => (&self.relay.back, (1 << 20) + rng.below(self.lun_bytes / 2) as usize),
            // Fewer than the handshake has.
            Stall::Questions => (&self.relay.forth, rng.below(400) as usize),
        };
        valve.stop_after(passes);
        let mut update = self.destination.command(&["mirror", "update", "vol0", "--json"]);
        let log = self.world.folder.join("update.log");
        let mut update = Running::start(&mut update, &log)?;
        wait_until("the relay holds something back", || Ok(valve.holds_back()))?;
        wait_until("the status tells that nothing comes", || {
            let ended = update.ended()?.is_some();
            let status = self.destination.json(&["mirror", "status", "vol0"])?;
            if ended && !status["problem"].is_object() {
                bail!("the update ended well: {}", update.tail());
            }
            Ok(status["quiet_ms"].as_u64().is_some_and(|quiet| quiet > 0) || status["problem"].is_object())
        })?;
        probes.0.judge("a destination that stopped reading", facts)?;
        probes.1.judge("a source that stopped sending", facts)?;
        self.source.cli(&["snapshot", "create", "vol0@beside"])?;
        self.source.cli(&["snapshot", "delete", "vol0@beside", "--yes"])?;
        wait_until("the update is given up", || Ok(update.ended()?.is_some()))?;
        let status = self.destination.json(&["mirror", "status", "vol0"])?;
        let problem = &status["problem"];
        let clear = problem["message"].as_str().is_some_and(|message| message.contains("for 3s"));
        if status["state"] != "failing" || problem["error"] != "peer-unreachable" || !clear {
            bail!("a stalled mirror is told as {status}");
        }
        facts.add("stalls noticed", 1);
        if self.read(&self.destination)? != before {
            bail!("an update that stalled changed what the destination shows");
        }
        valve.open();
        self.destination.json(&["mirror", "update", "vol0"]).context("after the stall")?;
        if self.read(&self.destination)? != self.read(&self.source)? {
            bail!("the update after a stall did not bring the image of the source");
        }
        let status = self.destination.json(&["mirror", "status", "vol0"])?;
        if status["problem"].is_object() {
            bail!("the problem stays after an update that went through: {status}");
        }
        Ok(())
    }
}

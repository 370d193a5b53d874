//! Buckets in object stores of others: dumps, mirrors and volumes opened elsewhere, with kills of
//! the server and of the store in the middle of each, and with two servers that want one volume.
//!
//! One client writes and knows each version, and nothing is written while an image is made. So an
//! image has one of the states of the client, and the newest image has the last one. The plain and
//! the encrypted half of a run have servers and a place of their own. After every third round the
//! volume moves to the other server, and the old owner must find itself fenced.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_base::{BLOCK_SIZE, Rng};
use serde_json::Value;

use crate::model::content;
use crate::program::Running;
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;
use crate::store::ObjectStore;

const BLOCK: u64 = BLOCK_SIZE as u64;
const BUCKET: &str = "conformance";
/// How long a command is repeated while its store comes back: some stores ask for a pause of a
/// minute after a start.
const PATIENCE: Duration = Duration::from_secs(240);
/// Rounds until the volume moves.
const MOVES_EVERY: u32 = 3;
/// Errors that no repetition may hide.
const HARD: &[&str] = &["wrong-role", "contradicted", "damaged", "corrupt", "bug"];

/// The state of every block of the LUN, by version; 0 for one that was never written.
type Versions = Vec<u32>;

/// The outcome of a killed process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Victim {
    Server,
    Store,
    Both,
    None,
}

struct Site<'a> {
    world: &'a World,
    store: &'a ObjectStore,
    /// The name of the bucket on both servers, and its prefix.
    bucket: &'static str,
    servers: [Cairn; 2],
    /// The server that owns the images.
    owner: usize,
    versions: Versions,
    next: u32,
    /// Images by id, with their content.
    images: BTreeMap<String, Versions>,
    /// The store is safe for mirrors.
    mirrors: bool,
}

/// A run with a store.
pub(crate) fn run(world: &World, rounds: u32, kind: &'static str) -> Result<Verdict> {
    let store = match ObjectStore::start(world, kind)? {
        Ok(store) => store,
        Err(verdict) => return Ok(verdict),
    };
    store.make_bucket(BUCKET)?;
    let mut facts = Facts::default();
    let halves = [("plain", rounds - rounds / 2), ("sealed", rounds / 2)];
    for (bucket, rounds) in halves.into_iter().filter(|(_, rounds)| *rounds > 0) {
        let mut site = Site::new(world, &store, bucket, &mut facts)?;
        // Garage takes a put that must not overwrite, and overwrites.
        ensure!(kind != "garage" || !site.mirrors, "Garage must be refused as the home of a volume");
        for round in 0..rounds {
            let outcome = site.round(round, &mut facts);
            outcome.with_context(|| format!("{bucket}, round {round}"))?;
            facts.add("rounds", 1);
        }
        site.end(&mut facts).with_context(|| format!("{bucket}, the end"))?;
    }
    Ok(Verdict::Passed(facts))
}

impl<'a> Site<'a> {
    fn new(
        world: &'a World,
        store: &'a ObjectStore,
        bucket: &'static str,
        facts: &mut Facts,
    ) -> Result<Self> {
        let servers = [
            Cairn::start_alone(world, &format!("{bucket}-one"))?,
            Cairn::start_alone(world, &format!("{bucket}-two"))?,
        ];
        let key = (bucket == "sealed").then(|| world.folder.join("bucket.key"));
        if let Some(key) = &key {
            servers[0].cli(&["key", "create", &key.display().to_string(), "--yes"])?;
        }
        let mut mirrors = true;
        for server in &servers {
            let added = store.add_to(server, (BUCKET, bucket), key.as_deref())?;
            mirrors &= allows(&added, "mirror")? && allows(&added, "volume")?;
            ensure!(allows(&added, "dump")?, "image dumps are refused: {added}");
        }
        facts.max("safe for mirrors and volumes (1 yes)", u64::from(mirrors));
        let blocks: u64 = if world.short { 4 << 10 } else { 16 << 10 };
        servers[0].make_lun(blocks * BLOCK * 6 + (64 << 20), blocks * BLOCK)?;
        let versions = vec![0; blocks as usize];
        let mut site = Self {
            world,
            store,
            bucket,
            servers,
            owner: 0,
            versions,
            next: 1,
            images: BTreeMap::new(),
            mirrors,
        };
        site.write(&mut world.rng(u32::MAX), facts)?;
        let to = format!("{bucket}:");
        if mirrors {
            site.owner().json(&["mirror", "create", "vol0", "--to", &to])?;
            site.learn()?;
        } else {
            let said = site.owner().said(&["mirror", "create", "vol0", "--to", &to])?;
            let told = said["message"].as_str().unwrap_or_default();
            ensure!(told.contains("unsafe"), "a mirror into an unsafe store: {said}");
            facts.add("refusals of a mirror", 1);
        }
        Ok(site)
    }

    fn owner(&self) -> &Cairn {
        &self.servers[self.owner]
    }

    fn other(&self) -> &Cairn {
        &self.servers[1 - self.owner]
    }

    fn mirror(&self) -> String {
        format!("{}:vol0", self.bucket)
    }

    /// Writes some runs of blocks, and flushes.
    fn write(&mut self, rng: &mut Rng, facts: &mut Facts) -> Result<()> {
        let mut disk = self.owner().disk("vol0/db")?;
        let runs = 1 + rng.below(if self.world.short { 40 } else { 200 });
        for _ in 0..runs {
            let length = 1 + rng.below(32);
            let first = rng.below(self.versions.len() as u64 - length) as u32;
            let mut bytes = Vec::with_capacity(length as usize * BLOCK_SIZE);
            for block in first..first + length as u32 {
                bytes.extend_from_slice(&content(self.world.seed, block, self.next));
                self.versions[block as usize] = self.next;
            }
            self.next += 1;
            disk.write(u64::from(first) * BLOCK, &bytes)?;
            facts.add("blocks written", length);
        }
        Ok(disk.flush()?)
    }

    /// One round.
    fn round(&mut self, round: u32, facts: &mut Facts) -> Result<()> {
        let mut rng = self.world.rng(round ^ if self.bucket == "sealed" { 1 << 16 } else { 0 });
        self.write(&mut rng, facts)?;
        self.dump(round, facts, &mut rng).context("dump")?;
        if !self.mirrors {
            return Ok(());
        }
        self.write(&mut rng, facts)?;
        let before = self.versions.clone();
        let mirror = self.mirror();
        self.cut(0, &["mirror", "update", &mirror], facts, &mut rng)?;
        // Of the interrupted image, if it resumes, no later write is a part.
        if rng.one_in(2) {
            self.write(&mut rng, facts)?;
        }
        self.until_done(0, &["mirror", "update", &mirror]).context("update")?;
        self.learn_between(&before)?;
        self.restore(facts, &mut rng).context("restore")?;
        if round % MOVES_EVERY == MOVES_EVERY - 1 {
            self.move_over(facts, &mut rng).context("open elsewhere")?;
        }
        Ok(())
    }

    /// Starts a command on the owner (0) or on the other server (1), and kills something in the
    /// middle; all run again afterwards.
    fn cut(&self, on: usize, arguments: &[&str], facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let server = &self.servers[self.owner ^ on];
        let log = self.world.folder.join("commands.log");
        let mut process = Running::start(server.command(arguments).arg("--json"), &log)?;
        let longest_us = if rng.one_in(3) { 1_500_000 } else { 300_000 };
        let moment = Duration::from_micros(rng.below(longest_us));
        let ended = process.ended_within(moment)?;
        facts.add("commands that ended before the kill", u64::from(ended.is_some()));
        let victim = match rng.below(10) {
            0..4 => Victim::Server,
            4..7 => Victim::Store,
            7..9 => Victim::Both,
            _ => Victim::None,
        };
        let of_server = matches!(victim, Victim::Server | Victim::Both);
        let of_store = matches!(victim, Victim::Store | Victim::Both);
        if of_store {
            self.store.kill()?;
            facts.add("kills of the store", 1);
        }
        if of_server {
            server.kill()?;
            facts.add("kills of a server", 1);
        }
        if of_store {
            std::thread::sleep(Duration::from_millis(rng.below(1500)));
            self.store.serve()?;
        }
        if of_server {
            facts.add("kills of a server", server.serve_after_stumbling(rng)?);
            // The command has lost its server.
            process.kill()?;
        }
        if process.ended_within(PATIENCE)?.is_none() {
            bail!("{arguments:?} neither ends nor fails: {}", process.tail());
        }
        Ok(())
    }

    /// Repeats a command until it is done; its answer.
    fn until_done(&self, on: usize, arguments: &[&str]) -> Result<Value> {
        self.until(on, arguments, None)
    }

    /// The same; an error of the kind `or` is an answer as well. Other errors are noted in a file.
    fn until(&self, on: usize, arguments: &[&str], or: Option<&str>) -> Result<Value> {
        let server = &self.servers[self.owner ^ on];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = server.said(arguments)?;
            let Some(error) = said["error"].as_str().filter(|_| said["message_type"] == "error") else {
                return Ok(said);
            };
            if or == Some(error) {
                return Ok(said);
            }
            let notes = File::options().create(true).append(true).open(self.world.folder.join("retries.log"));
            writeln!(notes?, "{arguments:?}: {said}")?;
            if HARD.contains(&error) || Instant::now() > deadline {
                bail!("{arguments:?}: {said}");
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The ids of the images in the bucket, oldest first.
    fn listed(&self) -> Result<Vec<String>> {
        let said = self.until_done(1, &["mirror", "images", &self.mirror()])?;
        let images = said["volumes"][0]["images"].as_array().context("no list of images")?;
        let mut images: Vec<(u64, String)> = images
            .iter()
            .map(|image| Some((image["number"].as_u64()?, image["id"].as_str()?.to_owned())))
            .collect::<Option<_>>()
            .context("an image without number or id")?;
        images.sort();
        Ok(images.into_iter().map(|(_, id)| id).collect())
    }

    /// All images that were made since have the present content.
    fn learn(&mut self) -> Result<()> {
        self.learn_between(&self.versions.clone())
    }

    /// The newest image has the present content, and other new ones the content `before`.
    fn learn_between(&mut self, before: &Versions) -> Result<()> {
        let listed = self.listed()?;
        let newest = listed.last().context("no image")?.clone();
        self.images.retain(|id, _| listed.contains(id));
        for id in listed {
            self.images.entry(id).or_insert_with(|| before.clone());
        }
        let known = self.images.get_mut(&newest).context("no image")?;
        known.clone_from(&self.versions);
        Ok(())
    }

    /// Compares a LUN.
    fn compare(&self, server: &Cairn, export: &str, versions: &Versions, facts: &mut Facts) -> Result<()> {
        let mut bytes = vec![0; versions.len() * BLOCK_SIZE];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let read =
                server.disk(export).and_then(|mut disk| Ok(disk.read_all(0, &mut bytes, 1 << 20, 4)?));
            match read {
                Ok(()) => break,
                // Its store is away; what it served before is compared once it is back.
                Err(error) if Instant::now() > deadline => return Err(error.context(export.to_owned())),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
        for ((block, version), bytes) in (0..).zip(versions).zip(bytes.chunks(BLOCK_SIZE)) {
            let same = match version {
                0 => bytes.iter().all(|byte| *byte == 0),
                version => bytes == content(self.world.seed, block, *version),
            };
            if !same {
                let place = u64::from_le_bytes(bytes[..8].try_into()?);
                bail!(
                    "{export}: block {block} is not version {version}, but {:x} of block {:x}",
                    place as u32,
                    place >> 32
                );
            }
        }
        facts.add("blocks compared", versions.len() as u64);
        Ok(())
    }

    /// Dumps and restores, each cut.
    fn dump(&mut self, round: u32, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let place = format!("{}:", self.bucket);
        // The base of a level 1 is a snapshot of the owner.
        let level = if round.is_multiple_of(MOVES_EVERY) || rng.one_in(3) { "-0" } else { "-1" };
        let mut arguments = vec!["image", "dump", level, "vol0", &place];
        if rng.one_in(3) {
            arguments.push("--compress");
        }
        self.cut(0, &arguments, facts, rng)?;
        // A dump that was cut resumes. One that had not begun, or is complete, does not.
        let resumed = self.until_settled(&["image", "dump", "vol0", "--resume"])?;
        match resumed {
            Some(_) => facts.add("dumps resumed", 1),
            None => {
                self.until_done(0, &arguments)?;
            }
        }
        facts.add("dumps", 1);
        let name = self.mirror();
        self.until_done(1, &["image", "verify", &name])?;
        self.cut(1, &["image", "restore", "back", &name], facts, rng)?;
        self.finish_restore(&["image", "restore", "back"], &[&name])?;
        self.compare_restored(&self.versions.clone(), facts)
    }

    /// As [`Site::until_done`] on the owner, but for a command that has nothing to do.
    fn until_settled(&self, arguments: &[&str]) -> Result<Option<Value>> {
        match self.until(0, arguments, Some("not-found"))? {
            said if said["message_type"] == "error" => Ok(None),
            said => Ok(Some(said)),
        }
    }

    /// Completes a restore of `back` on the other server that was cut at any point.
    fn finish_restore(&self, command: &[&str], from: &[&str]) -> Result<()> {
        let volumes = self.other().json(&["volume", "list"])?;
        let there = volumes.as_array().context("no list of volumes")?;
        if there.iter().any(|volume| volume["name"] == "back") {
            return Ok(());
        }
        let resumed = self.until(1, &[command, &["--resume"]].concat(), Some("not-found"))?;
        if resumed["message_type"] == "error" {
            // It had not begun.
            self.until_done(1, &[command, from].concat())?;
        }
        Ok(())
    }

    fn compare_restored(&self, versions: &Versions, facts: &mut Facts) -> Result<()> {
        let other = self.other();
        self.compare(other, "back/db", versions, facts)?;
        other.check("back")?;
        other.cli(&["volume", "delete", "back", "--yes"])?;
        facts.add("restores compared", 1);
        Ok(())
    }

    /// Restores the newest image and an older one on the other server.
    fn restore(&self, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let mirror = self.mirror();
        self.cut(1, &["mirror", "restore", "back", &mirror], facts, rng)?;
        self.finish_restore(&["mirror", "restore", "back"], &[&mirror])?;
        self.compare_restored(&self.versions, facts).context("the newest image")?;
        let number = rng.below(self.images.len() as u64) as usize;
        let (id, versions) = self.images.iter().nth(number).context("no image")?;
        self.until_done(1, &["mirror", "restore", "back", &mirror, "--at", id])?;
        self.compare_restored(versions, facts).with_context(|| format!("image {id}"))
    }

    /// The other server opens the volume and takes it over; the owner is fenced.
    fn move_over(&mut self, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let mirror = self.mirror();
        let rate = if rng.one_in(2) { "4M" } else { "64M" };
        let open = ["volume", "open", mirror.as_str(), "--fill-rate", rate];
        self.cut(1, &open, facts, rng)?;
        let said = self.other().said(&["volume", "show", "vol0"])?;
        if said["message_type"] == "error" || said["bucket"].is_null() {
            // It had not begun, or gave itself up.
            self.until_done(1, &open)?;
        }
        let versions = self.versions.clone();
        // With the store killed in the middle of reading.
        if rng.one_in(2) {
            self.store.kill()?;
            facts.add("kills of the store", 1);
            std::thread::scope(|scope| {
                let back = scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(500));
                    self.store.serve()
                });
                self.compare(self.other(), "vol0/db", &versions, facts)?;
                back.join().map_err(|_| anyhow::anyhow!("panicked"))?
            })?;
        } else {
            self.compare(self.other(), "vol0/db", &versions, facts)?;
        }
        // The old owner still runs, has something to bring, and must bring nothing.
        let before = self.listed()?;
        let ours = (self.versions.clone(), self.next);
        self.write(rng, facts)?;
        self.is_fenced(&mirror)?;
        self.owner().kill()?;
        facts.add("kills of a server", 1 + self.owner().serve_after_stumbling(rng)?);
        self.is_fenced(&mirror)?;
        ensure!(self.listed()? == before, "the fenced owner made an image");
        facts.add("owners fenced", 1);
        (self.versions, self.next) = (ours.0, self.next);
        // The new owner writes, is killed, and mirrors.
        self.owner = 1 - self.owner;
        self.write(rng, facts)?;
        if rng.one_in(2) {
            self.owner().kill()?;
            facts.add("kills of a server", 1 + self.owner().serve_after_stumbling(rng)?);
        }
        self.all_local()?;
        self.compare(self.owner(), "vol0/db", &self.versions.clone(), facts)?;
        self.owner().check("vol0")?;
        let to = format!("{}:", self.bucket);
        self.until_done(0, &["mirror", "create", "vol0", "--to", &to, "--take-over"])?;
        self.learn()?;
        self.other().cli(&["mirror", "delete", &mirror, "--yes"])?;
        self.other().cli(&["volume", "delete", "vol0", "--yes"])?;
        Ok(())
    }

    fn is_fenced(&self, mirror: &str) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.owner().said(&["mirror", "update", mirror])?;
            match said["error"].as_str() {
                Some("wrong-role") => break,
                // The store is not back yet.
                Some(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(200)),
                _ => bail!("the old owner is not fenced: {said}"),
            }
        }
        let state = self.owner().json(&["mirror", "show", mirror])?["state"].clone();
        ensure!(state == "fenced", "the old owner reports {state}");
        Ok(())
    }

    /// Waits until the volume of the owner reads nothing from the bucket any more.
    fn all_local(&self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let shown = self.owner().said(&["volume", "show", "vol0"])?;
            if shown["bucket"]["regions_left"] == 0 || shown["bucket"].is_null() && shown["name"] == "vol0" {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "it does not become local: {shown}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The last comparison.
    fn end(self, facts: &mut Facts) -> Result<()> {
        if self.mirrors {
            let said = self.until_done(0, &["mirror", "verify", &self.mirror()])?;
            ensure!(said["damaged_total"] == 0 && said["contradictions"] == 0, "verify: {said}");
            facts.max("images in the bucket at the end", self.images.len() as u64);
        }
        self.owner().check("vol0")?;
        for server in &self.servers {
            server.has_not_panicked()?;
        }
        Ok(())
    }
}

/// Whether the answer of `bucket add` allows a use.
fn allows(added: &Value, what: &str) -> Result<bool> {
    let uses = [&added["uses"], &added["bucket"]["uses"]].into_iter().find_map(Value::as_array);
    let found = uses.context("no uses of a bucket")?.iter().find(|one| one["use"] == what);
    found.and_then(|one| one["allowed"].as_bool()).with_context(|| format!("no use {what}: {added}"))
}

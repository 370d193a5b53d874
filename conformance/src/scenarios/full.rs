//! No space: a volume that is full, and a host file system that is full under a volume.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use cairn_base::BLOCK_SIZE;
use cairn_frontend_nbd::{Client, ClientError, ClientRequest, NbdError};

use crate::model::content;
use crate::probe::{PROBE_BYTES, Probe};
use crate::program::{run as run_program, wait_until};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// Blocks of one write.
const WRITE_BLOCKS: u32 = 256;
const WRITE_BYTES: u64 = WRITE_BLOCKS as u64 * BLOCK_SIZE as u64;

/// A volume that its own client fills.
pub(crate) fn volume(world: &World, rounds: u32) -> Result<Verdict> {
    let cairn = Cairn::start_alone(world, "server")?;
    let volume_bytes: u64 = if world.short { 48 << 20 } else { 512 << 20 };
    cairn.make_lun(volume_bytes, volume_bytes * 2)?;
    cairn.cli(&["volume", "create", "calm", "--size", "64M"])?;
    cairn.cli(&["lun", "create", "calm/lun", "--size", &PROBE_BYTES.to_string()])?;
    let mut facts = Facts::default();
    for round in 1..=rounds {
        fill_and_free(&cairn, round, &mut facts).with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

fn fill_and_free(cairn: &Cairn, round: u32, facts: &mut Facts) -> Result<()> {
    // The other client starts with zeroes.
    clear(cairn, "calm/lun")?;
    let mut probe = Probe::new(cairn, "calm/lun", u64::from(round))?;
    let written = std::thread::scope(|scope| {
        let filling = scope.spawn(|| fill(&mut cairn.disk("vol0/db")?, round));
        let judged = probe.judge_until("a volume that fills up", facts, || filling.is_finished());
        let written = filling.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
        judged.map(|()| written)
    })?;
    facts.add("writes until full", u64::from(written));
    probe.judge("a volume that is full", facts)?;

    // Acknowledged writes are present, now and after a kill; a flush succeeds, and the volume stays
    // usable.
    let mut disk = cairn.disk("vol0/db")?;
    disk.flush().context("a flush of a full volume")?;
    compare(&mut disk, round, written)?;
    says_no_space(cairn, &["lun", "create", "vol0/more", "--size", "1M"])?;
    cairn.check("vol0")?;
    drop(disk);
    drop(probe);
    cairn.kill()?;
    cairn.serve()?;
    facts.add("kills", 1);
    let mut disk = cairn.disk("vol0/db")?;
    compare(&mut disk, round, written).context("after a kill of the full server")?;

    // Freed space can be written again.
    let half = u64::from(written) / 2 * WRITE_BYTES;
    disk.perform(ClientRequest::Trim { offset: 0, length: half })?;
    disk.flush()?;
    wait_until("a write fits again after a trim", || match write(&mut disk, round + 1000, 0) {
        Ok(()) => Ok(true),
        Err(ClientError::Failed { error: NbdError::NoSpace, .. }) => Ok(false),
        Err(error) => Err(error.into()),
    })?;
    cairn.check("vol0")?;
    clear(cairn, "vol0/db")
}

fn clear(cairn: &Cairn, export: &str) -> Result<()> {
    let mut disk = cairn.disk(export)?;
    let length = disk.size();
    disk.perform(ClientRequest::Trim { offset: 0, length })?;
    Ok(disk.flush()?)
}

fn write(disk: &mut Client, version: u32, index: u32) -> Result<(), ClientError> {
    let blocks = index * WRITE_BLOCKS..(index + 1) * WRITE_BLOCKS;
    let bytes: Vec<u8> = blocks.flat_map(|block| content(1, block, version)).collect();
    disk.write(u64::from(index) * WRITE_BYTES, &bytes)
}

/// Writes until there is no space; how many writes fitted.
fn fill(disk: &mut Client, version: u32) -> Result<u32> {
    let mut index = 0;
    loop {
        match write(disk, version, index) {
            Ok(()) => index += 1,
            Err(ClientError::Failed { error: NbdError::NoSpace, message }) => {
                if !message.contains("space") {
                    bail!("the message of a full volume does not say so: {message}");
                }
                return Ok(index);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn compare(disk: &mut Client, version: u32, written: u32) -> Result<()> {
    for index in 0..written {
        let bytes = disk.read(u64::from(index) * WRITE_BYTES, WRITE_BYTES as u32)?;
        for (block, bytes) in (index * WRITE_BLOCKS..).zip(bytes.chunks(BLOCK_SIZE)) {
            if bytes != content(1, block, version) {
                bail!("block {block}, whose write was answered, is not what was written");
            }
        }
    }
    Ok(())
}

/// The command fails for lack of space, and prints the remedy. (It may fit into the reserve for
/// deletions; then it is undone.)
fn says_no_space(cairn: &Cairn, arguments: &[&str]) -> Result<()> {
    let said = cairn.said(arguments)?;
    if said["message_type"] != "error" {
        return cairn.cli(&["lun", "delete", "vol0/more", "--yes"]).map(drop);
    }
    if said["error"] != "no-space" || said["next"].as_str().is_none_or(|next| next.len() < 10) {
        bail!("{arguments:?} on a full volume says {said}");
    }
    Ok(())
}

/// A tmpfs that holds the device of a volume, and is smaller than it.
struct Small(PathBuf);

impl Small {
    fn mount(world: &World, bytes: u64) -> Result<Self> {
        let folder = world.folder.join("small");
        std::fs::create_dir_all(&folder)?;
        let size = format!("size={bytes}");
        run_program(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&folder))?;
        Ok(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = run_program(Command::new("umount").arg("--lazy").arg(&self.0));
    }
}

/// The file system under a volume is full before the volume is.
pub(crate) fn host(world: &World, rounds: u32) -> Result<Verdict> {
    let host_bytes: u64 = if world.short { 64 << 20 } else { 512 << 20 };
    let small = match Small::mount(world, host_bytes) {
        Ok(small) => small,
        Err(error) => {
            return Ok(Verdict::Skipped { needs: format!("mounting a tmpfs: {error:#}"), kernel: true });
        }
    };
    let mut facts = Facts::default();
    for round in 1..=rounds {
        let cairn = Cairn::start_alone(world, &format!("server{round}"))?;
        host_fills(&cairn, &small, host_bytes, round, &mut facts)
            .with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    Ok(Verdict::Passed(facts))
}

fn host_fills(cairn: &Cairn, small: &Small, host_bytes: u64, round: u32, facts: &mut Facts) -> Result<()> {
    cairn.cli(&["volume", "create", "calm", "--size", "64M"])?;
    cairn.cli(&["lun", "create", "calm/lun", "--size", &PROBE_BYTES.to_string()])?;
    let image = small.0.join("image");
    std::fs::File::create(&image)?.set_len(host_bytes * 4)?;
    cairn.cli(&["volume", "create", "vol0", "--device", &image.display().to_string()])?;
    cairn.cli(&["lun", "create", "vol0/db", "--size", &(host_bytes * 3).to_string()])?;
    let mut probe = Probe::new(cairn, "calm/lun", u64::from(round))?;
    let flushed = std::thread::scope(|scope| {
        let filling = scope.spawn(|| fill_host(&mut cairn.disk("vol0/db")?, round));
        let judged = probe.judge_until("a host file system that fills up", facts, || filling.is_finished());
        let flushed = filling.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
        judged.map(|()| flushed)
    })?;
    facts.add("writes flushed until full", u64::from(flushed));
    probe.judge("a host file system that is full", facts)?;
    let status = cairn.json(&["status"])?;
    let problems = status["problems"].as_array().context("no problems")?;
    let told = problems.iter().find(|problem| problem["subject"] == "vol0");
    let told = told.with_context(|| format!("the status does not tell of the volume: {problems:?}"))?;
    if !told["message"].as_str().is_some_and(|message| message.contains("space")) {
        bail!("the problem does not say that there is no space: {told}");
    }
    // Room is made, and the server restarted: flushed data is present, and it resumes.
    run_program(
        Command::new("mount").args(["-o", &format!("remount,size={}", host_bytes * 8)]).arg(&small.0),
    )?;
    cairn.kill()?;
    facts.add("kills", 1);
    cairn.serve()?;
    let mut disk = cairn.disk("vol0/db")?;
    compare(&mut disk, round, flushed).context("flushed before the host was full")?;
    write(&mut disk, round + 1000, 0)?;
    disk.flush()?;
    cairn.check("vol0")?;
    drop(disk);
    cairn.kill()?;
    std::fs::remove_file(&image)?;
    run_program(Command::new("mount").args(["-o", &format!("remount,size={host_bytes}")]).arg(&small.0))?;
    Ok(())
}

/// Writes and flushes until a request fails; returns how many writes an answered flush covers.
fn fill_host(disk: &mut Client, version: u32) -> Result<u32> {
    let mut index = 0;
    loop {
        for of_flush in 0..8 {
            match write(disk, version, index + of_flush) {
                Ok(()) => {}
                Err(ClientError::Failed { .. }) => return Ok(index),
                Err(error) => return Err(error.into()),
            }
        }
        match disk.flush() {
            Ok(()) => index += 8,
            Err(ClientError::Failed { .. }) => return Ok(index),
            Err(error) => return Err(error.into()),
        }
    }
}

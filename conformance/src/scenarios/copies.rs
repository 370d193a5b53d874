//! Copies by libnbd and qemu, cut by a kill and repeated: in, out, as raw bytes and as a qcow2
//! image inside of the LUN.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_base::Rng;

use crate::program::{Running, is_installed, run as run_program};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// A run of the scenario.
pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    for program in ["nbdcopy", "qemu-img"] {
        if !is_installed(program) {
            return Ok(Verdict::without(program));
        }
    }
    let bytes: u64 = if world.short { 16 << 20 } else { 96 << 20 };
    let cairn = Cairn::start_alone(world, "server")?;
    cairn.make_lun(bytes * 4 + (128 << 20), bytes)?;
    // A qcow2 image takes a little more than its content.
    let qcow2_bytes = bytes + (16 << 20);
    cairn.cli(&["lun", "create", "vol0/qcow2", "--size", &qcow2_bytes.to_string()])?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let copies = Copies { world, cairn: &cairn, original: original(world, bytes, &mut rng)?, bytes };
        let outcome = match round % 3 {
            0 => copies.nbdcopy(&mut facts, &mut rng),
            1 => copies.convert(&mut facts, &mut rng),
            _ => copies.qcow2(&mut facts, &mut rng),
        };
        outcome.and_then(|()| cairn.check("vol0")).with_context(|| format!("round {round}"))?;
        facts.add("rounds", 1);
    }
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// A file of random bytes and holes.
fn original(world: &World, bytes: u64, rng: &mut Rng) -> Result<PathBuf> {
    let path = world.folder.join("original");
    let mut content = vec![0; bytes as usize];
    for piece in content.chunks_mut(64 << 10) {
        if !rng.one_in(3) {
            rng.fill(piece);
        }
    }
    std::fs::write(&path, content)?;
    Ok(path)
}

struct Copies<'a> {
    world: &'a World,
    cairn: &'a Cairn,
    original: PathBuf,
    bytes: u64,
}

impl Copies<'_> {
    /// Starts a copy, kills the server within it, and repeats it until it ends.
    fn cut_and_repeat(&self, facts: &mut Facts, rng: &mut Rng, copy: &dyn Fn() -> Command) -> Result<()> {
        let log = self.world.folder.join("copy.log");
        let mut cut = Running::start(&mut copy(), &log)?;
        let ended = cut.ended_within(Duration::from_micros(rng.below(self.bytes / 500)))?;
        self.cairn.kill()?;
        match ended {
            Some(status) if !status.success() => bail!("a copy failed before the kill: {}", cut.tail()),
            Some(_) => facts.add("kills after the copy", 1),
            None => facts.add("kills within the copy", 1),
        }
        drop(cut);
        facts.add("kills", 1 + self.cairn.serve_after_stumbling(rng)?);
        facts.add("copies", 1);
        Running::start(&mut copy(), &log)?.succeeds().context("the repeated copy")
    }

    /// A copy that ended with a flush is present after a kill.
    fn kill_and_compare(&self, facts: &mut Facts, rng: &mut Rng, format: &str, export: &str) -> Result<()> {
        self.cairn.kill()?;
        facts.add("kills", 1 + self.cairn.serve_after_stumbling(rng)?);
        let mut compare = Command::new("qemu-img");
        compare.args(["compare", "-f", "raw", "-F", format]).arg(&self.original).arg(self.cairn.uri(export));
        run_program(&mut compare).map(drop).context("the copy differs")
    }

    fn nbdcopy(&self, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let uri = self.cairn.uri("vol0/db");
        let copy = |from: &str, to: &str| {
            let mut nbdcopy = Command::new("nbdcopy");
            nbdcopy.args(["--flush", from, to]);
            nbdcopy
        };
        let original = self.original.display().to_string();
        self.cut_and_repeat(facts, rng, &|| copy(&original, &uri))?;
        self.kill_and_compare(facts, rng, "raw", "vol0/db")?;
        let back = self.world.folder.join("back");
        self.cut_and_repeat(facts, rng, &|| copy(&uri, &back.display().to_string()))?;
        self.same_as_original(&back)
    }

    fn convert(&self, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let uri = self.cairn.uri("vol0/db");
        self.cut_and_repeat(facts, rng, &|| {
            let mut convert = Command::new("qemu-img");
            convert.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&self.original).arg(&uri);
            convert
        })?;
        self.kill_and_compare(facts, rng, "raw", "vol0/db")?;
        let back = self.world.folder.join("back");
        self.cut_and_repeat(facts, rng, &|| {
            let mut convert = Command::new("qemu-img");
            convert.args(["convert", "-f", "raw", "-O", "raw", &uri]).arg(&back);
            convert
        })?;
        self.same_as_original(&back)
    }

    fn qcow2(&self, facts: &mut Facts, rng: &mut Rng) -> Result<()> {
        let uri = self.cairn.uri("vol0/qcow2");
        let length = self.bytes.to_string();
        self.cut_and_repeat(facts, rng, &|| {
            // The image is made anew each time: an interrupted copy leaves half of one.
            let mut shell = Command::new("sh");
            let script = r#"qemu-img create -q -f qcow2 "$2" "$3" && exec qemu-img convert -n -f raw -O qcow2 "$1" "$2""#;
            // So that both of its programs end with it: a surviving one would write beside the
            // next.
            shell.process_group(0);
            shell.args(["-c", script, "sh"]).arg(&self.original).args([&uri, &length]);
            shell
        })?;
        run_program(Command::new("qemu-img").args(["check", "-f", "qcow2", &uri]))?;
        self.kill_and_compare(facts, rng, "qcow2", "vol0/qcow2")?;
        run_program(Command::new("qemu-img").args(["check", "-f", "qcow2", &uri])).map(drop)
    }

    fn same_as_original(&self, back: &Path) -> Result<()> {
        if std::fs::read(back)? != std::fs::read(&self.original)? {
            bail!("what came back differs");
        }
        Ok(std::fs::remove_file(back)?)
    }
}

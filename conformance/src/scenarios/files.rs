//! Foreign programs on the files of a volume: pjdfstest and fsx find no fault beyond the listed
//! ones; git and a build that are killed with the server recover.
//!
//! With power cuts a killed server loses all unflushed data. Fsynced files must exist all the same;
//! the rest may be of any moment, and the tree is whole.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::program::{Running, is_installed, run as run_program};
use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// Known failures of pjdfstest, with their reasons: a name of a test a line, blanks, and the
/// reason.
const EXCEPTIONS: &str = include_str!("../../pjdfstest.txt");

/// Files of a volume on a directory; they are unmounted when this is dropped.
pub(crate) struct Tree {
    pub(crate) folder: PathBuf,
}

impl Tree {
    pub(crate) fn mount(world: &World, cairn: &Cairn, volume: &str) -> Result<Self> {
        let tree = Self { folder: world.folder.join(format!("files-{volume}")) };
        std::fs::create_dir_all(&tree.folder)?;
        cairn.cli(&["mount", volume, &tree.folder.display().to_string(), "--dev", "--suid"])?;
        Ok(tree)
    }

    /// Without its server: users get an error. Accesses before the kernel has released the mount
    /// are aborted.
    pub(crate) fn is_gone(&self) -> Result<()> {
        use rustix::io::Errno;
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let Err(error) = std::fs::read_dir(&self.folder) else {
                bail!("without its server the mount answers");
            };
            match Errno::from_io_error(&error) {
                Some(Errno::NOTCONN) => return Ok(()),
                Some(Errno::CONNABORTED | Errno::CANCELED) if Instant::now() < deadline => {}
                _ => bail!("without its server the mount says: {error}"),
            }
        }
    }

    /// With a server that was started again.
    pub(crate) fn is_back(&self) -> Result<()> {
        std::fs::read_dir(&self.folder).map(drop).context("the mount is not there again")
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).output();
    }
}

/// A server with files of `vol0` on a directory.
struct Files {
    tree: Tree,
    cairn: Cairn,
}

impl Files {
    fn start(world: &World, bytes: u64) -> Result<Self> {
        let cairn = Cairn::start_alone(world, "server")?;
        cairn.make_volume(bytes)?;
        Ok(Self { tree: Tree::mount(world, &cairn, "vol0")?, cairn })
    }

    /// Kills the server, sometimes while it restarts; the mount exists afterwards, and the volume
    /// is sound.
    fn fall(&self, rng: &mut cairn_base::Rng) -> Result<u64> {
        self.cairn.kill()?;
        self.tree.is_gone()?;
        let kills = 1 + self.cairn.serve_after_stumbling(rng)?;
        self.cairn.check("vol0")?;
        self.tree.is_back()?;
        Ok(kills)
    }

    fn folder(&self) -> &Path {
        &self.tree.folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }
}

/// Why this machine cannot mount files; `None` when it can.
pub(crate) fn cannot_mount(programs: &[&str]) -> Result<Option<Verdict>> {
    if !Path::new("/dev/fuse").exists() {
        return Ok(Some(Verdict::Skipped { needs: "/dev/fuse is missing".to_owned(), kernel: true }));
    }
    if run_program(Command::new("id").arg("-u"))?.trim() != "0" {
        return Ok(Some(Verdict::Skipped { needs: "root, to mount".to_owned(), kernel: true }));
    }
    // They come from cargo, or with a compiler, not from a package of the tests, so a missing one
    // is not an error.
    let missing = programs.iter().find(|program| !is_installed(program));
    Ok(missing.map(|program| Verdict::Skipped { needs: format!("{program} is not installed"), kernel: true }))
}

/// pjdfstest: POSIX's rules for names, modes, owners and times.
pub(crate) fn posix(world: &World, _rounds: u32) -> Result<Verdict> {
    if let Some(verdict) = cannot_mount(&["pjdfstest"])? {
        return Ok(verdict);
    }
    let files = Files::start(world, 1 << 30)?;
    let configuration = world.folder.join("pjdfstest.toml");
    std::fs::write(
        &configuration,
        "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\n[settings]\nnaptime = 0.01\nallow_remount = false\n\n[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
    )?;
    std::fs::set_permissions(files.folder(), std::os::unix::fs::PermissionsExt::from_mode(0o1777))?;
    let mut suite = Command::new("pjdfstest");
    suite.arg("-c").arg(&configuration).arg("-p").arg(files.folder()).env("NO_COLOR", "1");
    let output = suite.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut facts = Facts::default();
    let failed = judge(&text, &mut facts);
    let known: BTreeSet<&str> = EXCEPTIONS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let strange: Vec<&String> = failed.iter().filter(|name| !known.contains(name.as_str())).collect();
    if !strange.is_empty() || facts.get("tests") < 100 {
        let tail: String = text.chars().rev().take(4000).collect::<Vec<_>>().into_iter().rev().collect();
        bail!("pjdfstest fails in {strange:?}: {tail}{}", String::from_utf8_lossy(&output.stderr));
    }
    facts.add("listed exceptions", failed.len() as u64);
    files.cairn.check("vol0")?;
    files.cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// The names of the tests that failed; the others are counted. A line is
/// `NAME success|FAILED|skipped ...`.
fn judge(text: &str, facts: &mut Facts) -> Vec<String> {
    let mut failed = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(verdict)) = (words.next(), words.next()) else { continue };
        if !name.contains("::") {
            continue;
        }
        match verdict {
            "ok" | "success" | "passed" => facts.add("tests", 1),
            "skipped" => facts.add("skipped", 1),
            "FAILED" | "failed" => {
                facts.add("tests", 1);
                failed.push(name.to_owned());
            }
            _ => {}
        }
    }
    failed
}

/// fsx: reads, writes, mapped and not, truncations, holes and copies, each compared with the
/// expected content.
pub(crate) fn exerciser(world: &World, rounds: u32) -> Result<Verdict> {
    if let Some(verdict) = cannot_mount(&["fsx"])? {
        return Ok(verdict);
    }
    let files = Files::start(world, 1 << 30)?;
    let operations = if world.short { 1000 } else { 20_000 };
    let configuration = world.folder.join("fsx.toml");
    std::fs::write(
        &configuration,
        "[weights]\nclose_open = 1.0\ninvalidate = 1.0\nread = 10.0\nwrite = 10.0\nmapread = 10.0\nmapwrite = 10.0\ntruncate = 10.0\nfsync = 1.0\nfdatasync = 1.0\npunch_hole = 5.0\nposix_fallocate = 1.0\nsendfile = 2.0\ncopy_file_range = 5.0\n",
    )?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let seed = rng.below(1 << 31).to_string();
        let mut whole = Command::new("fsx");
        whole.args(["-N", &operations.to_string(), "-S", &seed, "-q", "-f"]).arg(&configuration);
        whole.arg("-P").arg(&world.folder).arg(files.path("whole"));
        run_program(&mut whole).with_context(|| format!("round {round}"))?;
        facts.add("operations", operations);
        let mut cut = Command::new("fsx");
        cut.args(["-q", "-S", &seed, "-f"]).arg(&configuration).arg("-P").arg(&world.folder);
        let mut cut = Running::start(cut.arg(files.path("cut")), &world.folder.join("fsx.log"))?;
        cut.ended_within(Duration::from_micros(rng.below(500_000)))?;
        facts.add("kills", files.fall(&mut rng)?);
        drop(cut);
        facts.add("rounds", 1);
    }
    files.cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// git, killed in the middle: everything that it reported as committed exists, and nothing is
/// broken.
pub(crate) fn git(world: &World, rounds: u32) -> Result<Verdict> {
    if let Some(verdict) = cannot_mount(&["git"])? {
        return Ok(verdict);
    }
    let files = Files::start(world, 1 << 30)?;
    let repository = files.path("repository");
    let git = |arguments: &[&str]| -> Result<String> { run_program(git_in(&repository).args(arguments)) };
    std::fs::create_dir(&repository)?;
    git(&["init", "-q"])?;
    // Its own default fsyncs packs alone.
    git(&["config", "core.fsync", "all"])?;
    git(&["config", "gc.auto", "40"])?;
    let script = world.folder.join("commits");
    // git fsyncs a branch's file before it renames it, and leaves the directory alone.
    let done = world.folder.join("done");
    std::fs::write(
        &script,
        "cd \"$1\" || exit 1\nn=0\nwhile :; do\n  n=$((n + 1))\n  mkdir -p \"d$((n % 7))\" && echo \"$2 $n\" > \"d$((n % 7))/f$n\" || exit 1\n  git add -A >/dev/null && git commit -q -m \"$2 $n\" || exit 1\n  sync .git/refs/heads || exit 1\n  commit=$(git rev-parse --verify HEAD) || exit 1\n  echo \"$commit\" >> \"$3\"\ndone\n",
    )?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let mut load = Command::new("sh");
        load.arg(&script).arg(&repository).arg(round.to_string()).arg(&done);
        clean_git(&mut load);
        std::os::unix::process::CommandExt::process_group(&mut load, 0);
        let mut load = Running::start(&mut load, &world.folder.join("git.log"))?;
        let moment = Duration::from_millis(if world.short { 300 } else { 1000 } + rng.below(1500));
        if let Some(status) = load.ended_within(moment)? {
            bail!("git ends before the server does ({status}): {}", load.tail());
        }
        let acknowledged = std::fs::read_to_string(&done).unwrap_or_default();
        facts.add("kills", files.fall(&mut rng)?);
        load.kill()?;
        // A killed git leaves these in its own way; its manual says to remove them.
        for lock in ["index.lock", "HEAD.lock", "refs/heads/master.lock", "refs/heads/main.lock", "gc.pid"] {
            let _ = std::fs::remove_file(repository.join(".git").join(lock));
        }
        git(&["fsck", "--strict", "--no-dangling"]).with_context(|| format!("round {round}"))?;
        let have: BTreeSet<String> = git(&["rev-list", "--all"])?.lines().map(str::to_owned).collect();
        for commit in acknowledged.lines() {
            if !have.contains(commit) {
                bail!("round {round}: commit {commit} was acknowledged, and is gone");
            }
        }
        git(&["reset", "-q", "--hard"])?;
        facts.max("commits that are there", have.len() as u64);
        facts.add("rounds", 1);
    }
    files.cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

fn git_in(repository: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(repository);
    clean_git(&mut command);
    command
}

fn clean_git(command: &mut Command) {
    for (name, value) in [
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_SYSTEM", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
    ] {
        command.env(name, value);
    }
}

/// A build of a program, killed in the middle: its sources are unchanged, and built anew it works
/// as elsewhere.
pub(crate) fn build(world: &World, rounds: u32) -> Result<Verdict> {
    if let Some(verdict) = cannot_mount(&["make", "cc"])? {
        return Ok(verdict);
    }
    let files = Files::start(world, 1 << 30)?;
    let units = if world.short { 24 } else { 120 };
    let (here, there) = (world.folder.join("project"), files.path("project"));
    for folder in [&here, &there] {
        write_project(folder, units)?;
    }
    let make = |folder: &Path| -> Result<String> {
        run_program(Command::new("make").args(["-s", "-j4", "-C"]).arg(folder))?;
        run_program(&mut Command::new(folder.join("program")))
    };
    let expected = make(&here)?;
    let mut facts = Facts::default();
    for round in 0..rounds {
        let mut rng = world.rng(round);
        let mut load = Command::new("make");
        load.args(["-s", "-j4", "-C"]).arg(&there);
        std::os::unix::process::CommandExt::process_group(&mut load, 0);
        let mut load = Running::start(&mut load, &world.folder.join("make.log"))?;
        load.ended_within(Duration::from_millis(50 + rng.below(900)))?;
        facts.add("kills", files.fall(&mut rng)?);
        load.kill()?;
        for unit in 0..units {
            let name = format!("unit{unit}.c");
            if std::fs::read(there.join(&name))? != std::fs::read(here.join(&name))? {
                bail!("round {round}: {name} is not what was fsynced");
            }
        }
        // A compiler fsyncs nothing, so objects of the killed build may be anything; the build from
        // its sources must work.
        run_program(Command::new("make").args(["-s", "clean", "-C"]).arg(&there))?;
        let said = make(&there).with_context(|| format!("round {round}"))?;
        if said != expected {
            bail!("round {round}: the program says {said:?} and not {expected:?}");
        }
        run_program(Command::new("make").args(["-s", "clean", "-C"]).arg(&there))?;
        facts.add("rounds", 1);
    }
    files.cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

/// A program of many sources, durable.
fn write_project(folder: &Path, units: u32) -> Result<()> {
    std::fs::create_dir(folder)?;
    let put = |name: &str, text: String| -> Result<()> {
        use std::io::Write;
        let mut file = std::fs::File::create(folder.join(name))?;
        file.write_all(text.as_bytes())?;
        Ok(file.sync_all()?)
    };
    let mut objects = String::from("main.o");
    let mut main = String::from("#include <stdio.h>\n");
    let mut sum = String::from("0");
    for unit in 0..units {
        let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for part in 0..40 {
            text += &format!(
                "static int part{part}(int n) {{ char text[64]; snprintf(text, sizeof text, \"%d\", n * {unit} + {part}); return atoi(text) % 1000; }}\n"
            );
        }
        let calls: Vec<String> = (0..40).map(|part| format!("part{part}(n)")).collect();
        text += &format!("int unit{unit}(int n) {{ return {}; }}\n", calls.join(" + "));
        put(&format!("unit{unit}.c"), text)?;
        objects += &format!(" unit{unit}.o");
        main += &format!("int unit{unit}(int);\n");
        sum += &format!(" + unit{unit}(7)");
    }
    main += &format!("int main(void) {{ printf(\"%d\\n\", {sum}); return 0; }}\n");
    put("main.c", main)?;
    put(
        "Makefile",
        format!(
            "program: {objects}\n\tcc -o $@ $^\n%.o: %.c\n\tcc -O1 -c -o $@ $<\nclean:\n\trm -f *.o program\n"
        ),
    )?;
    Ok(std::fs::File::open(folder)?.sync_all()?)
}

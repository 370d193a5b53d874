//! xfstests on the files of a volume. Its generic tests (the quick ones; all in more than one
//! round) pass, are skipped for features that a FUSE file system lacks, or are listed with the
//! reason.
//!
//! The suite is built and installed by hand (`make && make install`, which puts it into
//! `/var/lib/xfstests`; `CAIRN_XFSTESTS` names another place) and needs the users `fsgqa`, `fsgqa2`
//! and `123456-fsgqa`. It relies on `mount -t`, so a `mount` and a `df` before those of the system
//! in its path translate for it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::scenario::{Facts, Verdict, World};
use crate::server::Cairn;

/// Known failures, with their reasons: a name of a test a line, blanks, and the reason.
const EXCEPTIONS: &str = include_str!("../../xfstests.txt");
/// Where `make install` puts the suite.
const SUITE: &str = "/var/lib/xfstests";
/// Volumes of the two file systems that the suite needs, and their bytes.
const VOLUMES: [(&str, u64); 2] = [("xtest", 20 << 30), ("xscratch", 20 << 30)];
/// Seconds after which a test is taken for one that hangs: of the quick ones, and of others.
const PATIENCE_SECONDS: [u32; 2] = [300, 1800];

/// The outcome of a test.
enum Outcome {
    Passed,
    NotRun,
    Failed(String),
}

pub(crate) fn run(world: &World, rounds: u32) -> Result<Verdict> {
    let suite = std::env::var_os("CAIRN_XFSTESTS").map_or(PathBuf::from(SUITE), PathBuf::from);
    if !suite.join("check").is_file() {
        let needs = format!("xfstests are not installed in {}", suite.display());
        return Ok(Verdict::Skipped { needs, kernel: true });
    }
    let cairn = Cairn::start_alone(world, "server")?;
    for (name, bytes) in VOLUMES {
        cairn.cli(&["volume", "create", name, "--size", &bytes.to_string()])?;
    }
    let all = rounds > 1;
    let bench = Bench::new(world, &cairn, suite, PATIENCE_SECONDS[usize::from(all)])?;
    let (mut facts, mut strange) = (Facts::default(), Vec::new());
    for test in bench.tests(world.short, all)? {
        match bench.run(&test)? {
            Outcome::Passed => facts.add("tests", 1),
            Outcome::NotRun => facts.add("not run", 1),
            Outcome::Failed(_) if is_listed(&test) => facts.add("listed exceptions", 1),
            Outcome::Failed(said) => strange.push(format!("{test}: {said}")),
        }
    }
    if !strange.is_empty() || facts.get("tests") == 0 {
        bail!("xfstests: {facts}; these fail and are not listed:\n{}", strange.join("\n"));
    }
    for (name, _) in VOLUMES {
        cairn.check(name)?;
    }
    cairn.log_is_clean()?;
    Ok(Verdict::Passed(facts))
}

fn is_listed(test: &str) -> bool {
    EXCEPTIONS.lines().any(|line| line.split_whitespace().next() == Some(test))
}

/// The environment of the suite; both file systems are unmounted when this is dropped.
struct Bench {
    suite: PathBuf,
    folder: PathBuf,
    patience: u32,
}

impl Bench {
    fn new(world: &World, cairn: &Cairn, suite: PathBuf, patience: u32) -> Result<Self> {
        let bench = Self { suite, folder: world.folder.clone(), patience };
        // Users of the suite read it.
        std::fs::set_permissions(&bench.folder, PermissionsExt::from_mode(0o755))?;
        for folder in ["bin", "test", "scratch", "results"] {
            std::fs::create_dir_all(bench.folder.join(folder))?;
        }
        let at = |name: &str| bench.folder.join(name).display().to_string();
        let (program, data) = (world.cairn.display(), cairn.data.display());
        bench.script("df", "exec /bin/df \"$@\" | sed s/fuse.cairn/fuse/")?;
        bench.script(
            "mount",
            &format!(
                r#"all=("$@"); kind=; options=; places=(); rights=(--dev --suid)
while [ $# -gt 0 ]; do
    case $1 in
        -t) kind=$2; shift ;;
        -o) options=$options,$2; shift ;;
        -o*) options=$options,${{1#-o}} ;;
        -*) ;;
        *) places+=("$1") ;;
    esac
    shift
done
[ "$kind" = fuse.cairn ] || exec /bin/mount "${{all[@]}}"
case ,$options, in *,remount,*) exec /bin/mount -i -o "${{options#,}}" "${{places[-1]}}" ;; esac
case ,$options, in *,nosuid,*) rights=(--dev) ;; esac
{program} mount --data {data} "${{places[@]}}" "${{rights[@]}}" > /dev/null || exit 32
rest=$(tr , '\n' <<< "$options" | grep -xE 'ro|noatime|nodiratime|strictatime|relatime|noexec|nodev' | paste -sd,)
[ -z "$rest" ] || /bin/mount -i -o "remount,$rest" "${{places[1]}}""#
            ),
        )?;
        let configuration = format!(
            "export TEST_DEV={}\nexport TEST_DIR={}\nexport SCRATCH_DEV={}\nexport SCRATCH_MNT={}\nexport FSTYP=fuse\nexport FUSE_SUBTYP=.cairn\nexport RESULT_BASE={}\n",
            VOLUMES[0].0,
            at("test"),
            VOLUMES[1].0,
            at("scratch"),
            at("results"),
        );
        std::fs::write(bench.folder.join("local.config"), configuration)?;
        Ok(bench)
    }

    fn script(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/bash\n{text}\n"))?;
        Ok(std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?)
    }

    /// The generic tests that take seconds, or `all`; in short the first of these.
    fn tests(&self, short: bool, all: bool) -> Result<Vec<String>> {
        let list = self.suite.join("tests/generic/group.list");
        let list = std::fs::read_to_string(&list).with_context(|| list.display().to_string())?;
        let is_wanted = |line: &&str| {
            let is_of = |group| line.split_whitespace().skip(1).any(|word| word == group);
            is_of("auto") && (all || is_of("quick"))
        };
        let name = |line: &str| line.split_whitespace().next().map(|number| format!("generic/{number}"));
        let count = if short { 20 } else { usize::MAX };
        Ok(list.lines().filter(is_wanted).filter_map(name).take(count).collect())
    }

    fn run(&self, test: &str) -> Result<Outcome> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut check = Command::new("timeout");
        check.args(["--kill-after=10", &self.patience.to_string(), "./check", "-fuse", test]);
        check.current_dir(&self.suite).env("HOST_OPTIONS", self.folder.join("local.config"));
        check.env("PATH", format!("{}:{path}", self.folder.join("bin").display())).stdin(Stdio::null());
        let output = check.output().context("timeout does not start")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(match () {
            () if said.contains("[not run]") => Outcome::NotRun,
            () if said.contains("Passed all 1 tests") => Outcome::Passed,
            () => Outcome::Failed(said + &String::from_utf8_lossy(&output.stderr)),
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        for place in ["scratch", "test"] {
            let place: &Path = &self.folder.join(place);
            let _ = Command::new("umount").arg("--lazy").arg(place).stderr(Stdio::null()).status();
        }
    }
}

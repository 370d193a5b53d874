//! PostMark as the MSST 2006 paper ran it, and dbench, on a mount of Cairn's next to ext4 in
//! fuse2fs, ext4 and btrfs of the kernel.
//!
//! PostMark (Katz, NetApp TR-3022): a pool of small files is made; each transaction creates or
//! deletes one, and reads or appends to one, all chosen at random; then the rest is deleted. The
//! paper has 50,000 files, 100,000 transactions, and reads and writes of 4 KB; sizes are PostMark's
//! own, 500 to 9,770 bytes. PostMark's habit of putting all files into one directory is left out:
//! fuse2fs reads a directory from its beginning for each name that it adds. Each file system gets
//! the same files and transactions in the same order.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cairn_base::Rng;

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::files_rows::{Contender, Sizes, clocked, sync};
use crate::process::{run, settle};
use crate::report::{Report, Target, median};

/// PostMark's own smallest and largest file.
const BYTES_MIN: usize = 500;
const BYTES_MAX: usize = 9770;
/// Bytes of a read or a write.
const BUFFER: usize = 4096;
/// Directories that the pool is spread over.
const DIRECTORIES: u64 = 250;
/// Clients of dbench.
const CLIENTS: &str = "4";

/// How much PostMark does.
struct Pool {
    files: usize,
    transactions: usize,
}

/// Figures of one contender.
#[derive(Default)]
struct Seen {
    create: Vec<f64>,
    transactions: Vec<f64>,
    total: Vec<f64>,
    dbench: Vec<f64>,
}

pub(crate) fn postmark(plan: &Plan, report: &mut Report) -> Result<()> {
    plan.ask_room(8)?;
    let pool = match plan.quick {
        true => Pool { files: 500, transactions: 1000 },
        false => Pool { files: 50_000, transactions: 100_000 },
    };
    let device = if plan.quick { 512 << 20 } else { 4 << 30 };
    let sizes = Sizes { files: 2 * pool.files, large: 0, device };
    let folder = plan.folder.join("postmark");
    fs::create_dir_all(&folder)?;
    let cairn = match plan.only_peers {
        true => None,
        false => Some(Cairn::start(plan, "postmark-cairn", "off", MEMORY_DEFAULT_MIB)?),
    };
    let mut contenders = Contender::all(cairn.as_ref(), &folder, &sizes, report)?;
    let mut seen: Vec<Seen> = contenders.iter().map(|_| Seen::default()).collect();
    for _ in 0..plan.turns.unwrap_or(1) {
        for (contender, seen) in contenders.iter().zip(&mut seen) {
            if plan.wants("postmark") {
                seen.postmark(&contender.folder.join("pool"), &pool)
                    .with_context(|| format!("with {}", contender.name))?;
                settle()?;
            }
        }
        for (contender, seen) in contenders.iter().zip(&mut seen) {
            if plan.wants("dbench") {
                match dbench(plan, &contender.folder) {
                    Ok(rate) => seen.dbench.push(rate),
                    Err(error) => report.note(format!("dbench on {} is left out: {error:#}", contender.name)),
                }
                settle()?;
            }
        }
    }
    rows(report, &contenders, seen, cairn.is_some(), &pool);
    report.note(format!(
        "PostMark: {} files of {BYTES_MIN} to {BYTES_MAX} bytes in {DIRECTORIES} directories, {} transactions, pieces of {BUFFER} bytes, one thread, equal parts of create and delete, of read and append. The total ends when the deletion of what is left is on the disk; nothing is synced before. dbench: `-t {} {CLIENTS}`, Debian's load file.",
        pool.files,
        pool.transactions,
        dbench_seconds(plan),
    ));
    // Before its server ends.
    contenders.retain(|contender| contender.name != "cairn");
    Ok(())
}

fn rows(report: &mut Report, contenders: &[Contender], seen: Vec<Seen>, with_cairn: bool, pool: &Pool) {
    type Pick = fn(&Seen) -> &Vec<f64>;
    let total = format!("PostMark, {} transactions: total running time", pool.transactions);
    let works: [(&str, &'static str, Pick); 4] = [
        ("PostMark: making the pool", "files/s", |seen| &seen.create),
        ("PostMark: transactions", "1/s", |seen| &seen.transactions),
        (&total, "s", |seen| &seen.total),
        ("dbench, 4 clients", "MB/s", |seen| &seen.dbench),
    ];
    for (work, unit, pick) in works {
        let of = |seen: &Seen| Some(pick(seen).clone()).filter(|all| !all.is_empty()).map(median);
        let mut medians: Vec<(&'static str, Option<f64>)> =
            contenders.iter().zip(&seen).map(|(one, seen)| (one.name, of(seen))).collect();
        let ours = if with_cairn { medians.remove(0).1 } else { None };
        for (name, figure) in medians {
            let Some(figure) = figure else { continue };
            let asked = match (name, unit) {
                ("fuse2fs", "s") => Target::AtMost(1.0),
                ("fuse2fs", _) => Target::AtLeast(1.0),
                _ => Target::None,
            };
            report.against(work, unit, ours, (name, figure), asked);
        }
    }
}

fn dbench_seconds(plan: &Plan) -> u32 {
    if plan.quick { 2 } else { 20 }
}

/// Megabytes a second of dbench, by its own count.
fn dbench(plan: &Plan, mount: &Path) -> Result<f64> {
    let folder = mount.join("dbench");
    fs::create_dir(&folder)?;
    let mut command = Command::new("timeout");
    command.args(["120", "dbench", "-t", &dbench_seconds(plan).to_string(), "-D"]).arg(&folder).arg(CLIENTS);
    let said = run(&mut command);
    // The remains of an aborted run.
    let removed = fs::remove_dir_all(&folder);
    let said = said?;
    removed?;
    let line =
        said.lines().find(|line| line.starts_with("Throughput")).context("dbench told no throughput")?;
    line.split_whitespace().nth(1).and_then(|rate| rate.parse().ok()).with_context(|| line.to_owned())
}

impl Seen {
    fn postmark(&mut self, folder: &Path, pool: &Pool) -> Result<()> {
        fs::create_dir(folder)?;
        let mut files = Files {
            folder: folder.to_owned(),
            all: Vec::new(),
            next: 0,
            rng: Rng::new(42),
            buffer: vec![0; BUFFER],
        };
        files.rng.fill(&mut files.buffer);
        let create = clocked(|| {
            (0..DIRECTORIES).try_for_each(|number| fs::create_dir(folder.join(format!("s{number}"))))?;
            (0..pool.files).try_for_each(|_| files.create())
        })?;
        let transactions = clocked(|| (0..pool.transactions).try_for_each(|_| files.transaction()))?;
        let rest = clocked(|| {
            while !files.all.is_empty() {
                files.delete()?;
            }
            fs::remove_dir_all(folder)?;
            sync(folder.parent().context("a folder")?)
        })?;
        self.create.push(pool.files as f64 / create.as_secs_f64());
        self.transactions.push(pool.transactions as f64 / transactions.as_secs_f64());
        self.total.push((create + transactions + rest).as_secs_f64());
        Ok(())
    }
}

/// The present pool: numbers and sizes.
struct Files {
    folder: PathBuf,
    all: Vec<(u64, usize)>,
    next: u64,
    rng: Rng,
    buffer: Vec<u8>,
}

impl Files {
    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("s{}", number % DIRECTORIES)).join(format!("f{number}"))
    }

    fn any(&mut self) -> usize {
        self.rng.below(self.all.len() as u64) as usize
    }

    fn transaction(&mut self) -> Result<()> {
        // An empty pool can't be read, and with one file left it is kept.
        if self.all.len() < 2 || self.rng.below(2) == 0 {
            self.create()?;
        } else {
            self.delete()?;
        }
        if self.rng.below(2) == 0 { self.read() } else { self.append() }
    }

    fn create(&mut self) -> Result<()> {
        let (number, bytes) =
            (self.next, BYTES_MIN + self.rng.below((BYTES_MAX - BYTES_MIN + 1) as u64) as usize);
        self.next += 1;
        let mut file = File::create(self.path(number))?;
        self.write(&mut file, bytes)?;
        self.all.push((number, bytes));
        Ok(())
    }

    fn delete(&mut self) -> Result<()> {
        let at = self.any();
        let (number, _) = self.all.swap_remove(at);
        Ok(fs::remove_file(self.path(number))?)
    }

    fn read(&mut self) -> Result<()> {
        let at = self.any();
        let (number, bytes) = self.all[at];
        let mut file = File::open(self.path(number))?;
        let (mut piece, mut found) = ([0; BUFFER], 0);
        loop {
            let count = file.read(&mut piece)?;
            found += count;
            if count < BUFFER {
                break;
            }
        }
        ensure!(found == bytes, "f{number} has {found} bytes of {bytes}");
        Ok(())
    }

    fn append(&mut self) -> Result<()> {
        let at = self.any();
        let (number, bytes) = self.all[at];
        if bytes == BYTES_MAX {
            return Ok(());
        }
        let more = 1 + self.rng.below((BYTES_MAX - bytes) as u64) as usize;
        let mut file = OpenOptions::new().append(true).open(self.path(number))?;
        self.write(&mut file, more)?;
        self.all[at].1 += more;
        Ok(())
    }

    fn write(&self, file: &mut File, bytes: usize) -> Result<()> {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(BUFFER);
            file.write_all(&self.buffer[..piece])?;
            left -= piece;
        }
        Ok(())
    }
}

//! Directories with very many names: 1,000,000 in one, in the engine alone and through FUSE next to
//! ext4 and btrfs of the kernel.
//!
//! Files are empty, so that only names and inodes are measured. They are looked up and removed in
//! an order unrelated to that of their creation: no file system benefits from its last reads.
//! `fuse2fs` does not take part: it adds a name by reading the directory from its beginning, which
//! never ends for a million names.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cairn_files::{New, NodeKind, Tree};

use crate::Plan;
use crate::cairn::{Cairn, MEMORY_DEFAULT_MIB};
use crate::files_rows::{Contender, Sizes, btrfs, clocked, ext4, mount_cairn, sync};
use crate::report::{Report, Target, median};
use crate::volume_rows::Bench;

/// No factor of it is one of a round number: multiples of it modulo the count are all numbers below
/// it, far from their neighbours.
const STRIDE: usize = 618_033_989;
/// Names requested from the engine at once.
const LISTED_AT_ONCE: usize = 1000;

/// Names a second of each kind of work, a turn each.
#[derive(Default)]
struct Seen {
    create: Vec<f64>,
    list: Vec<f64>,
    lookup: Vec<f64>,
    remove: Vec<f64>,
}

impl Seen {
    fn add(&mut self, count: usize, [create, list, lookup, remove]: [Duration; 4]) {
        let rate = |time: Duration| count as f64 / time.as_secs_f64();
        self.create.push(rate(create));
        self.list.push(rate(list));
        self.lookup.push(rate(lookup));
        self.remove.push(rate(remove));
    }
}

type Work = (&'static str, fn(&Seen) -> &Vec<f64>);
const WORKS: [Work; 4] = [
    ("create", |seen| &seen.create),
    ("list, cold", |seen| &seen.list),
    ("look up, cold, in another order", |seen| &seen.lookup),
    ("take away, in another order", |seen| &seen.remove),
];

/// Creates, lists, looks up and removes many names of one directory.
pub(crate) fn names(plan: &Plan, report: &mut Report) -> Result<()> {
    let count = if plan.quick { 20_000 } else { 1_000_000 };
    let rounds = plan.turns.unwrap_or(1);
    let sizes = Sizes { files: count, large: 0, device: if plan.quick { 512 << 20 } else { 8 << 30 } };
    plan.ask_room(8)?;
    if !plan.only_peers && plan.wants("engine") {
        let mut seen = Seen::default();
        for _ in 0..rounds {
            seen.add(count, in_engine(plan, &sizes)?);
        }
        for (work, pick) in WORKS {
            let work = format!("engine, {count} names in a directory: {work}");
            report.alone(work, "names/s", median(pick(&seen).clone()), Target::None);
        }
    }
    if plan.wants("mounted") {
        mounted(plan, report, &sizes, rounds)?;
    }
    report.note(format!(
        "{count} empty files in one directory, one thread. Create and take away end with a sync inside of the time; before list and before look up caches are dropped, and Cairn's server is started anew."
    ));
    Ok(())
}

fn mounted(plan: &Plan, report: &mut Report, sizes: &Sizes, rounds: usize) -> Result<()> {
    let folder = plan.folder.join("names");
    fs::create_dir_all(&folder)?;
    let mut cairn = match plan.only_peers {
        true => None,
        false => Some(Cairn::start(plan, "names-cairn", "off", MEMORY_DEFAULT_MIB)?),
    };
    let mut contenders = Vec::new();
    if let Some(cairn) = &cairn {
        contenders.push(mount_cairn(cairn, &folder, sizes)?);
    }
    type Make = fn(&Path, &Sizes) -> Result<Contender>;
    let peers: [(&str, Make); 2] = [("ext4", ext4), ("btrfs", btrfs)];
    for (name, make) in peers {
        match make(&folder, sizes) {
            Ok(peer) => contenders.push(peer),
            Err(error) => report.note(format!("{name} is not in this run: {error:#}")),
        }
    }
    let mut seen: Vec<Seen> = contenders.iter().map(|_| Seen::default()).collect();
    for round in 0..rounds {
        for (contender, seen) in contenders.iter().zip(&mut seen) {
            let turn = on_mount(&contender.folder.join(format!("round{round}")), sizes.files, &mut || {
                contender.forget(cairn.as_mut())
            });
            seen.add(sizes.files, turn.with_context(|| format!("with {}", contender.name))?);
        }
    }
    for (work, pick) in WORKS {
        let work = format!("mounted, {} names in a directory: {work}", sizes.files);
        let mut medians: Vec<(&'static str, f64)> =
            contenders.iter().zip(&seen).map(|(one, seen)| (one.name, median(pick(seen).clone()))).collect();
        let ours = cairn.as_ref().map(|_| medians.remove(0).1);
        for peer in medians {
            report.against(&work, "names/s", ours, peer, Target::None);
        }
    }
    // Before its server ends.
    contenders.retain(|contender| contender.name != "cairn");
    Ok(())
}

fn name(number: usize) -> String {
    format!("file-{number:07}")
}

/// All numbers below `count`, in an order that is not theirs.
fn strides(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |number| (number * STRIDE) % count)
}

fn on_mount(folder: &Path, count: usize, forget: &mut dyn FnMut() -> Result<()>) -> Result<[Duration; 4]> {
    fs::create_dir(folder)?;
    let create = clocked(|| {
        (0..count).try_for_each(|number| File::create(folder.join(name(number))).map(drop))?;
        sync(folder)
    })?;
    forget()?;
    let list = clocked(|| {
        let mut found = 0;
        for entry in fs::read_dir(folder)? {
            entry?;
            found += 1;
        }
        ensure!(found == count, "{found} names were listed of {count}");
        Ok(())
    })?;
    forget()?;
    let lookup = clocked(|| {
        strides(count).try_for_each(|number| {
            ensure!(fs::metadata(folder.join(name(number)))?.nlink() == 1, "a name too many");
            Ok(())
        })
    })?;
    let remove = clocked(|| {
        strides(count).try_for_each(|number| fs::remove_file(folder.join(name(number))))?;
        fs::remove_dir(folder)?;
        sync(folder.parent().context("a folder")?)
    })?;
    Ok([create, list, lookup, remove])
}

/// Closes a volume, and opens it with nothing in memory.
fn anew(bench: Bench, tree: Tree, path: &Path) -> Result<(Bench, Tree)> {
    drop(tree);
    bench.volume().close()?;
    drop(bench);
    let bench = Bench::reopen(path)?;
    let tree = Tree::open(bench.volume().clone())?;
    Ok((bench, tree))
}

/// The same on the tree itself. "Cold" is a volume that was just opened.
fn in_engine(plan: &Plan, sizes: &Sizes) -> Result<[Duration; 4]> {
    let path = plan.folder.join("names.img");
    let bench = Bench::create(&path, sizes.device)?;
    let tree = Tree::open(bench.volume().clone())?;
    let new = New { mode: 0o644, ..New::default() };
    let directory = tree.make_directory(tree.root(), b"names", &New { mode: 0o755, ..new })?.file;
    let count = sizes.files;
    let create = clocked(|| {
        (0..count).try_for_each(|number| tree.make(directory, name(number).as_bytes(), &new).map(drop))?;
        Ok(tree.sync_all()?)
    })?;
    let (bench, tree) = anew(bench, tree, &path)?;
    let list = clocked(|| {
        let (mut after, mut found) = (0, 0);
        loop {
            let entries = tree.read_directory(directory, after, LISTED_AT_ONCE)?;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            found += entries.iter().filter(|entry| entry.kind == NodeKind::File).count();
        }
        ensure!(found == count, "{found} names were listed of {count}");
        Ok(())
    })?;
    let (bench, tree) = anew(bench, tree, &path)?;
    let lookup = clocked(|| {
        strides(count).try_for_each(|number| {
            ensure!(tree.lookup(directory, name(number).as_bytes())?.links == 1, "a name too many");
            Ok(())
        })
    })?;
    let remove = clocked(|| {
        strides(count).try_for_each(|number| tree.unlink(directory, name(number).as_bytes()))?;
        tree.remove_directory(tree.root(), b"names")?;
        Ok(tree.sync_all()?)
    })?;
    drop(tree);
    bench.volume().close()?;
    drop(bench);
    fs::remove_file(&path)?;
    Ok([create, list, lookup, remove])
}

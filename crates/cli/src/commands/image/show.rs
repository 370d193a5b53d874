//! `cairn image list` and `cairn image verify`.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cairn_api::ErrorKind;
use cairn_api::name_findings;
use cairn_format::stream::StreamKind;
use cairn_stream::{DumpBytes, DumpError, PartIndex, PartReader};
use cairn_volume::{CheckDepth, CheckProgress, Snapshot};
use indicatif::ProgressBar;
use tracing::subscriber::{NoSubscriber, with_default};

use super::bucket::Chain;
use super::files;
use super::mount::{DumpExports, DumpLun, Dumps, dump_failure, open_dump};
use crate::commands::print_findings;
use crate::exit::Failure;
use crate::output::{Output, ago, print_besides, print_line, size, table};

const BLOCK: u64 = cairn_base::BLOCK_SIZE as u64;

/// The description of a file by its own content.
#[derive(serde::Serialize)]
struct ShownPart {
    file: String,
    volume: String,
    volume_id: String,
    dump: String,
    level: String,
    base: Option<String>,
    snapshot: String,
    created_ms: u64,
    part: u32,
    parts: u32,
    data_bytes: u64,
    bytes: u64,
    /// All of its records were found, and the trailer; their content was not looked at.
    whole: bool,
}

fn show_part(part: &PartIndex) -> Result<ShownPart, Failure> {
    let head = part.head();
    let name = |id: cairn_base::SnapshotId| {
        let table = part.table().unwrap_or_default();
        let found = table.iter().find(|entry| entry.id == id);
        found.map_or(format!("snapshot {id}"), |entry| entry.name.clone())
    };
    Ok(ShownPart {
        file: part.file().to_owned(),
        volume: head.dump.name.clone(),
        volume_id: head.dump.volume.to_string(),
        dump: head.dump.dump.to_string(),
        level: head.dump.level.to_string(),
        base: (head.stream.kind == StreamKind::Incremental).then(|| name(head.stream.base)),
        snapshot: name(head.stream.target),
        created_ms: head.dump.created.0 / 1_000_000,
        part: head.dump.part + 1,
        parts: head.dump.parts,
        data_bytes: head.stream.changed_blocks * BLOCK,
        bytes: part.length().map_err(dump_failure)?,
        whole: part.is_whole(),
    })
}

/// Lists the content of dumps.
pub fn ls(parts: Vec<PartIndex>, output: Output) -> Result<(), Failure> {
    let shown = parts.iter().map(show_part).collect::<Result<Vec<_>, _>>()?;
    let Contents { snapshots, luns, note } = contents(parts);
    let listed: Vec<_> = snapshots
        .iter()
        .map(|snapshot| serde_json::json!({ "name": snapshot.name, "created_ms": snapshot.created.0 / 1_000_000 }))
        .collect();
    let disks: Vec<_> =
        luns.iter().map(|lun| serde_json::json!({ "name": lun.name, "size_bytes": lun.bytes })).collect();
    let all = serde_json::json!({ "files": shown, "snapshots": listed, "luns": disks, "note": note });
    output.show(&all, |_| {
        let row = |part: &ShownPart| {
            [
                part.file.clone(),
                part.volume.clone(),
                part.level.clone(),
                part.base.clone().unwrap_or("-".to_owned()),
                part.snapshot.clone(),
                ago(part.created_ms),
                format!("{}/{}", part.part, part.parts),
                size(part.bytes),
                if part.whole { "" } else { "NOT WHOLE" }.to_owned(),
            ]
        };
        let head = ["FILE", "VOLUME", "LEVEL", "AGAINST", "SNAPSHOT", "MADE", "PART", "SIZE", ""];
        let mut text = table(head, shown.iter().map(row));
        let of_snapshots = snapshots.iter().map(|one| [one.name.clone(), ago(one.created.0 / 1_000_000)]);
        if !snapshots.is_empty() {
            text += &format!("\n\n{}", table(["SNAPSHOT", "MADE"], of_snapshots));
        }
        if !luns.is_empty() {
            let of_luns = luns.iter().map(|lun| [lun.name.clone(), size(lun.bytes)]);
            text += &format!("\n\n{}", table(["LUN", "SIZE"], of_luns));
        }
        if let Some(note) = &note {
            text += &format!("\n\nnote: {note}");
        }
        text
    });
    Ok(())
}

/// The content of the volume in dumps, as far as it is visible.
struct Contents {
    snapshots: Vec<Snapshot>,
    luns: Vec<DumpLun>,
    /// Why that is not all.
    note: Option<String>,
}

/// Reads the content of dumps. A dump against another one lacks most data of the volume if it is
/// read alone: that is not damage, and is not reported as such.
fn contents(parts: Vec<PartIndex>) -> Contents {
    let against = |part: &&PartIndex| {
        let begins = part.head().stream.base;
        // The base of a dump is in its own table as well.
        let brings = |other: &PartIndex| {
            let is_before = other.head().stream.base < begins;
            is_before && other.table().is_some_and(|table| table.iter().any(|entry| entry.id == begins))
        };
        let is_there = |other: &PartIndex| other.head().stream.target == begins || brings(other);
        part.head().stream.kind == StreamKind::Incremental && !parts.iter().any(is_there)
    };
    let base = parts.iter().find(against).and_then(|part| show_part(part).ok()?.base);
    let Some(base) = base else {
        return match open_dump(parts, false, true) {
            Ok(dump) => {
                let snapshots = dump.volume.snapshots();
                Contents { snapshots, luns: DumpExports::new(dump).luns(), note: None }
            }
            Err(failure) => {
                Contents { snapshots: Vec::new(), luns: Vec::new(), note: Some(failure.body.message) }
            }
        };
    };
    let note = format!(
        "it was made against {base}: name the dump of that as well, to see which LUNs there are, to look into them and to restore"
    );
    // An increment alone still has the list of snapshots, and mostly that of LUNs, because their
    // inodes have changed with them.
    let (snapshots, luns) = with_default(NoSubscriber::new(), || match open_dump(parts, true, true) {
        Ok(dump) => {
            let snapshots = dump.volume.snapshots();
            (snapshots, DumpExports::new(dump).luns())
        }
        Err(_) => (Vec::new(), Vec::new()),
    });
    Contents { snapshots, luns, note: Some(note) }
}

/// The findings in the files of dumps.
#[derive(Default)]
struct Verified {
    blocks: u64,
    bytes: u64,
    wrong: Vec<String>,
    lost_blocks: bool,
    /// The next step for damage that `--accept-damage` does not cover.
    next: Option<String>,
}

impl Verified {
    /// Reads one file to its end. It fails if the rest of the file is unknown: the file is missing,
    /// is not a dump, or cannot be read.
    fn read(&mut self, path: &Path, file: File, output: Output) -> Result<(), Failure> {
        let name = files::called(path);
        let anywhere = files::is_read_anywhere(&file)?;
        let bar = output.bar(if anywhere { file.metadata()?.len() } else { 0 });
        bar.set_message(name.clone());
        let reader = match anywhere {
            true => PartReader::open_file(&name, &(Arc::new(file) as Arc<dyn DumpBytes>)),
            false => PartReader::open(&name, Box::new(file)),
        };
        self.read_part(name, reader, &bar)
    }

    /// Reads one part to its end.
    fn read_part(
        &mut self,
        name: String,
        reader: Result<PartReader, DumpError>,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let mut reader = match reader {
            Ok(reader) => reader,
            Err(error @ DumpError::Head { .. }) => {
                self.wrong.push(error.to_string());
                self.lost_blocks = true;
                self.next = Some("use another copy of that file, or dump again: without its head nothing in it can be restored".to_owned());
                return Ok(());
            }
            Err(error) => return Err(dump_failure(error)),
        };
        let ended = loop {
            bar.set_position(reader.bytes());
            match reader.extents() {
                Ok(Some(_)) => {}
                Ok(None) => break Ok(None),
                Err(error @ (DumpError::Cut { .. } | DumpError::GivenUp { .. })) => break Ok(Some(error)),
                Err(error) => break Err(dump_failure(error)),
            }
        };
        bar.finish_and_clear();
        self.blocks += reader.blocks();
        self.bytes += reader.bytes();
        self.lost_blocks |= reader.lost().iter().any(|lost| !lost.spare);
        self.wrong.extend(reader.lost().iter().map(|lost| format!("{name}: {lost}")));
        if let Some(error) = ended? {
            self.lost_blocks = true;
            let failure = dump_failure(error);
            self.wrong.push(failure.body.message);
            self.next.get_or_insert(failure.body.next);
        }
        if reader.table().is_none() {
            self.wrong.push(dump_failure(DumpError::TableLost { file: name }).body.message);
        }
        Ok(())
    }
}

/// Reads the parts of a dump in a bucket and of all that it needs, as [`verify`] reads files.
pub fn verify_chain(dumps: &Dumps<'_>, chain: &Chain, deep: bool, output: Output) -> Result<(), Failure> {
    let (mut verified, mut unread) = (Verified::default(), Vec::new());
    let mut count = 0;
    for (number, (name, length)) in chain.parts().enumerate() {
        count += 1;
        let bar = output.bar(length);
        bar.set_message(name.to_owned());
        let read =
            chain.reader(number).and_then(|reader| verified.read_part(name.to_owned(), Ok(reader), &bar));
        bar.finish_and_clear();
        unread.extend(read.err());
    }
    report(verified, unread, (count, deep, true), || name_what_is_missing(dumps, output), output)
}

/// Reads dumps record by record and as a whole; with `deep`, compares every block with the tree
/// above it as well. An unreadable file does not prevent the report on the others.
pub fn verify(paths: &[PathBuf], deep: bool, output: Output) -> Result<(), Failure> {
    let mut verified = Verified::default();
    let mut anywhere = true;
    let mut unread: Vec<Failure> = Vec::new();
    for path in paths {
        let opened = files::open_sources(std::slice::from_ref(path));
        let read = opened.and_then(|mut files| {
            let file = files.remove(0);
            anywhere &= files::is_read_anywhere(&file)?;
            verified.read(path, file, output)
        });
        unread.extend(read.err());
    }
    let findings = || name_what_is_missing(&Dumps::Files(paths), output);
    report(verified, unread, (paths.len(), deep, anywhere), findings, output)
}

/// Reports the findings in the files. It looks for `findings` if that was requested (`deep`), or if
/// blocks were lost of parts that can be read `anywhere`.
fn report(
    verified: Verified,
    mut unread: Vec<Failure>,
    (files, deep, anywhere): (usize, bool, bool),
    find: impl FnOnce() -> Result<Vec<String>, Failure>,
    output: Output,
) -> Result<(), Failure> {
    let Verified { blocks, bytes, mut wrong, lost_blocks, next } = verified;
    let mut findings = Vec::new();
    if unread.is_empty() && (deep || (lost_blocks && anywhere)) {
        match find() {
            Ok(found) => findings = found,
            // With only some of the files, the LUNs in them cannot be determined.
            Err(failure) if deep => unread.push(failure),
            Err(failure) => wrong.push(format!("the affected LUNs are unknown: {}", failure.body.message)),
        }
    }
    let is_whole = wrong.is_empty() && findings.is_empty();
    let messages: Vec<String> = unread.iter().map(|failure| failure.body.message.clone()).collect();
    let result = serde_json::json!({
        "files": files, "data_bytes": blocks * BLOCK, "bytes": bytes, "damage": wrong, "findings": findings,
        "unread": messages,
    });
    if output.json {
        print_besides(&result.to_string());
    } else {
        wrong.iter().for_each(|line| print_besides(line));
        print_findings(findings.iter().map(String::as_str));
    }
    if is_whole {
        return match unread.into_iter().next() {
            None if output.json || output.quiet => Ok(()),
            None => {
                print_line(&format!("{files} file(s) are whole: {} of blocks", size(blocks * BLOCK)));
                Ok(())
            }
            Some(mut failure) => {
                failure.body.message = messages.join("; ");
                Err(failure)
            }
        };
    }
    let mut what = format!(
        "{} place(s) of the files are damaged, {} finding(s) in the volume",
        wrong.len(),
        findings.len()
    );
    if !messages.is_empty() {
        what += &format!("; and not all was looked at: {}", messages.join("; "));
    }
    Err(Failure::new(
        ErrorKind::Damaged,
        what,
        next.unwrap_or_else(|| {
            "restore the rest with `cairn image restore --accept-damage`, or mount it; another copy of a damaged file serves as well".to_owned()
        }),
    ))
}

/// The blocks of LUNs and snapshots that a check of the volume in the dumps finds damaged.
fn name_what_is_missing(dumps: &Dumps<'_>, output: Output) -> Result<Vec<String>, Failure> {
    let dump = open_dump(dumps.index()?, false, true)?;
    let bar = output.bar(0);
    bar.set_message("listing the damage");
    let mut on = |at: CheckProgress| {
        bar.set_length(at.blocks_total * BLOCK);
        bar.set_position(at.blocks * BLOCK);
        ControlFlow::Continue(())
    };
    let report = dump.volume.check_to(CheckDepth::Everything, &mut on);
    bar.finish_and_clear();
    let report = report.map_err(|error| dump_failure(error.into()))?;
    let named = name_findings(&dump.volume, &dump.name, &report.findings);
    // The active state is the target snapshot: its findings are reported there.
    let unique: BTreeSet<String> = named.into_iter().collect();
    Ok(unique.into_iter().collect())
}

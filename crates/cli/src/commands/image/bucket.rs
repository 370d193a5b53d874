//! Image dumps in buckets, as commands read and delete them.
//!
//! The server has the credentials, and so it reads the bucket: this program gets ranges of objects
//! through its API, several at a time. It decodes and verifies them here, like the content of
//! files.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, ErrorBody, ErrorKind};
use cairn_base::Timestamp;
use cairn_bucket::dumps::BucketPart;
use cairn_bucket::{
    Head, ListFrom, Name, Nonce, Page, Piece, Prefix, Put, Store, StoreError, Trouble, Upload, Verb, Workers,
};
use cairn_stream::{DumpBytes, PartHead, PartIndex, PartReader};

use super::mount::dump_failure;
use crate::arguments::PruneImages;
use crate::commands::schedule::keep;
use crate::commands::volume::segment;
use crate::commands::{follow, summary};
use crate::exit::{Failure, PARTLY_DONE};
use crate::output::{Output, ago, coming, note_line, print_besides, print_line, size, table};

/// Characters of a dump's id that are shown.
const ID_SHOWN: usize = 8;

/// The bucket, and the reference in it.
fn split(reference: &Path) -> Result<(&str, &str), Failure> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/@".contains(&byte);
    let found = reference.to_str().and_then(|text| text.split_once(':'));
    found.filter(|(_, of)| of.bytes().all(allowed)).ok_or_else(|| {
        Failure::new(
            ErrorKind::Usage,
            format!("{} names no dump in a bucket", reference.display()),
            "write BUCKET:VOLUME, BUCKET:PATH/VOLUME or BUCKET:VOLUME@DUMP, as `cairn image ls BUCKET:` lists them",
        )
    })
}

fn ask(reference: &Path, chain: bool, client: &Client) -> Result<api::BucketDumps, Failure> {
    let (bucket, of) = split(reference)?;
    Ok(client.get(&format!("/v1/buckets/{}/dumps?of={of}&chain={chain}", segment(bucket)?))?)
}

/// An error of the server, on its way through readers.
#[derive(Debug)]
struct Said(ErrorBody);

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Said {}

/// The server's words for a read that failed.
pub fn said(error: &io::Error) -> Option<&ErrorBody> {
    let store = error.get_ref()?.downcast_ref::<StoreError>()?;
    let Trouble::Io(error) = &store.trouble else { return None };
    Some(&error.get_ref()?.downcast_ref::<Said>()?.0)
}

/// Threads of this program.
struct OwnThreads;

impl Workers for OwnThreads {
    fn start(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        std::thread::Builder::new().name("bucket".to_owned()).spawn(job).map(drop)
    }
}

/// A bucket through the API of a server: only ranges are read.
struct ThroughServer {
    place: Place,
    bucket: String,
}

impl ThroughServer {
    fn failed<T>(&self, verb: Verb, name: Option<&Name>, trouble: Trouble) -> Result<T, StoreError> {
        let place = format!("{}:", self.bucket).into();
        Err(StoreError { verb, name: name.cloned(), place, trouble })
    }

    fn unsupported<T>(&self, verb: Verb) -> Result<T, StoreError> {
        self.failed(verb, None, Trouble::Unsupported("anything but reads through the server"))
    }
}

impl Store for ThroughServer {
    fn place(&self) -> &str {
        &self.bucket
    }

    fn lists_in_order(&self) -> bool {
        true
    }

    fn get(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        cancel: &AtomicBool,
    ) -> Result<bytes::Bytes, StoreError> {
        if cancel.load(Ordering::Relaxed) {
            return self.failed(Verb::Get, Some(name), Trouble::Cancelled);
        }
        let path = format!("/v1/buckets/{}/object?name={name}&offset={offset}&length={length}", self.bucket);
        // A client each: reads ahead come from several threads.
        let read = Client::new(self.place.clone(), note_line).and_then(|client| client.get_bytes(&path));
        match read {
            Ok(bytes) => Ok(bytes),
            Err(body) if body.error == ErrorKind::NotFound => {
                self.failed(Verb::Get, Some(name), Trouble::Missing)
            }
            Err(body) => {
                self.failed(Verb::Get, Some(name), Trouble::Io(Arc::new(io::Error::other(Said(body)))))
            }
        }
    }

    fn put_new(&self, _: &Name, _: bytes::Bytes, _: Nonce, _: &AtomicBool) -> Result<Put, StoreError> {
        self.unsupported(Verb::Put)
    }

    fn begin(&self, _: &Name, _: Nonce, _: &AtomicBool) -> Result<Upload, StoreError> {
        self.unsupported(Verb::PutPieces)
    }

    fn put_piece(&self, _: &Upload, _: u32, _: bytes::Bytes, _: &AtomicBool) -> Result<Piece, StoreError> {
        self.unsupported(Verb::PutPieces)
    }

    fn pieces(&self, _: &Upload, _: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        self.unsupported(Verb::PutPieces)
    }

    fn finish(&self, _: &Upload, _: Nonce, _: &[Piece], _: &AtomicBool) -> Result<Put, StoreError> {
        self.unsupported(Verb::PutPieces)
    }

    fn abort(&self, _: &Upload, _: &AtomicBool) -> Result<(), StoreError> {
        self.unsupported(Verb::PutPieces)
    }

    fn uploads(&self, _: &Prefix, _: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        self.unsupported(Verb::List)
    }

    fn head(&self, _: &Name, _: &AtomicBool) -> Result<Head, StoreError> {
        self.unsupported(Verb::Head)
    }

    fn list(&self, _: &Prefix, _: &ListFrom, _: usize, _: &AtomicBool) -> Result<Page, StoreError> {
        self.unsupported(Verb::List)
    }

    fn delete(&self, _: &Name, _: &AtomicBool) -> Result<(), StoreError> {
        self.unsupported(Verb::Delete)
    }

    fn lock_until(&self, _: &Name, _: Timestamp, _: &AtomicBool) -> Result<(), StoreError> {
        self.unsupported(Verb::Lock)
    }
}

/// A part, and the dump that it must be of.
struct Part {
    /// `BUCKET:OBJECT`.
    object: String,
    bytes: Arc<dyn DumpBytes>,
    length: u64,
    volume: String,
    dump: String,
    number: u32,
    parts: u32,
}

/// A dump in a bucket with all that it needs.
pub struct Chain(Vec<Part>);

impl Chain {
    /// Finds the dump that is meant.
    pub fn find(reference: &Path, client: &Client) -> Result<Self, Failure> {
        let found = ask(reference, true, client)?;
        let (bucket, _) = split(reference)?;
        let store: Arc<dyn Store> =
            Arc::new(ThroughServer { place: client.place().clone(), bucket: bucket.to_owned() });
        let workers: Arc<dyn Workers> = Arc::new(OwnThreads);
        let mut parts = Vec::new();
        for dump in &found.dumps {
            for (number, part) in (0..).zip(&dump.parts) {
                parts.push(open((&store, &workers), bucket, (dump, part), number)?);
            }
        }
        Ok(Self(parts))
    }

    /// Where the blocks of all parts are.
    pub fn index(&self) -> Result<Vec<PartIndex>, Failure> {
        let open = |part: &Part| {
            let index = PartIndex::open(&part.object, part.bytes.clone()).map_err(dump_failure)?;
            part.check(index.head())?;
            Ok(index)
        };
        self.0.iter().map(open).collect()
    }

    /// Names and lengths of the parts.
    pub fn parts(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|part| (part.object.as_str(), part.length))
    }

    /// A part to be read in order.
    pub fn reader(&self, number: usize) -> Result<PartReader, Failure> {
        let part = self.0.get(number).ok_or_else(|| Failure::silent(PARTLY_DONE))?;
        let reader = PartReader::open_file(&part.object, &part.bytes).map_err(dump_failure)?;
        part.check(reader.head())?;
        Ok(reader)
    }
}

fn open(
    (store, workers): (&Arc<dyn Store>, &Arc<dyn Workers>),
    bucket: &str,
    (dump, part): (&api::BucketDump, &api::BucketPart),
    number: u32,
) -> Result<Part, Failure> {
    let name = |text: &String| {
        Name::new(text.as_str()).map_err(|_| {
            let next = "use a server of the same version as this program";
            Failure::new(ErrorKind::Failed, format!("{text} is no name of an object"), next)
        })
    };
    let skeleton = part.skeleton.as_ref().map(|text| Ok::<_, Failure>((name(text)?, part.skeleton_bytes)));
    let object = format!("{bucket}:{}", part.object);
    let opened = BucketPart::open(
        (store, workers),
        (name(&part.object)?, part.bytes),
        skeleton.transpose()?,
        &Arc::default(),
    );
    let opened = opened.map_err(|error| said(&error).cloned().unwrap_or_else(|| error.into()))?;
    Ok(Part {
        object,
        bytes: Arc::new(opened),
        length: part.bytes,
        volume: dump.volume_id.clone(),
        dump: dump.id.clone(),
        number,
        parts: dump.parts.len() as u32,
    })
}

impl Part {
    /// An object that is another part or of another dump was put in its place.
    fn check(&self, head: &PartHead) -> Result<(), Failure> {
        let own = &head.dump;
        let is_it = own.volume.to_string() == self.volume
            && own.dump.to_string() == self.dump
            && (own.part, own.parts) == (self.number, self.parts);
        if is_it {
            return Ok(());
        }
        Err(Failure::new(
            ErrorKind::Damaged,
            format!("{} is damaged: it is not the part of the dump that it should be", self.object),
            "restore the object from a version that the store keeps, or use an older dump",
        ))
    }
}

fn short(id: &str) -> String {
    id.chars().take(ID_SHOWN).collect()
}

/// Lists the dumps of a bucket.
pub fn list(reference: &Path, client: &Client, output: Output) -> Result<(), Failure> {
    let found = ask(reference, false, client)?;
    if output.json {
        print_line(&crate::output::json(&found));
    } else if !output.quiet {
        print_line(&shown(&found));
    }
    if found.unreadable.is_empty() {
        return Ok(());
    }
    if !output.json {
        found.unreadable.iter().for_each(|line| note_line(line));
    }
    Err(Failure::silent(PARTLY_DONE))
}

/// The numbers of dumps and of their volumes, in a line.
pub fn contents(bucket: &str, client: &Client) -> Result<String, Failure> {
    let found: api::BucketDumps = client.get(&format!("/v1/buckets/{}/dumps", segment(bucket)?))?;
    let mut volumes: BTreeMap<&str, u64> = BTreeMap::new();
    for dump in &found.dumps {
        *volumes.entry(&dump.volume).or_default() += 1;
    }
    let bytes = found.dumps.iter().map(|dump| dump.bytes).sum();
    let each: Vec<String> = volumes.iter().map(|(volume, count)| format!("{volume} ({count})")).collect();
    Ok(match each.is_empty() {
        true => "no image dumps".to_owned(),
        false => format!("{} image dumps, {}: {}", found.dumps.len(), size(bytes), each.join(", ")),
    })
}

fn rows<'a>(
    dumps: &'a [api::BucketDump],
    all: &'a [api::BucketDump],
) -> impl Iterator<Item = [String; 8]> + 'a {
    dumps.iter().map(|dump| {
        let against = dump.on.as_ref().map(|on| {
            let is_there = all.iter().any(|other| other.id == *on);
            if is_there { short(on) } else { format!("{} MISSING", short(on)) }
        });
        [
            dump.volume.clone(),
            dump.level.clone(),
            short(&dump.id),
            against.unwrap_or("-".to_owned()),
            dump.snapshot.clone(),
            ago(dump.created_ms),
            size(dump.bytes),
            dump.locked_until_ms.map_or("-".to_owned(), |until| format!("ends {}", coming(until))),
        ]
    })
}

const HEAD: [&str; 8] = ["VOLUME", "LEVEL", "DUMP", "AGAINST", "SNAPSHOT", "MADE", "SIZE", "LOCK"];

fn shown(found: &api::BucketDumps) -> String {
    let mut dumps = found.dumps.clone();
    dumps.sort_by(|a, b| {
        (&a.volume, &a.volume_id, a.created_ms).cmp(&(&b.volume, &b.volume_id, b.created_ms))
    });
    // With a reference to one dump its base is left out, and not missing.
    let one = dumps.len() == 1;
    let mut text = match one {
        true => table(HEAD, rows(&dumps, &[]).map(|row| row.map(|cell| cell.replace(" MISSING", "")))),
        false => table(HEAD, rows(&dumps, &dumps)),
    };
    for dump in &found.unfinished {
        text += &format!(
            "\nunfinished: dump {} of volume {}, last written {}, {}",
            short(&dump.id),
            dump.volume_id,
            ago(dump.newest_ms),
            size(dump.bytes)
        );
    }
    text
}

/// Deletes dumps that no rule keeps.
pub fn prune(asked: &PruneImages, client: &Client, output: Output) -> Result<(), Failure> {
    let (bucket, path) = split(Path::new(&asked.place))?;
    let keep = keep(&asked.keep);
    if keep == api::Keep::default() {
        return Err(Failure::new(
            ErrorKind::Usage,
            "without a --keep option all dumps are kept",
            "say what stays, such as --keep-daily 7 --keep-weekly 4",
        ));
    }
    if !path.is_empty() && !path.ends_with('/') {
        return Err(Failure::new(
            ErrorKind::Usage,
            format!("{} is neither a bucket nor a path in one", asked.place),
            format!("write {bucket}:{path}/ for a path, or {bucket}: --volume {path} for a volume"),
        ));
    }
    let run = |dry_run| -> Result<Option<api::BucketPruned>, Failure> {
        let request = api::PruneBucket { path: path.to_owned(), volume: asked.volume.clone(), keep, dry_run };
        let job = client.post(&format!("/v1/buckets/{}/prune", segment(bucket)?), &request)?;
        // The first of two runs only looks.
        let told = Output { json: output.json && (asked.dry_run || !dry_run), ..output };
        match follow(job, client, told)? {
            Some(api::JobOutcome::Pruned(pruned)) => Ok(Some(pruned)),
            _ => Ok(None),
        }
    };
    if !asked.dry_run && !output.yes {
        let Some(would) = run(true)? else { return Ok(()) };
        if !would.deleted.is_empty() {
            let bytes = would.deleted.iter().map(|dump| dump.bytes).sum();
            if !output.json && !output.quiet {
                print_line(&table(
                    HEAD,
                    rows(&would.deleted, &[]).map(|row| row.map(|cell| cell.replace(" MISSING", ""))),
                ));
            }
            output.confirm(&format!(
                "this deletes {} image dump(s) from {}, with {}",
                would.deleted.len(),
                asked.place,
                size(bytes)
            ))?;
        }
    }
    let Some(pruned) = run(asked.dry_run)? else { return Ok(()) };
    if output.json {
        print_besides(&summary(&pruned).to_string());
        return Ok(());
    }
    if output.quiet {
        return Ok(());
    }
    let bytes = pruned.deleted.iter().map(|dump| dump.bytes).sum();
    for dump in &pruned.locked {
        let until = dump.locked_until_ms.map_or("at a time that the store knows".to_owned(), coming);
        print_line(&format!("{} of {} stays: its lock ends {until}", short(&dump.id), dump.volume));
    }
    let what =
        format!("{} image dump(s) with {}; {} stay(s)", pruned.deleted.len(), size(bytes), pruned.kept,);
    print_line(&match asked.dry_run {
        true => format!("would delete {what}; nothing was done"),
        false if pruned.swept > 0 => format!("deleted {what}; removed {} abandoned dump(s)", pruned.swept),
        false => format!("deleted {what}"),
    });
    Ok(())
}

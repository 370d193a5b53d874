//! A store in a directory: `file:///srv/bucket`. The embedded default, and the model for the
//! others.
//!
//! An object is a file of the same name and content below the directory. Its nonce and its lock are
//! extended attributes. `.cairn-bucket/` holds files on their way (`new/`) and uploads
//! (`uploads/<id>/`).
//!
//! # Invariants
//! 1. A file gets its name by `link(2)` once its content and attributes are durable, and `link`
//!    never replaces a name: creation is atomic between processes, on network file systems too.
//! 2. [`Put::Created`] is answered once the directory is durable as well, [`Put::Exists`] too: an
//!    object that another process has just linked does not vanish in a power cut after this process
//!    relied on it.
//! 3. A crash leaves a file in `new/` or an upload. The file of an ended process has no `flock` any
//!    more; [`Directory::open`] removes it. Uploads stay until they are finished or aborted.
//!
//! Locks keep Cairn from deleting an object. They bind no other program that can write the
//! directory. Finishing an upload copies its pieces once more, by the kernel where it can.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use cairn_base::{Clock, Mutex, Rng, Timestamp};
use rustix::fs::{FlockOperation, XattrFlags, fgetxattr, flock, fsetxattr};
use rustix::io::Errno;

use crate::error::{Blame, StoreError, Trouble, Verb};
use crate::limits::{GET_BYTES_MAX, PAGE_OBJECTS_MAX, PIECE_BYTES_MAX, PIECES_MAX, PUT_BYTES_MAX};
use crate::name::{Name, Prefix};
use crate::store::{Cursor, Head, ListFrom, Listed, Nonce, Page, Piece, Put, Store, Upload};

/// The folder with unfinished files and uploads; no object name begins with a dot.
const INTERNAL: &str = ".cairn-bucket";
const NONCE_ATTRIBUTE: &str = "user.cairn.nonce";
const LOCK_ATTRIBUTE: &str = "user.cairn.locked-until";
/// Longest value of an attribute that is ours.
const ATTRIBUTE_BYTES_MAX: usize = 64;
/// Attempts at a name whose folder another process removes at the same time.
const FOLDER_TRIES: usize = 100;
/// Bytes that are written or copied between two checks of the flag for cancellation.
const STEP_BYTES: usize = 4 << 20;

/// See the module.
pub struct Directory {
    root: PathBuf,
    blame: Blame,
    clock: Arc<dyn Clock>,
    /// Names of files on their way.
    rng: Mutex<Rng>,
    /// Numbers them too, so that two with one seed do not meet.
    made: AtomicU64,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Directory {
    /// Opens the store in `root`, a directory that exists, and removes the unfinished files of
    /// crashed processes.
    ///
    /// # Errors
    /// The directory is missing or cannot be written, or its file system keeps no extended
    /// attributes.
    pub fn open(root: &Path, clock: Arc<dyn Clock>, rng: Rng) -> Result<Self, StoreError> {
        let place = format!("file://{}", root.display());
        let store = Self {
            root: root.to_owned(),
            blame: Blame(place.into()),
            clock,
            rng: Mutex::new(rng),
            made: AtomicU64::new(0),
        };
        let failed = |error| store.blame.io(Verb::Open, None, error);
        if !root.is_dir() {
            return Err(failed(io::Error::new(ErrorKind::NotFound, "there is no such directory")));
        }
        for folder in ["new", "uploads"] {
            store.make_folders(&store.internal(folder)).map_err(failed)?;
        }
        store.sweep().map_err(failed)?;
        store.try_attributes()?;
        Ok(store)
    }

    fn internal(&self, folder: &str) -> PathBuf {
        self.root.join(INTERNAL).join(folder)
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.root.join(name.as_str())
    }

    /// Removes unfinished files and folders of ended processes: their locks are free.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.internal("new"))? {
            let path = entry?.path();
            let Ok(file) = File::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                // A process that has just made it finds it missing and makes another one.
                let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
        Ok(())
    }

    /// Tries an extended attribute, as nothing else carries nonces.
    fn try_attributes(&self) -> Result<(), StoreError> {
        let draft = self.draft().map_err(|error| self.blame.io(Verb::Open, None, error))?;
        match set(&draft.file, NONCE_ATTRIBUTE, "00000000000000000000000000000000") {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
                let what = "extended attributes; its file system lacks them, or is mounted without them";
                Err(self.blame.of(Verb::Open, None, Trouble::Unsupported(what)))
            }
            Err(error) => Err(self.blame.io(Verb::Open, None, error)),
        }
    }

    /// A new file in `new/`, locked by this process. If another process sweeps `new/` before the
    /// lock, it removes the file as a leftover; a new one is then made.
    fn draft(&self) -> io::Result<Draft> {
        for _ in 0..FOLDER_TRIES {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            let random = self.rng.lock().next();
            let file = format!("{}-{number}-{random:016x}", std::process::id());
            let path = self.internal("new").join(file);
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
            let draft = Draft { file, path };
            let locked = flock(&draft.file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if locked && draft.is_named(&draft.path) {
                return Ok(draft);
            }
        }
        Err(io::Error::other("another process removes new files again and again"))
    }

    /// Makes a folder and those above it, down from the root, and makes their names durable.
    fn make_folders(&self, folder: &Path) -> io::Result<()> {
        if folder.is_dir() || folder == self.root {
            return Ok(());
        }
        let above = folder.parent().unwrap_or(&self.root);
        self.make_folders(above)?;
        match fs::create_dir(folder) {
            Ok(()) => {}
            // Its maker may not have made it durable yet.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        File::open(above)?.sync_all()
    }

    /// Gives a durable file its name, unless the name is taken.
    fn give_name(&self, draft: &Draft, name: &Name) -> io::Result<Put> {
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&self.root);
        for _ in 0..FOLDER_TRIES {
            match self.make_folders(folder) {
                // A folder above it was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => continue,
                outcome => outcome?,
            }
            let put = match fs::hard_link(&draft.path, &path) {
                Ok(()) => Put::Created,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => match fs::metadata(&path) {
                    Ok(found) if found.is_dir() => return Err(below_another()),
                    _ if draft.is_named(&path) => Put::Created,
                    _ => Put::Exists,
                },
                // A network file system may lose the answer of a link that it made.
                Err(_) if draft.is_named(&path) => Put::Created,
                // Another process removed the folder with its last object.
                Err(error) if error.kind() == ErrorKind::NotFound && draft.path.exists() => continue,
                Err(error) => return Err(error),
            };
            return match File::open(folder).and_then(|folder| folder.sync_all()) {
                // The object was there, and another process has deleted it since.
                Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => Ok(put),
                outcome => outcome.map(|()| put),
            };
        }
        Err(io::Error::other("its folder is removed again and again by another process"))
    }

    /// Makes the folder of an upload in `new/` and moves it to its place as a whole.
    fn make_upload(&self, upload: &Upload, nonce: Nonce) -> io::Result<()> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let made = self.internal("new").join(format!("{}-{number}-{}", std::process::id(), upload.id));
        fs::create_dir(&made)?;
        let folder = File::open(&made)?;
        flock(&folder, FlockOperation::NonBlockingLockExclusive).map_err(|_| ErrorKind::NotFound)?;
        for (file, content) in [("nonce", nonce.to_string()), ("name", upload.name.to_string())] {
            let mut file = File::create_new(made.join(file))?;
            file.write_all(content.as_bytes())?;
            file.sync_all()?;
        }
        folder.sync_all()?;
        let uploads = self.internal("uploads");
        fs::rename(&made, uploads.join(&upload.id))?;
        File::open(&uploads)?.sync_all()
    }

    /// Removes the folder of an upload as a whole: a crash leaves it in its place, or in `new/` for
    /// the sweep.
    fn remove_upload(&self, folder: &Path) -> io::Result<()> {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let random = self.rng.lock().next();
        let gone = self.internal("new").join(format!("{}-{number}-{random:016x}", std::process::id()));
        fs::rename(folder, &gone)?;
        match fs::remove_dir_all(&gone) {
            // The sweep of another process was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            outcome => outcome,
        }
    }

    fn upload_folder(&self, upload: &Upload) -> Option<PathBuf> {
        let valid = upload.id.len() == 32 && upload.id.bytes().all(|byte| byte.is_ascii_hexdigit());
        valid.then(|| self.internal("uploads").join(&upload.id))
    }

    /// The folder of an existing upload for this name.
    fn standing(&self, upload: &Upload) -> Result<PathBuf, StoreError> {
        let gone = || self.blame.of(Verb::PutPieces, Some(&upload.name), Trouble::NoUpload);
        let folder = self.upload_folder(upload).ok_or_else(gone)?;
        let named = fs::read_to_string(folder.join("name")).map_err(|_| gone())?;
        if named == upload.name.as_str() { Ok(folder) } else { Err(gone()) }
    }

    fn piece_list(&self, folder: &Path) -> io::Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let number = entry.file_name().to_str().and_then(piece_number);
            if let Some(number) = number {
                let found = entry.metadata()?;
                pieces.push(Piece { number, length: found.len(), tag: tag_of(&found) });
            }
        }
        pieces.sort_by_key(|piece| piece.number);
        Ok(pieces)
    }

    /// Copies the pieces into one file; cancelled between steps.
    fn join(&self, folder: &Path, pieces: &[Piece], cancel: &AtomicBool) -> Result<Option<Draft>, io::Error> {
        let mut draft = self.draft()?;
        for piece in pieces {
            let mut input = File::open(folder.join(piece_file(piece.number)))?;
            let found = input.metadata()?;
            if found.len() != piece.length || tag_of(&found) != piece.tag {
                return Ok(None);
            }
            let mut left = piece.length;
            while left > 0 {
                if cancel.load(Ordering::Relaxed) {
                    return Err(ErrorKind::Interrupted.into());
                }
                let step = left.min(STEP_BYTES as u64);
                let copied = io::copy(&mut (&mut input).take(step), &mut draft.file)?;
                if copied != step {
                    return Ok(None);
                }
                left -= step;
            }
        }
        Ok(Some(draft))
    }

    fn lock_of(&self, file: &File) -> io::Result<Option<Timestamp>> {
        Ok(get(file, LOCK_ATTRIBUTE)?.and_then(|text| text.parse().ok()).map(Timestamp))
    }

    fn open_object(&self, verb: Verb, name: &Name) -> Result<File, StoreError> {
        let file = File::open(self.path(name));
        let file = file.map_err(|error| match error.kind() {
            // A file system that is not mounted must not look like an object that was deleted.
            ErrorKind::NotFound if !self.root.is_dir() => self.blame.of(verb, None, Trouble::NoBucket),
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                self.blame.of(verb, Some(name), Trouble::Missing)
            }
            _ => self.blame.io(verb, Some(name), error),
        })?;
        let found = file.metadata().map_err(|error| self.blame.io(verb, Some(name), error))?;
        if found.is_file() { Ok(file) } else { Err(self.blame.of(verb, Some(name), Trouble::Missing)) }
    }

    /// Collects at most `count` objects below `folder` that come after `after`, in order of their
    /// whole names.
    fn walk(&self, folder: &str, scope: &Scope<'_>, into: &mut Vec<Listed>) -> io::Result<()> {
        let mut entries: Vec<(String, bool)> = Vec::new();
        let read = match fs::read_dir(self.root.join(folder)) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(());
            }
            read => read?,
        };
        for entry in read {
            let entry = entry?;
            let Some(text) = entry.file_name().to_str().map(str::to_owned) else { continue };
            if text.starts_with('.') {
                continue;
            }
            // A folder sorts like the objects in it.
            match entry.file_type()? {
                kind if kind.is_dir() => entries.push((format!("{folder}{text}/"), true)),
                kind if kind.is_file() => entries.push((format!("{folder}{text}"), false)),
                _ => {}
            }
        }
        entries.sort();
        for (text, is_folder) in entries {
            if into.len() >= scope.count {
                return Ok(());
            }
            let relevant = text.starts_with(scope.prefix) || (is_folder && scope.prefix.starts_with(&text));
            if !relevant {
                continue;
            }
            if is_folder {
                // All in it come before `after`, unless that is in it too.
                let before =
                    scope.after.is_some_and(|after| text.as_str() < after && !after.starts_with(&text));
                if !before {
                    self.walk(&text, scope, into)?;
                }
                continue;
            }
            if scope.after.is_some_and(|after| text.as_str() <= after) {
                continue;
            }
            let Ok(name) = Name::new(text) else { continue };
            match fs::metadata(self.path(&name)) {
                Ok(found) => into.push(Listed { name, length: found.len(), created: modified(&found) }),
                // It was deleted meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

struct Scope<'a> {
    prefix: &'a str,
    after: Option<&'a str>,
    count: usize,
}

/// A file in progress. Its name in `new/` is removed on drop.
struct Draft {
    file: File,
    path: PathBuf,
}

impl Draft {
    /// Whether the file at `path` is this one.
    fn is_named(&self, path: &Path) -> bool {
        let identity = |found: fs::Metadata| (found.dev(), found.ino());
        let own = self.file.metadata().map(identity);
        let other = fs::metadata(path).map(identity);
        matches!((own, other), (Ok(own), Ok(other)) if own == other)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn below_another() -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, "an object lies below this name")
}

fn piece_file(number: u32) -> String {
    format!("piece-{number:05}")
}

fn piece_number(file: &str) -> Option<u32> {
    file.strip_prefix("piece-").filter(|digits| digits.len() == 5)?.parse().ok()
}

fn modified(found: &fs::Metadata) -> Timestamp {
    let seconds = u64::try_from(found.mtime()).unwrap_or(0);
    Timestamp(seconds.saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec() as u64))
}

fn tag_of(found: &fs::Metadata) -> String {
    format!("{:x}-{:x}-{:x}", found.ino(), found.len(), modified(found).0)
}

fn set(file: &File, attribute: &str, value: &str) -> io::Result<()> {
    Ok(fsetxattr(file, attribute, value.as_bytes(), XattrFlags::empty())?)
}

fn get(file: &File, attribute: &str) -> io::Result<Option<String>> {
    let mut value = [0; ATTRIBUTE_BYTES_MAX];
    match fgetxattr(file, attribute, &mut value[..]) {
        Ok(length) => Ok(value.get(..length).and_then(|text| String::from_utf8(text.to_vec()).ok())),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes all, with a check of `cancel` between steps.
fn write_steps(file: &mut File, bytes: &[u8], cancel: &AtomicBool) -> io::Result<bool> {
    for step in bytes.chunks(STEP_BYTES) {
        if cancel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        file.write_all(step)?;
    }
    Ok(true)
}

impl Store for Directory {
    fn place(&self) -> &str {
        &self.blame.0
    }

    fn lists_in_order(&self) -> bool {
        true
    }

    fn put_new(
        &self,
        name: &Name,
        bytes: Bytes,
        nonce: Nonce,
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let failed = |error| self.blame.io(Verb::Put, Some(name), error);
        if bytes.len() > PUT_BYTES_MAX {
            return Err(self.blame.of(
                Verb::Put,
                Some(name),
                Trouble::Rule("an object of one put is too long"),
            ));
        }
        let mut draft = self.draft().map_err(failed)?;
        if !write_steps(&mut draft.file, &bytes, cancel).map_err(failed)? {
            return Err(self.blame.of(Verb::Put, Some(name), Trouble::Cancelled));
        }
        set(&draft.file, NONCE_ATTRIBUTE, &nonce.to_string()).map_err(failed)?;
        draft.file.sync_all().map_err(failed)?;
        self.give_name(&draft, name).map_err(failed)
    }

    fn begin(&self, name: &Name, nonce: Nonce, _cancel: &AtomicBool) -> Result<Upload, StoreError> {
        let failed = |error| self.blame.io(Verb::PutPieces, Some(name), error);
        let (one, other) = {
            let mut rng = self.rng.lock();
            (rng.next(), rng.next())
        };
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        let other = other ^ (number << 32) ^ u64::from(std::process::id());
        let upload = Upload { name: name.clone(), id: format!("{one:016x}{other:016x}") };
        for _ in 0..FOLDER_TRIES {
            match self.make_upload(&upload, nonce) {
                // Another process swept it before it was locked.
                Err(error) if error.kind() == ErrorKind::NotFound && self.root.is_dir() => {}
                outcome => return outcome.map(|()| upload).map_err(failed),
            }
        }
        Err(failed(io::Error::other("another process removes new files again and again")))
    }

    fn put_piece(
        &self,
        upload: &Upload,
        number: u32,
        bytes: Bytes,
        cancel: &AtomicBool,
    ) -> Result<Piece, StoreError> {
        let name = Some(&upload.name);
        let failed = |error| self.blame.io(Verb::PutPieces, name, error);
        if number == 0 || number > PIECES_MAX || bytes.len() > PIECE_BYTES_MAX {
            let rule = "a piece has a number from 1 to 10,000 and at most 64 MiB";
            return Err(self.blame.of(Verb::PutPieces, name, Trouble::Rule(rule)));
        }
        let folder = self.standing(upload)?;
        let mut draft = self.draft().map_err(failed)?;
        if !write_steps(&mut draft.file, &bytes, cancel).map_err(failed)? {
            return Err(self.blame.of(Verb::PutPieces, name, Trouble::Cancelled));
        }
        draft.file.sync_all().map_err(failed)?;
        fs::rename(&draft.path, folder.join(piece_file(number))).map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.blame.of(Verb::PutPieces, name, Trouble::NoUpload),
            _ => failed(error),
        })?;
        File::open(&folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        let found = draft.file.metadata().map_err(failed)?;
        Ok(Piece { number, length: found.len(), tag: tag_of(&found) })
    }

    fn pieces(&self, upload: &Upload, _cancel: &AtomicBool) -> Result<Vec<Piece>, StoreError> {
        let folder = self.standing(upload)?;
        let name = Some(&upload.name);
        self.piece_list(&folder).map_err(|error| self.blame.io(Verb::PutPieces, name, error))
    }

    fn finish(
        &self,
        upload: &Upload,
        nonce: Nonce,
        pieces: &[Piece],
        cancel: &AtomicBool,
    ) -> Result<Put, StoreError> {
        let name = Some(&upload.name);
        let of = |trouble| self.blame.of(Verb::PutPieces, name, trouble);
        let failed = |error: io::Error| match error.kind() {
            ErrorKind::Interrupted => of(Trouble::Cancelled),
            ErrorKind::NotFound => of(Trouble::NoUpload),
            _ => self.blame.io(Verb::PutPieces, name, error),
        };
        let folder = self.standing(upload)?;
        let in_order = (1..).zip(pieces).all(|(number, piece): (u32, _)| piece.number == number);
        if pieces.is_empty() || !in_order {
            return Err(of(Trouble::Rule("an upload is finished with all pieces from the first one on")));
        }
        let draft = self.join(&folder, pieces, cancel).map_err(failed)?;
        let draft = draft.ok_or_else(|| of(Trouble::NoUpload))?;
        set(&draft.file, NONCE_ATTRIBUTE, &nonce.to_string()).map_err(failed)?;
        draft.file.sync_all().map_err(failed)?;
        let put = self.give_name(&draft, &upload.name).map_err(failed)?;
        if put == Put::Created {
            // After a crash here the upload is still listed, until it is aborted.
            let _ = self.remove_upload(&folder);
        }
        Ok(put)
    }

    fn abort(&self, upload: &Upload, _cancel: &AtomicBool) -> Result<(), StoreError> {
        let Some(folder) = self.upload_folder(upload) else { return Ok(()) };
        match self.remove_upload(&folder) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(self.blame.io(Verb::PutPieces, Some(&upload.name), error))
            }
            _ => Ok(()),
        }
    }

    fn uploads(&self, prefix: &Prefix, _cancel: &AtomicBool) -> Result<Vec<Upload>, StoreError> {
        let failed = |error| self.blame.io(Verb::List, None, error);
        let mut uploads = Vec::new();
        for entry in fs::read_dir(self.internal("uploads")).map_err(failed)? {
            let id: OsString = entry.map_err(failed)?.file_name();
            let Some(id) = id.to_str().map(str::to_owned) else { continue };
            let named = fs::read_to_string(self.internal("uploads").join(&id).join("name"));
            let Some(name) = named.ok().and_then(|text| Name::new(text).ok()) else { continue };
            if prefix.has(&name) {
                uploads.push(Upload { name, id });
            }
        }
        uploads.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
        Ok(uploads)
    }

    fn get(
        &self,
        name: &Name,
        offset: u64,
        length: usize,
        _cancel: &AtomicBool,
    ) -> Result<Bytes, StoreError> {
        let failed = |error| self.blame.io(Verb::Get, Some(name), error);
        if length > GET_BYTES_MAX {
            return Err(self.blame.of(Verb::Get, Some(name), Trouble::Rule("a read is longer than 64 MiB")));
        }
        let file = self.open_object(Verb::Get, name)?;
        let have = file.metadata().map_err(failed)?.len().saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(have).unwrap_or(length).min(length)];
        file.read_exact_at(&mut bytes, offset).map_err(failed)?;
        Ok(bytes.into())
    }

    fn head(&self, name: &Name, _cancel: &AtomicBool) -> Result<Head, StoreError> {
        let failed = |error| self.blame.io(Verb::Head, Some(name), error);
        let file = self.open_object(Verb::Head, name)?;
        let found = file.metadata().map_err(failed)?;
        Ok(Head {
            length: found.len(),
            tag: Some(tag_of(&found)),
            nonce: get(&file, NONCE_ATTRIBUTE).map_err(failed)?.as_deref().and_then(Nonce::parse),
            locked_until: self.lock_of(&file).map_err(failed)?,
        })
    }

    fn list(
        &self,
        prefix: &Prefix,
        from: &ListFrom,
        count: usize,
        _cancel: &AtomicBool,
    ) -> Result<Page, StoreError> {
        let after = match from {
            ListFrom::Start => None,
            ListFrom::After(name) => Some(name.as_str()),
            ListFrom::Page(cursor) => Some(cursor.0.as_str()),
        };
        let count = count.clamp(1, PAGE_OBJECTS_MAX);
        let mut objects = Vec::new();
        self.walk("", &Scope { prefix: prefix.as_str(), after, count: count + 1 }, &mut objects)
            .map_err(|error| self.blame.io(Verb::List, None, error))?;
        let more = objects.len() > count;
        objects.truncate(count);
        let last = objects.last().map(|last| last.name.as_str().to_owned());
        Ok(Page { next: last.filter(|_| more).map(Cursor), objects })
    }

    fn delete(&self, name: &Name, _cancel: &AtomicBool) -> Result<(), StoreError> {
        let failed = |error| self.blame.io(Verb::Delete, Some(name), error);
        let file = match self.open_object(Verb::Delete, name) {
            Err(error) if error.is_missing() => return Ok(()),
            file => file?,
        };
        // Locking and deleting exclude each other.
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        if let Some(until) = self.lock_of(&file).map_err(failed)?.filter(|until| *until > self.clock.now()) {
            return Err(self.blame.of(Verb::Delete, Some(name), Trouble::Locked(Some(until))));
        }
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            outcome => outcome.map_err(failed)?,
        }
        let mut folder = path.parent().unwrap_or(&self.root);
        match File::open(folder).and_then(|folder| folder.sync_all()) {
            // Another process removed the empty folder.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            outcome => outcome.map_err(failed)?,
        }
        while folder != self.root && fs::remove_dir(folder).is_ok() {
            folder = folder.parent().unwrap_or(&self.root);
        }
        Ok(())
    }

    fn lock_until(&self, name: &Name, until: Timestamp, _cancel: &AtomicBool) -> Result<(), StoreError> {
        let failed = |error| self.blame.io(Verb::Lock, Some(name), error);
        let file = self.open_object(Verb::Lock, name)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
        if !Path::new(&self.path(name)).exists() {
            return Err(self.blame.of(Verb::Lock, Some(name), Trouble::Missing));
        }
        if self.lock_of(&file).map_err(failed)?.is_some_and(|held| held >= until) {
            return Ok(());
        }
        set(&file, LOCK_ATTRIBUTE, &until.0.to_string()).map_err(failed)?;
        file.sync_all().map_err(failed)
    }
}

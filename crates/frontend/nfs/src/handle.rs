//! File handles, which a client keeps for each file and sends with every request.
//!
//! A handle names a file by numbers that stay the same over restarts of the server, and at a mirror
//! of the volume. The server keeps no table of handles. A client could make up numbers, and reach
//! files outside of its export or in directories closed to it. So each handle has an authentication
//! code over all its bytes (HMAC-SHA256, the first 12 bytes).
//!
//! The number of a file is never given again in a volume, but at a mirror that was failed over it
//! can be: the source may have made files that the mirror never got. So the time of birth is the
//! generation of a file, and a handle of another file with the same number is stale.
//!
//! Layout, 64 bytes in all, numbers in little-endian order: version 1, kind, two zero bytes, volume
//! (16), root of the export (8), snapshot (8), file (8), generation (8), authentication code (12).

use cairn_base::{FileId, VolumeId};
use cairn_proto_nfs::Handle;
use ring::hmac;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

const VERSION: u8 = 1;
const BODY_BYTES: usize = 52;
const CODE_BYTES: usize = 12;
/// The length of every handle.
pub(crate) const HANDLE_BYTES: usize = BODY_BYTES + CODE_BYTES;

/// Where a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Where {
    /// In the files that the export shows now.
    Present,
    /// In a snapshot with this tag.
    Snapshot(u64),
    /// The directory `.snapshot` of a directory.
    Snapshots,
}

/// The content of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FileRef {
    pub(crate) volume: VolumeId,
    /// The root of its export.
    pub(crate) root: FileId,
    pub(crate) place: Where,
    pub(crate) file: FileId,
    pub(crate) generation: u64,
}

/// A key for handles.
#[derive(Clone)]
pub struct Key {
    bytes: [u8; KEY_BYTES],
    key: hmac::Key,
}

impl Key {
    /// The key of these bytes, which have to be random.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self { bytes, key: hmac::Key::new(hmac::HMAC_SHA256, &bytes) }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.bytes
    }

    fn code(&self, body: &[u8]) -> [u8; CODE_BYTES] {
        let mut code = [0; CODE_BYTES];
        let tag = hmac::sign(&self.key, body);
        code.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        code
    }

    /// A number that depends on the key: of a file system.
    pub(crate) fn number(&self, of: &[u8]) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.code(of);
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// The keys of an export: one for new handles, and others whose handles are valid as well.
#[derive(Debug, Clone, PartialEq)]
pub struct Keys {
    /// For new handles.
    pub own: Key,
    /// Those of earlier ones.
    pub earlier: Vec<Key>,
}

/// The content of a handle whose authentication code has not been verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unverified {
    of: FileRef,
    body: [u8; BODY_BYTES],
    code: [u8; CODE_BYTES],
}

impl FileRef {
    fn body(&self) -> [u8; BODY_BYTES] {
        let (kind, snapshot) = match self.place {
            Where::Present => (0, 0),
            Where::Snapshot(tag) => (1, tag),
            Where::Snapshots => (2, 0),
        };
        let mut body = [0; BODY_BYTES];
        let numbers = [self.root.0, snapshot, self.file.0, self.generation];
        let bytes = [VERSION, kind, 0, 0]
            .into_iter()
            .chain(self.volume.0)
            .chain(numbers.into_iter().flat_map(u64::to_le_bytes));
        body.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        body
    }

    /// As a handle.
    pub(crate) fn seal(&self, key: &Key) -> Handle {
        let body = self.body();
        let mut bytes = [0; HANDLE_BYTES];
        bytes.iter_mut().zip(body.into_iter().chain(key.code(&body))).for_each(|(to, from)| *to = from);
        // It has the length that handles may have.
        Handle::new(&bytes).unwrap_or_else(|| unreachable!("a handle of 64 bytes"))
    }

    /// Reads a handle; `None` for one that this server can't have made.
    pub(crate) fn open(handle: &Handle) -> Option<Unverified> {
        let bytes: &[u8; HANDLE_BYTES] = handle.as_bytes().try_into().ok()?;
        let (body, code) = bytes.split_first_chunk::<BODY_BYTES>()?;
        let code: [u8; CODE_BYTES] = code.try_into().ok()?;
        let (head, rest) = body.split_first_chunk::<4>()?;
        let (volume, rest) = rest.split_first_chunk::<16>()?;
        let mut numbers = rest.chunks_exact(8).map(|number| number.try_into().map(u64::from_le_bytes));
        let mut next = || numbers.next()?.ok();
        let (root, snapshot, file, generation) = (next()?, next()?, next()?, next()?);
        let place = match (*head, snapshot) {
            ([VERSION, 0, 0, 0], 0) => Where::Present,
            ([VERSION, 1, 0, 0], tag) => Where::Snapshot(tag),
            ([VERSION, 2, 0, 0], 0) => Where::Snapshots,
            _ => return None,
        };
        let of =
            FileRef { volume: VolumeId(*volume), root: FileId(root), place, file: FileId(file), generation };
        Some(Unverified { of, body: *body, code })
    }
}

impl Unverified {
    /// The export that it claims to be of.
    pub(crate) fn claims(&self) -> (VolumeId, FileId) {
        (self.of.volume, self.of.root)
    }

    /// The file that it claims to be of. That is enough to end locks of its client, and no more.
    pub(crate) fn claimed(&self) -> FileRef {
        self.of
    }

    /// The content, if the code is right for one of the keys.
    pub(crate) fn verify(&self, keys: &Keys) -> Option<FileRef> {
        let is_right = |key: &Key| {
            // All bytes are compared, so that the time does not tell how many are right.
            let pairs = key.code(&self.body).into_iter().zip(self.code);
            pairs.fold(0, |different, (one, other)| different | (one ^ other)) == 0
        };
        std::iter::once(&keys.own).chain(&keys.earlier).any(is_right).then_some(self.of)
    }
}

//! Requests from `/dev/fuse`: conversations of a kernel with a mount of a live tree that has a
//! snapshot, of the snapshot, and of a mirror's newest image.
//!
//! An input is a byte that chooses the view, and requests: two bytes of length, then that many
//! bytes. A kernel's requests contain their own length and name files by numbers that it was given;
//! most random ones would be refused for these alone. So unless the padding of a header says
//! otherwise, the length is corrected, and a number is mapped to one of the numbers that were
//! given.
//!
//! For any request, the answer is one that a kernel accepts, and at the end neither the volume nor
//! the tree has a fault. So no request breaks rules of the tree, in any order.

use std::sync::Arc;

use cairn_base::{ManualClock, Timestamp};
use cairn_device::MemoryDevice;
use cairn_files::{New, Tree, TreeError, check_tree};
use cairn_format::Role;
use cairn_frontend_fuse::{Follows, Unmounted, View};
use cairn_volume::{FormatOptions, Image, OpenOptions, Volume};

use crate::blocks::VOLUME;

const HEADER: usize = 40;
/// Where a header has its length, operation, number, file, and the padding that no kernel fills.
const LENGTH: std::ops::Range<usize> = 0..4;
const OPERATION: std::ops::Range<usize> = 4..8;
const UNIQUE: std::ops::Range<usize> = 8..16;
const NODE: std::ops::Range<usize> = 16..24;
const PADDING: usize = 38;
const RAW_LENGTH: u8 = 1;
const RAW_NODE: u8 = 2;
/// Requests of one conversation.
const REQUESTS_MAX: usize = 64;
/// Numbers that are remembered.
const NODES_MAX: usize = 64;
const ANSWER_HEADER: usize = 16;
const ENTRY: usize = 128;
const DIRENT: usize = 24;
/// `MAX_ERRNO` of Linux.
const ERRNO_MAX: i32 = 4095;

/// A mirror that shows its newest image.
struct Newest(Arc<Volume>);

impl Follows for Newest {
    fn volume(&self) -> &Arc<Volume> {
        &self.0
    }

    fn image(&self) -> Result<Option<Image>, TreeError> {
        Ok(Some(self.0.image(None)?))
    }
}

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const CREATE: u32 = 35;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
    pub(super) const TMPFILE: u32 = 51;
    pub(super) const STATX: u32 = 52;
}

/// A volume with a snapshot: of a directory, a file in it with an attribute, a link to it, and a
/// directory of many names.
fn volume() -> Arc<Volume> {
    let device = Arc::new(MemoryDevice::new(Volume::device_bytes(2048, Role::Normal)));
    let options = FormatOptions { id: VOLUME, blocks: 2048, role: Role::Normal };
    Volume::format(&*device, &options, &ManualClock::new(Timestamp(1)))
        .expect("an empty device is formatted");
    let clock = Arc::new(ManualClock::new(Timestamp(5)));
    Volume::open(device, OpenOptions { cache_bytes: 1 << 20, clock }).expect("it was formatted")
}

fn furnish(tree: &Tree) {
    let root = tree.root();
    let of = |mode| New { mode, ..New::default() };
    let folder = tree.make_directory(root, b"folder", &of(0o755)).expect("there is room").file;
    let file = tree.make(folder, b"file", &of(0o100_644)).expect("there is room").file;
    tree.write(file, 3000, &[7; 9000]).expect("there is room");
    tree.make_link(root, b"link", b"folder/file", &of(0)).expect("there is room");
    let many = tree.make_directory(root, b"many", &of(0o1777)).expect("there is room").file;
    for number in 0..150 {
        let name = format!("a name that takes some room in its directory {number}");
        tree.make(many, name.as_bytes(), &of(0o100_600)).expect("there is room");
    }
    tree.volume().create_snapshot("before").expect("there is room");
}

pub(crate) fn requests(data: &[u8]) {
    let Some((which, mut rest)) = data.split_first() else { return };
    let volume = volume();
    let live = Arc::new(Tree::open(volume.clone()).expect("a tree is made"));
    furnish(&live);
    let view = match which % 4 {
        0 | 1 => View::Live(live.clone()),
        2 => {
            let snapshot = volume.snapshots().first().map(|snapshot| snapshot.id);
            let image = volume.image(snapshot).expect("it was made");
            View::Frozen(Arc::new(Tree::of_image(image).expect("it has files")))
        }
        _ => View::Following(Arc::new(Newest(volume.clone()))),
    };
    let mount = Unmounted::new(view).expect("there is a tree");
    let mut known = vec![1];
    for round in 0..REQUESTS_MAX {
        let Some((length, after)) = rest.split_first_chunk::<2>() else { break };
        let (request, after) = after.split_at(usize::from(u16::from_le_bytes(*length)).min(after.len()));
        rest = after;
        let request = made_right(request, &known);
        if let Some(answer) = mount.answer(&request) {
            look_at(&request, &answer, &mut known);
        }
        if which % 4 == 3 && round % 8 == 7 {
            let _ = live.make(live.root(), format!("{round}").as_bytes(), &New::default());
            volume.consistency_point().expect("there is room");
            mount.refresh().expect("there is an image");
        }
    }
    drop(mount);
    volume.consistency_point().expect("whatever was asked, the volume is whole");
    assert_eq!(volume.check(&mut |_| {}).expect("checking is possible").findings, []);
    for image in [None, volume.snapshots().first().map(|snapshot| snapshot.id)] {
        let findings = check_tree(&volume.image(image).expect("there is a state"));
        assert_eq!(findings.expect("nothing is damaged"), []);
    }
}

fn number<const N: usize>(bytes: &[u8], at: std::ops::Range<usize>) -> [u8; N] {
    bytes.get(at).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

/// The request with its own length, and with the number of a file that is known.
fn made_right(request: &[u8], known: &[u64]) -> Vec<u8> {
    let mut request = request.to_vec();
    if request.len() >= HEADER {
        let raw = request[PADDING];
        request[PADDING] = 0;
        if raw & RAW_LENGTH == 0 {
            let length = request.len() as u32;
            request[LENGTH].copy_from_slice(&length.to_ne_bytes());
        }
        let node = u64::from_ne_bytes(number(&request, NODE));
        if raw & RAW_NODE == 0 {
            let node = known[(node % known.len() as u64) as usize];
            request[NODE].copy_from_slice(&node.to_ne_bytes());
        }
    }
    request
}

/// A kernel's requirements on an answer; numbers of files in it are noted.
fn look_at(request: &[u8], answer: &[u8], known: &mut Vec<u64>) {
    let length = u32::from_ne_bytes(number(answer, 0..4)) as usize;
    let error = i32::from_ne_bytes(number(answer, 4..8));
    assert_eq!(length, answer.len(), "an answer has another length than it says");
    assert_eq!(number::<8>(answer, 8..16), number::<8>(request, UNIQUE), "another request is answered");
    assert!((-ERRNO_MAX..=0).contains(&error), "{error} is no error");
    let body = &answer[ANSWER_HEADER..];
    assert!(error == 0 || body.is_empty(), "an error has something behind it");
    if error != 0 {
        return;
    }
    let size = |at: usize| u32::from_ne_bytes(number(request, HEADER + at..HEADER + at + 4)) as usize;
    match u32::from_ne_bytes(number(request, OPERATION)) {
        opcode::LOOKUP | opcode::MKNOD | opcode::MKDIR | opcode::SYMLINK | opcode::LINK => {
            assert_eq!(body.len(), ENTRY);
            note(body, known);
        }
        opcode::CREATE | opcode::TMPFILE => {
            assert_eq!(body.len(), ENTRY + 16);
            note(body, known);
        }
        opcode::GETATTR | opcode::SETATTR => assert_eq!(body.len(), 104),
        opcode::STATX => assert_eq!(body.len(), 288),
        opcode::OPEN | opcode::OPENDIR => assert_eq!(body.len(), 16),
        opcode::READ => assert!(body.len() <= size(16), "more than was asked for"),
        opcode::READLINK => assert!(body.len() < 4096, "a target that the kernel has no room for"),
        opcode::WRITE | opcode::COPY_FILE_RANGE | opcode::LSEEK => assert_eq!(body.len(), 8),
        opcode::STATFS => assert_eq!(body.len(), 80),
        opcode::GETXATTR | opcode::LISTXATTR => {
            assert!(size(0) == 0 && body.len() == 8 || body.len() <= size(0), "no room for the value");
        }
        opcode::READDIR => listing(body, 0, size(16), known),
        opcode::READDIRPLUS => listing(body, ENTRY, size(16), known),
        opcode::INIT => assert_eq!(body.len(), 64),
        _ => assert!(body.is_empty(), "an answer without anything to say"),
    }
}

/// Records of a listing, as `fuse_dentry_list` and `parse_dirplusfile` of Linux take them.
fn listing(mut body: &[u8], before: usize, room: usize, known: &mut Vec<u64>) {
    assert!(body.len() <= room, "a listing is longer than the kernel has room for");
    let mut last = 0;
    while !body.is_empty() {
        let head = before..before + DIRENT;
        assert!(body.len() >= head.end, "a record is cut off");
        let (cookie, name) = (number(body, before + 8..before + 16), number(body, before + 16..before + 20));
        let (cookie, name) = (u64::from_ne_bytes(cookie), u32::from_ne_bytes(name) as usize);
        assert!((1..=255).contains(&name) && cookie > last, "a listing does not go on");
        last = cookie;
        let record = (head.end + name).next_multiple_of(8);
        assert!(body.len() >= record, "a name is cut off");
        let bytes = &body[head.end..head.end + name];
        assert!(!bytes.iter().any(|byte| matches!(byte, 0 | b'/')), "a name that is none");
        if before > 0 && bytes != b"." && bytes != b".." {
            note(body, known);
        }
        body = &body[record..];
    }
}

fn note(entry: &[u8], known: &mut Vec<u64>) {
    let node = u64::from_ne_bytes(number(entry, 0..8));
    // 0: there is no such name.
    if node != 0 && !known.contains(&node) && known.len() < NODES_MAX {
        known.push(node);
    }
}

/// A request as a kernel makes it, with its length before it. `node` is the index of a number that
/// was given.
fn request(operation: u32, node: u64, arguments: &[&[u8]]) -> Vec<u8> {
    let body: Vec<u8> = arguments.concat();
    let length = (HEADER + body.len()) as u32;
    let mut bytes = (length as u16).to_le_bytes().to_vec();
    bytes.extend([length, operation].map(u32::to_ne_bytes).concat());
    bytes.extend([7u64, node].map(u64::to_ne_bytes).concat());
    bytes.extend([0u32; 4].map(u32::to_ne_bytes).concat());
    bytes.extend(body);
    bytes
}

/// Numbers as in arguments.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn longs(longs: &[u64]) -> Vec<u8> {
    longs.iter().flat_map(|long| long.to_ne_bytes()).collect()
}

/// The arguments of READ, READDIR and (before its bytes) WRITE.
fn range(offset: u64, size: u32) -> Vec<u8> {
    [longs(&[0, offset]), words(&[size, 0]), longs(&[0]), words(&[0, 0])].concat()
}

pub(crate) fn request_seeds() -> Vec<Vec<u8>> {
    use opcode::*;
    let (made, named) = (words(&[0o100_644, 0, 0, 0]), |name: &'static str| name.as_bytes());
    let start = request(INIT, 0, &[&words(&[7, 39, 1 << 17, u32::MAX, u32::MAX]), &[0; 44]]);
    let look = |name: &'static str| request(LOOKUP, 0, &[named(name)]);
    let conversations: [Vec<Vec<u8>>; 6] = [
        // Files are made, written, read and removed. 1 is the folder, 2 the file in it, 3 the new
        // file.
        vec![
            look("folder\0"),
            request(LOOKUP, 1, &[b"file\0"]),
            request(CREATE, 1, &[&words(&[2, 0o100_644, 0o22, 0]), b"new\0"]),
            request(WRITE, 3, &[&range(4090, 12), b"some bytes.."]),
            request(READ, 3, &[&range(0, 8192)]),
            request(FSYNC, 3, &[&longs(&[0, 0])]),
            request(UNLINK, 1, &[b"new\0"]),
            request(LSEEK, 3, &[&longs(&[0, 0]), &words(&[3, 0])]),
            request(TMPFILE, 1, &[&words(&[2, 0o100_644, 0o22, 0]), b"/\0"]),
            request(LINK, 1, &[&longs(&[4]), b"named\0"]),
            request(RELEASE, 3, &[&longs(&[0]), &words(&[2, 0]), &longs(&[0])]),
        ],
        // Names.
        vec![
            look("folder\0"),
            look("many\0"),
            request(MKDIR, 1, &[&words(&[0o755, 0]), b"below\0"]),
            request(RENAME2, 1, &[&longs(&[1]), &words(&[0, 0]), b"below\0moved\0"]),
            request(RENAME2, 0, &[&longs(&[1]), &words(&[2, 0]), b"folder\0link\0"]),
            request(LINK, 0, &[&longs(&[7]), b"second\0"]),
            request(SYMLINK, 0, &[b"points\0", b"somewhere\0"]),
            request(MKNOD, 2, &[&made, b"plain\0"]),
            request(RMDIR, 0, &[b"moved\0"]),
        ],
        // Listings, also of snapshots.
        vec![
            look("many\0"),
            look(".snapshot\0"),
            request(OPENDIR, 1, &[&words(&[0, 0])]),
            request(READDIR, 1, &[&range(0, 4096)]),
            request(READDIRPLUS, 1, &[&range(2, 65_536)]),
            request(READDIRPLUS, 2, &[&range(0, 4096)]),
            request(READDIR, 3, &[&range(0, 500)]),
            request(RELEASEDIR, 1, &[&longs(&[0]), &words(&[0, 0]), &longs(&[0])]),
        ],
        // Attributes.
        vec![
            look("folder\0"),
            look("link\0"),
            request(GETATTR, 1, &[&longs(&[0, 0])]),
            request(STATX, 1, &[&longs(&[0, 0, 0])]),
            request(SETATTR, 1, &[&words(&[0x7ff, 0]), &longs(&[0, 1 << 40, 0, 1, 2, 3]), &words(&[9; 8])]),
            request(SETXATTR, 1, &[&words(&[5, 0]), b"user.name\0", b"value"]),
            request(GETXATTR, 1, &[&words(&[100, 0]), b"user.name\0"]),
            request(LISTXATTR, 1, &[&words(&[0, 0])]),
            request(REMOVEXATTR, 1, &[b"user.name\0"]),
            request(READLINK, 2, &[]),
            request(STATFS, 0, &[]),
        ],
        // Space.
        vec![
            look("folder\0"),
            request(LOOKUP, 1, &[b"file\0"]),
            request(OPEN, 2, &[&words(&[2, 0])]),
            request(FALLOCATE, 2, &[&longs(&[0, 4000, 9000]), &words(&[3, 0])]),
            request(FALLOCATE, 2, &[&longs(&[0, 0, 1 << 40]), &words(&[1, 0])]),
            request(COPY_FILE_RANGE, 2, &[&longs(&[0, 3000, 6, 0, 20_000, 5000, 0])]),
            request(SETATTR, 2, &[&words(&[8, 0]), &longs(&[0, 5, 0, 0, 0, 0]), &words(&[0; 8])]),
            request(LSEEK, 2, &[&longs(&[0, 0]), &words(&[4, 0])]),
        ],
        // The numbers that a kernel forgets.
        vec![
            look(".snapshot\0"),
            request(LOOKUP, 1, &[b"before\0"]),
            request(LOOKUP, 2, &[b"folder\0"]),
            request(BATCH_FORGET, 0, &[&words(&[2, 0]), &longs(&[1 << 40 | 2, 1, 1 << 40 | 5, 1])]),
            request(READDIRPLUS, 2, &[&range(0, 4096)]),
        ],
    ];
    let mut seeds = Vec::new();
    for view in [0u8, 2, 3] {
        for conversation in &conversations {
            seeds.push([&[view], start.as_slice(), &conversation.concat()].concat());
        }
    }
    seeds
}

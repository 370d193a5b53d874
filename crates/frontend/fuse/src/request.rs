//! Requests: the bytes that the kernel gives for one, as values.
//!
//! A request that is too short or lacks the end of a name is invalid ([`Request::parse`] reports
//! it). An unknown operation is [`Operation::Other`], and the kernel gets the matching error.

use zerocopy::FromBytes;

use crate::abi::*;

/// One request.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub(crate) header: fuse_in_header,
    pub(crate) operation: Operation<'a>,
}

/// The requested operation. Names contain no zero byte.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    Init { arguments: fuse_init_in, flags2: u32 },
    Destroy,
    Lookup { name: &'a [u8] },
    Forget { lookups: u64 },
    BatchForget { nodes: Vec<fuse_forget_one> },
    GetAttr,
    Statx,
    SetAttr(fuse_setattr_in),
    ReadLink,
    SymLink { name: &'a [u8], target: &'a [u8] },
    MkNod { arguments: fuse_mknod_in, name: &'a [u8] },
    MkDir { arguments: fuse_mkdir_in, name: &'a [u8] },
    Unlink { name: &'a [u8] },
    RmDir { name: &'a [u8] },
    Rename { newdir: u64, flags: u32, name: &'a [u8], new_name: &'a [u8] },
    Link { oldnodeid: u64, name: &'a [u8] },
    Open(fuse_open_in),
    Create { arguments: fuse_create_in, name: &'a [u8] },
    TmpFile { arguments: fuse_create_in },
    Read(fuse_read_in),
    Write { arguments: fuse_write_in, data: &'a [u8] },
    StatFs,
    Release(fuse_release_in),
    Fsync,
    SetXattr { flags: u32, kills_group_id: bool, name: &'a [u8], value: &'a [u8] },
    GetXattr { size: u32, name: &'a [u8] },
    ListXattr { size: u32 },
    RemoveXattr { name: &'a [u8] },
    OpenDir,
    ReadDir(fuse_read_in),
    ReadDirPlus(fuse_read_in),
    ReleaseDir,
    FsyncDir,
    Fallocate(fuse_fallocate_in),
    Lseek(fuse_lseek_in),
    CopyFileRange(fuse_copy_file_range_in),
    Interrupt,
    Other,
}

/// The unparsed rest of a request.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(name)
    }

    fn bytes(&mut self, count: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count as usize)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Request<'a> {
    /// The request in `bytes`, which is one read from the device; `None` for an invalid one.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = fuse_in_header::read_from_prefix(bytes).ok()?;
        if header.len as usize != bytes.len() {
            return None;
        }
        // A kernel adds extensions after the arguments only on request.
        let extended = usize::from(header.total_extlen) * 8;
        let own = rest.len().checked_sub(extended)?;
        let operation = operation(header.opcode, &mut Rest(&rest[..own]))?;
        Some(Self { header, operation })
    }
}

fn operation<'a>(code: u32, rest: &mut Rest<'a>) -> Option<Operation<'a>> {
    Some(match code {
        opcode::INIT => {
            let arguments: fuse_init_in = rest.take()?;
            Operation::Init { arguments, flags2: rest.take().unwrap_or(0) }
        }
        opcode::DESTROY => Operation::Destroy,
        opcode::LOOKUP => Operation::Lookup { name: rest.name()? },
        opcode::FORGET => Operation::Forget { lookups: rest.take::<fuse_forget_in>()?.nlookup },
        opcode::BATCH_FORGET => {
            let head: fuse_batch_forget_in = rest.take()?;
            let bytes = (head.count as usize).checked_mul(size_of::<fuse_forget_one>())?;
            let mut list = Rest(rest.0.get(..bytes)?);
            Operation::BatchForget { nodes: std::iter::from_fn(|| list.take()).collect() }
        }
        opcode::GETATTR => Operation::GetAttr,
        opcode::STATX => Operation::Statx,
        opcode::SETATTR => Operation::SetAttr(rest.take()?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => Operation::SymLink { name: rest.name()?, target: rest.name()? },
        opcode::MKNOD => Operation::MkNod { arguments: rest.take()?, name: rest.name()? },
        opcode::MKDIR => Operation::MkDir { arguments: rest.take()?, name: rest.name()? },
        opcode::UNLINK => Operation::Unlink { name: rest.name()? },
        opcode::RMDIR => Operation::RmDir { name: rest.name()? },
        opcode::RENAME => {
            let newdir = rest.take::<fuse_rename_in>()?.newdir;
            Operation::Rename { newdir, flags: 0, name: rest.name()?, new_name: rest.name()? }
        }
        opcode::RENAME2 => {
            let fuse_rename2_in { newdir, flags, .. } = rest.take()?;
            Operation::Rename { newdir, flags, name: rest.name()?, new_name: rest.name()? }
        }
        opcode::LINK => {
            Operation::Link { oldnodeid: rest.take::<fuse_link_in>()?.oldnodeid, name: rest.name()? }
        }
        opcode::OPEN => Operation::Open(rest.take()?),
        opcode::CREATE => Operation::Create { arguments: rest.take()?, name: rest.name()? },
        opcode::TMPFILE => {
            let arguments = rest.take()?;
            // The kernel has a name for everything; here it means nothing.
            rest.name()?;
            Operation::TmpFile { arguments }
        }
        opcode::READ => Operation::Read(rest.take()?),
        opcode::WRITE => {
            let arguments: fuse_write_in = rest.take()?;
            Operation::Write { data: rest.bytes(arguments.size)?, arguments }
        }
        opcode::STATFS => Operation::StatFs,
        opcode::RELEASE => Operation::Release(rest.take()?),
        opcode::FSYNC => Operation::Fsync,
        opcode::SETXATTR => {
            let fuse_setxattr_in { size, flags } = rest.take()?;
            // Longer arguments come where INIT agreed on them; a name would reach up to the value.
            let named = rest.0.len().checked_sub(size as usize)?;
            let has_name = rest.0.iter().position(|byte| *byte == 0).is_some_and(|end| end + 1 == named);
            let more = if has_name { fuse_setxattr_ext_in::default() } else { rest.take()? };
            let kills_group_id = more.setxattr_flags & FUSE_SETXATTR_ACL_KILL_SGID != 0;
            Operation::SetXattr { flags, kills_group_id, name: rest.name()?, value: rest.bytes(size)? }
        }
        opcode::GETXATTR => {
            Operation::GetXattr { size: rest.take::<fuse_getxattr_in>()?.size, name: rest.name()? }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: rest.take::<fuse_getxattr_in>()?.size },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: rest.name()? },
        opcode::OPENDIR => Operation::OpenDir,
        opcode::READDIR => Operation::ReadDir(rest.take()?),
        opcode::READDIRPLUS => Operation::ReadDirPlus(rest.take()?),
        opcode::RELEASEDIR => Operation::ReleaseDir,
        opcode::FSYNCDIR => Operation::FsyncDir,
        opcode::FALLOCATE => Operation::Fallocate(rest.take()?),
        opcode::LSEEK => Operation::Lseek(rest.take()?),
        opcode::COPY_FILE_RANGE => Operation::CopyFileRange(rest.take()?),
        opcode::INTERRUPT => Operation::Interrupt,
        _ => Operation::Other,
    })
}

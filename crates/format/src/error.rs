//! Why bytes from a disk were refused.

/// The structure that the bytes should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Structure {
    /// A superblock slot.
    Superblock,
    /// A node of a tree.
    Node,
    /// An inode.
    Inode,
    /// A block of the snapshot table.
    SnapshotTable,
    /// A block of the redirect map.
    RedirectMap,
    /// An index of label blocks.
    LabelIndex,
    /// A record of the intent log.
    LogRecord,
    /// The header of a log device.
    LogDevice,
    /// The superblock of a history store.
    HistoryStore,
    /// The first or the last block of a segment of a history.
    HistorySegment,
    /// A record of a history.
    HistoryRecord,
    /// An entry of a directory.
    Directory,
    /// A leaf of a directory of the tree of names.
    Leaf,
    /// Extended attributes.
    Extended,
    /// The record of a quota tree.
    Quota,
    /// The start of an image stream.
    StreamHeader,
    /// A record of an image stream.
    StreamRecord,
    /// The head of a part of an image dump.
    DumpHeader,
    /// The head of a trace.
    TraceHeader,
    /// The head of a frame of a trace.
    TraceFrame,
    /// A record of a trace.
    TraceRecord,
}

impl std::fmt::Display for Structure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Structure::Superblock => "superblock",
            Structure::Node => "tree node",
            Structure::Inode => "inode",
            Structure::SnapshotTable => "snapshot table block",
            Structure::RedirectMap => "redirect map block",
            Structure::LabelIndex => "label index block",
            Structure::LogRecord => "intent log record",
            Structure::LogDevice => "header of a log device",
            Structure::HistoryStore => "superblock of a history store",
            Structure::HistorySegment => "end of a history segment",
            Structure::HistoryRecord => "history record",
            Structure::Directory => "directory entry",
            Structure::Leaf => "directory leaf",
            Structure::Extended => "list of extended attributes",
            Structure::Quota => "record of a quota tree",
            Structure::StreamHeader => "image stream",
            Structure::StreamRecord => "record of an image stream",
            Structure::DumpHeader => "image dump",
            Structure::TraceHeader => "trace",
            Structure::TraceFrame => "frame of a trace",
            Structure::TraceRecord => "record of a trace",
        })
    }
}

/// Bytes that fail a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The magic number is another: this is no such structure.
    #[error("this is no {0}: its magic number is wrong")]
    Magic(Structure),
    /// Written by a newer program.
    #[error(
        "this {structure} has format version {found}; this program reads up to {supported}: use a newer cairn"
    )]
    Version {
        /// The structure that was read.
        structure: Structure,
        /// Its version.
        found: u32,
        /// The newest that is understood.
        supported: u32,
    },
    /// The checksum inside the structure does not match.
    #[error("this {0} is damaged: its checksum does not match")]
    Checksum(Structure),
    /// It belongs to another volume, place, file or level: a misdirected or stale write.
    #[error("this {0} belongs somewhere else (a misdirected or stale write)")]
    Misplaced(Structure),
    /// A field has a value that is never written.
    #[error("this {structure} has an impossible {field}")]
    Field {
        /// The structure that was read.
        structure: Structure,
        /// Which field.
        field: &'static str,
    },
}

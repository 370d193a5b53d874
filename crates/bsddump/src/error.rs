//! Errors of a dump as a whole. The fault of a single file is not an error: see [`crate::Failed`]
//! and [`crate::Damage`].

/// Why a dump can't be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The output.
    #[error("the dump can't be written: {0}")]
    Output(#[source] std::io::Error),
    /// The source as a whole.
    #[error("the source of the dump can't be read: {0}")]
    Source(#[source] std::io::Error),
    /// There is no root directory.
    #[error("the source of the dump has no root directory")]
    NoRoot,
    /// The requested path does not exist.
    #[error("no such path in the data to dump: {}", .0.escape_ascii())]
    NoSuchPath(Vec<u8>),
    /// The caller asked to end it.
    #[error("the dump was ended before it was whole")]
    Cancelled,
}

/// Why the input can't be read as a dump.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The input.
    #[error("the dump can't be read: {0}")]
    Input(#[from] std::io::Error),
    /// The receiver of a file's content.
    #[error("the content read can't be written: {0}")]
    Output(#[source] std::io::Error),
    /// No label where one must be.
    #[error("not a BSD dump: the first 1,024 bytes are not a label")]
    NotADump,
    /// `dump -z`, `-j` or `-y`.
    #[error(
        "this dump is compressed by `dump` itself, which is not read here; write it without -z, -j and -y and compress the stream"
    )]
    Compressed,
    /// A volume of several, and not the first.
    #[error("this is volume {0} of a dump of several; only the first can be started with")]
    NotTheFirst(i32),
    /// There is no volume where one must be.
    #[error("volume {wanted} of the dump is empty")]
    NoVolume {
        /// Which, from 1.
        wanted: u32,
    },
    /// A volume out of turn, or of another dump.
    #[error("the file given as volume {wanted} of the dump is {}", other(*found, *is_of_it))]
    OtherVolume {
        /// Which, from 1.
        wanted: u32,
        /// The number in the label.
        found: i32,
        /// It is of the same dump.
        is_of_it: bool,
    },
    /// The other byte order, or another layout of headers.
    #[error("this dump is of {0}, which is not read here; restore it with that system's own `restore`")]
    Foreign(&'static str),
    /// Without the maps the content of the dump is unknown.
    #[error("the dump is damaged or ends before its maps of inodes: nothing of it can be used")]
    NoMaps,
}

fn other(found: i32, is_of_it: bool) -> String {
    if is_of_it { format!("its volume {found}") } else { format!("volume {found} of another dump") }
}

//! The image stream: the transfer format of a mirror, made from a volume's maps and applied to a
//! destination. Any `Read` or `Write` carries it.
//!
//! [`Plan`] finds the changed blocks and pins their snapshots. [`produce`] reads them in order of
//! vbn, past the cache, and writes the stream. [`apply`] verifies record by record and feeds a
//! [`cairn_volume::Receiver`], which commits the image as a whole or not at all. No thread is
//! started here: if the caller provides [`Threads`], disk and wire work at the same time.
//!
//! The structs are in `cairn_format::stream`.

mod apply;
mod consume;
mod dump;
mod encode;
mod error;
mod gauge;
mod outgoing;
mod plan;
mod produce;
#[cfg(test)]
mod tests;
mod work;

pub use apply::{Applied, Keeps, apply, apply_keeping, apply_to};
pub use consume::{Consumer, Record, Runs};
pub use dump::{
    Begun, Dump, DumpBytes, DumpDevice, DumpError, DumpLabel, HEAD_BYTES, InBlocks, Lost, Onto, OpenDump,
    PartHead, PartIndex, PartReached, PartReader, ReadBlocks, RestoreLedger, Restored, Standing, arrange,
    begun_table, restore, restore_on,
};
pub use encode::Compression;
pub use error::{AbortReason, StreamError};
pub use gauge::Gauge;
pub use outgoing::{ALIGNMENT, Out, Outgoing};
pub use plan::{Have, MIRROR_PREFIX, Plan};
pub use produce::{Produced, Reached, abort, produce, produce_gauged};
pub use work::{Helper, Own, Progress, Threads, Work};

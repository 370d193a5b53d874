//! Whether a peer is silent, and for how long it may be.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use cairn_mirror::MirrorError;

use crate::peers::watched::Watched;

/// Whether a conversation ended because the peer neither sent nor accepted data within the
/// patience.
pub(crate) fn is_silence(error: &MirrorError) -> bool {
    matches!(error, MirrorError::Io(source) if is_late(source))
}

/// Whether a socket has timed out. Linux reports `WouldBlock` then.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// How long reads and writes wait.
pub(crate) fn set_patience(stream: &mut Watched<TcpStream>, patience: Duration) -> io::Result<()> {
    stream.set_patience(patience);
    stream.get_ref().set_read_timeout(Some(patience))?;
    stream.get_ref().set_write_timeout(Some(patience))
}

//! Downloads: a file as it is, or a folder as a tar or zip file, streamed from an image of the
//! volume.
//!
//! The image holds its blocks, so a download shows one instant, also of the volume as it is now.
//! A browser cannot send the key of its session with a download. So the page asks for a ticket
//! first: a secret in the URL that works once, within [`TICKET_MAX`].

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use axum::body::Bytes;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cairn_api as api;
use cairn_files::{NodeKind, Stat, Tree, TreeError};
use parking_lot::Mutex;

use super::pipe::{Reader, Writer, pipe};
use super::tar_stream::{self, Content};
use super::{Place, TICKETS_MAX, zip_stream};
use crate::error::ServerError;
use crate::peers::token::random_bytes;

/// The life of a ticket.
const TICKET_MAX: Duration = Duration::from_secs(60);

/// Bytes of a secret.
const SECRET_BYTES: usize = 24;

/// Bytes of a folder in one piece.
const PIECE: usize = 256 << 10;

/// Where the files of a download are.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A volume.
    Volume(String),
    /// An image dump: its bucket, and its name in there.
    Dump(String, String),
    /// An image dump: its folder, and its id.
    FolderDump(String, String),
}

/// A prepared download.
pub(super) struct Ticket {
    pub(super) source: Source,
    pub(super) place: api::FilePlace,
    /// The token of its client; none on the control socket.
    pub(super) token: Option<String>,
    expires: Duration,
}

/// The prepared downloads, by their secrets.
#[derive(Default)]
pub(super) struct Tickets(Mutex<HashMap<String, Ticket>>);

impl Tickets {
    /// Makes a ticket at the monotonic time `now`.
    pub(super) fn make(
        &self,
        source: Source,
        place: api::FilePlace,
        token: Option<String>,
        now: Duration,
    ) -> Result<String, ServerError> {
        let secret = URL_SAFE_NO_PAD.encode(random_bytes::<SECRET_BYTES>());
        let mut tickets = self.0.lock();
        tickets.retain(|_, ticket| ticket.expires > now);
        if tickets.len() >= TICKETS_MAX {
            let (Source::Volume(name) | Source::Dump(name, _) | Source::FolderDump(name, _)) = source;
            return Err(ServerError::Busy { name, by: "too many downloads were prepared and not begun" });
        }
        let ticket = Ticket { source, place, token, expires: now + TICKET_MAX };
        tickets.insert(secret.clone(), ticket);
        Ok(secret)
    }

    /// Takes a ticket, which then works no more.
    pub(super) fn take(&self, secret: &str, now: Duration) -> Option<Ticket> {
        self.0.lock().remove(secret).filter(|ticket| ticket.expires > now)
    }
}

/// A download that has begun.
pub(crate) struct Sending {
    /// The name of the file that arrives.
    pub(crate) file_name: Vec<u8>,
    /// Its length; none for a folder.
    pub(crate) bytes: Option<u64>,
    /// The content.
    pub(crate) content: Reader,
}

/// The name of the file that arrives, and its length if that is known.
pub(super) fn shape(
    stat: &Stat,
    name: &[u8],
    archive: api::Archive,
) -> Result<(Vec<u8>, Option<u64>), ServerError> {
    let suffix: &[u8] = match archive {
        api::Archive::Tar => b".tar",
        api::Archive::Zip => b".zip",
    };
    match stat.kind {
        NodeKind::File => Ok((name.to_vec(), Some(stat.bytes))),
        NodeKind::Directory => Ok(([name, suffix].concat(), None)),
        _ => Err(ServerError::Invalid {
            fault: "this is neither a file nor a folder",
            next: "download the folder that it is in",
        }),
    }
}

/// Begins to read a file or a folder on a thread of its own.
pub(super) fn begin(
    tree: Tree,
    stat: Stat,
    name: Vec<u8>,
    archive: api::Archive,
    subject: String,
    place: Place,
) -> Result<Sending, ServerError> {
    let (file_name, bytes) = shape(&stat, &name, archive)?;
    let (writer, content) = pipe();
    let work = move || {
        let _place = place;
        let outcome = match (stat.kind, archive) {
            (NodeKind::Directory, api::Archive::Tar) => {
                tar_stream::write_folder(&tree, &stat, &name, Pieces::to(&writer))
            }
            (NodeKind::Directory, api::Archive::Zip) => {
                zip_stream::write_folder(&tree, &stat, &name, Pieces::to(&writer))
            }
            _ => send_file(&tree, &stat, &writer),
        };
        if let Err(error) = &outcome
            && !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::TimedOut)
        {
            tracing::warn!(file = subject, %error, "a download was cut");
        }
        writer.end(outcome);
    };
    let thread = std::thread::Builder::new().name("download".to_owned()).spawn(work);
    thread.map_err(|source| ServerError::Thread { what: "the download", source })?;
    Ok(Sending { file_name, bytes, content })
}

fn send_file(tree: &Tree, stat: &Stat, to: &Writer) -> io::Result<()> {
    let mut content = Content::of(tree, stat);
    while let Some(piece) = content.next_piece()? {
        to.send(piece.into())?;
    }
    Ok(())
}

/// Collects small writes into pieces.
struct Pieces<'a> {
    to: &'a Writer,
    kept: Vec<u8>,
}

impl<'a> Pieces<'a> {
    fn to(to: &'a Writer) -> Self {
        Self { to, kept: Vec::with_capacity(PIECE) }
    }
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.kept, Vec::with_capacity(PIECE));
        if piece.is_empty() { Ok(()) } else { self.to.send(Bytes::from(piece)) }
    }
}

/// The file of a path, and its name: that of the volume for the root.
pub(super) fn find(tree: &Tree, names: &[&[u8]], root: &str) -> Result<(Stat, Vec<u8>), TreeError> {
    let stat = tree.resolve(&names.join(&b'/'))?;
    let name = names.last().map_or(root.as_bytes().to_vec(), |name| name.to_vec());
    Ok((stat, name))
}

//! The front end's interface to the server: the exports, and the tree of each.

use std::net::IpAddr;
use std::sync::Arc;

use cairn_base::VolumeId;

use crate::credentials::Rules;
use crate::view::View;

/// An exported directory.
pub trait Export: Send + Sync {
    /// Its name: `VOLUME:/PATH`, for people.
    fn name(&self) -> &str;

    /// The path that clients mount: `/VOLUME/PATH`.
    fn path(&self) -> &str;

    /// The volume.
    fn volume(&self) -> VolumeId;

    /// Its rules.
    fn rules(&self) -> Rules;

    /// Whether a client at this address may use it.
    fn admits(&self, client: IpAddr) -> bool;

    /// The networks of its clients, for their lists; none for all clients.
    fn networks(&self) -> Vec<String>;

    /// The files that it shows now.
    ///
    /// # Errors
    /// [`Unavailable`]; the client gets an error after which it tries again.
    fn view(&self) -> Result<Arc<View>, Unavailable>;
}

/// The exports of a server. Called from the threads of sessions.
pub trait Exports: Send + Sync {
    /// All exports.
    fn all(&self) -> Arc<[Arc<dyn Export>]>;

    /// Releases images that no client has used for a while. Called about once a second.
    fn rest(&self);
}

/// An export shows no files at the moment: its volume is not open, or its directory is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the export shows no files at the moment")]
pub struct Unavailable;

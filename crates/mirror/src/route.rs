//! The route of an image: the volumes that it came through, for cascades that end in themselves.
//!
//! If two mirrors are repointed at each other, or several of them in a ring, each would always
//! report that it is up to date, although none of them takes writes. So a source sends, along with
//! its lag, the name of its volume and server. If it shows a received image, it adds the route that
//! its own source reported. A destination that finds itself in the route follows itself
//! ([`MirrorError::FollowsItself`](crate::MirrorError::FollowsItself)).
//!
//! A volume that shows its own writes ends the route, whatever it was before. A source's knowledge
//! of its own source may be from before a change of roles there: its route is correct again once it
//! has heard of that.

use cairn_base::Checksum;

/// The maximum number of volumes in a route: those nearest to the reporting one. A larger ring is
/// not found by its route, but by its lag.
pub const HOPS_MAX: usize = 8;

/// A volume on a server, as a number without any other meaning; not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hop(u64);

impl Hop {
    /// Of a volume; `server` identifies its server.
    pub fn of(server: &[u8], volume: &str) -> Self {
        let Checksum(digest) = Checksum::of_pieces([server, volume.as_bytes()].into_iter());
        let number = digest.first_chunk().copied().map(u64::from_le_bytes).unwrap_or_default();
        Self(number.max(1))
    }
}

/// Volumes that an image came through, the last one first; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Route([u64; HOPS_MAX]);

impl Route {
    /// The route of an image that came through `hop` last, and through `before` until then.
    pub fn through(hop: Hop, before: Route) -> Self {
        let mut hops = before.0;
        hops.rotate_right(1);
        hops[0] = hop.0;
        Self(hops)
    }

    /// Whether it goes through a volume.
    pub fn has(&self, hop: Hop) -> bool {
        self.0.contains(&hop.0)
    }

    /// As numbers, for a message or a document.
    pub fn numbers(&self) -> [u64; HOPS_MAX] {
        self.0
    }
}

impl From<[u64; HOPS_MAX]> for Route {
    fn from(numbers: [u64; HOPS_MAX]) -> Self {
        Self(numbers)
    }
}

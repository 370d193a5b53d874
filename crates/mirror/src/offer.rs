//! What a source needs of the server around it: its volumes, who may have them, and what their
//! owners want of it.

use std::sync::Arc;
use std::time::Duration;

use cairn_volume::{Snapshot, Volume};

use crate::access::LunAccess;
use crate::error::Refusal;
use crate::handover::{Departure, GiveTogether, GiveWay, Heir, Successor};
use crate::lag::Lag;
use crate::relationship::{PeerName, Relationship};
use crate::route::Route;

/// The volumes that a source offers.
pub trait SourceVolumes {
    /// The volume of that name, if this peer may mirror it; [`Refusal::NoSuchVolume`] else.
    fn volume(&self, name: &str, peer: &PeerName) -> Result<Arc<Volume>, Refusal>;

    /// An address that the other side gives for itself, as this side reaches it.
    fn reachable(&self, address: &str) -> String {
        address.to_owned()
    }

    /// A mirror wants to take over. Whoever keeps the relationships writes down whom the volume
    /// follows from now on, and then calls `give`; on an error nothing has changed.
    fn hand_over(
        &self,
        _volume: &str,
        _peer: &PeerName,
        _relationship: Relationship,
        _successor: &Successor,
        _give: &mut GiveWay<'_>,
    ) -> Result<Snapshot, Refusal> {
        Err(Refusal::NotTaken)
    }

    /// The mirrors of a group want to take over, all at one instant. As
    /// [`SourceVolumes::hand_over`], for all of them or for none: of some it may have been done
    /// before, and a crash kept it from the others; those take writes again first.
    fn hand_over_together(
        &self,
        _group: &str,
        _peer: &PeerName,
        _heirs: &[Heir],
        _give: &mut GiveTogether<'_>,
    ) -> Result<Vec<Snapshot>, Refusal> {
        Err(Refusal::NotTaken)
    }

    /// A mirror tells that it was failed over; `known` when that is news to a mirror's source.
    fn departed(
        &self,
        _volume: &str,
        _peer: &PeerName,
        _relationship: Relationship,
        _departure: &Departure,
        _known: bool,
    ) {
    }

    /// How far behind its own source a volume is that is a destination itself; none when it is
    /// none, or nothing is known: then its mirrors count from the image that it shows.
    fn upstream_lag(&self, _volume: &str) -> Option<Lag> {
        None
    }

    /// The volumes that what a volume gives came through, itself first; none where nobody is to be
    /// told.
    fn route(&self, _volume: &str) -> Route {
        Route::default()
    }

    /// Waits, for no longer than so, on behalf of a destination that follows continuously. False
    /// when nobody may wait (any more): it is answered at once.
    fn rest(&self, _for: Duration) -> bool {
        false
    }

    /// A refusal in words that the other side knows.
    fn in_words(&self, refusal: Refusal) -> Refusal {
        refusal
    }

    /// So many bytes more were sent of a volume. It may wait, for the sake of others.
    fn sent(&self, _volume: &str, _bytes: u64) {}

    /// Makes a snapshot of a volume with what its owner wants around it.
    ///
    /// # Errors
    /// Why that failed, and `make` was not called: [`Refusal::NoRoom`] as of
    /// [`SourceVolumes::check_room`], else [`Refusal::Hook`].
    fn around_snapshot(&self, _volume: &str, make: &mut dyn FnMut()) -> Result<(), Refusal> {
        make();
        Ok(())
    }

    /// Refuses what needs a consistency point of a volume where that would wait for room longer
    /// than who asks should: it would wait with what all mirrors of the server need. Asked before
    /// any of that is locked.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`].
    fn check_room(&self, _volume: &str) -> Result<(), Refusal> {
        Ok(())
    }

    /// Who may use the LUNs of a volume, of those for which something is set;
    /// [`Refusal::SourceFailed`] where that is not known.
    fn access(&self, _volume: &str) -> Result<Vec<LunAccess>, Refusal> {
        Ok(Vec::new())
    }

    /// Under which name this side was a mirror of the peer in the other direction of a
    /// relationship: what it holds of that goes once the peer has an image.
    fn former(&self, _volume: &str, _peer: &PeerName, _relationship: Relationship) -> Option<PeerName> {
        None
    }
}

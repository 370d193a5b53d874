//! A source's interface to the server around it: its volumes, their access rights, and the settings
//! of their owners.

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
    /// The volume of that name, if this peer may mirror it; otherwise [`Refusal::NoSuchVolume`].
    fn volume(&self, name: &str, peer: &PeerName) -> Result<Arc<Volume>, Refusal>;

    /// An address that the other side gives for itself, as this side reaches it.
    fn reachable(&self, address: &str) -> String {
        address.to_owned()
    }

    /// A mirror wants to take over. The server records which side the volume follows from now on,
    /// and then calls `give`. On an error nothing has changed.
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
    /// [`SourceVolumes::hand_over`], for all of them or for none. After a crash some may have
    /// handed over already; those take writes again first.
    fn hand_over_together(
        &self,
        _group: &str,
        _peer: &PeerName,
        _heirs: &[Heir],
        _give: &mut GiveTogether<'_>,
    ) -> Result<Vec<Snapshot>, Refusal> {
        Err(Refusal::NotTaken)
    }

    /// A mirror reports that it was failed over; `known` when that is new to the source.
    fn departed(
        &self,
        _volume: &str,
        _peer: &PeerName,
        _relationship: Relationship,
        _departure: &Departure,
        _known: bool,
    ) {
    }

    /// The lag of a volume behind its own source, if it is a destination itself. `None` if it is
    /// not, or nothing is known: then its mirrors count from the image that it shows.
    fn upstream_lag(&self, _volume: &str) -> Option<Lag> {
        None
    }

    /// The volumes that a volume's image came through, itself first; `None` if the route must not
    /// be revealed.
    fn route(&self, _volume: &str) -> Route {
        Route::default()
    }

    /// Waits, for at most this long, on behalf of a destination that follows continuously. False
    /// when waiting is not allowed (any more): the request is answered at once.
    fn rest(&self, _for: Duration) -> bool {
        false
    }

    /// A refusal in words that the other side knows.
    fn in_words(&self, refusal: Refusal) -> Refusal {
        refusal
    }

    /// `bytes` more bytes of a volume were sent. It may wait, to limit the rate for the sake of
    /// others.
    fn sent(&self, _volume: &str, _bytes: u64) {}

    /// Makes a snapshot of a volume with the owner's hooks around it.
    ///
    /// # Errors
    /// Why that failed, and `make` was not called: [`Refusal::NoRoom`] as from
    /// [`SourceVolumes::check_room`], otherwise [`Refusal::Hook`].
    fn around_snapshot(&self, _volume: &str, make: &mut dyn FnMut()) -> Result<(), Refusal> {
        make();
        Ok(())
    }

    /// Refuses a request that needs a consistency point of a volume, if that would wait for room
    /// longer than the caller should: it would block resources that all mirrors of the server need.
    /// Called before any of them is locked.
    ///
    /// # Errors
    /// [`Refusal::NoRoom`].
    fn check_room(&self, _volume: &str) -> Result<(), Refusal> {
        Ok(())
    }

    /// The access rules of a volume's LUNs, for those that have some; [`Refusal::SourceFailed`]
    /// where they are unknown.
    fn access(&self, _volume: &str) -> Result<Vec<LunAccess>, Refusal> {
        Ok(Vec::new())
    }

    /// The name that this side had as a mirror of the peer in the other direction of a
    /// relationship. The snapshots held under that name are released once the peer has an image.
    fn former(&self, _volume: &str, _peer: &PeerName, _relationship: Relationship) -> Option<PeerName> {
        None
    }
}

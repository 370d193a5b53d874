//! Every decoder of this module, for the fuzzer.

use cairn_base::{Checksum, VolumeId};

use super::codec::{Kind, SUM};
use super::region::RegionHeader;
use super::root::{Base, Checkpoint, Claim, List, Root};

/// Gives bytes to every decoder, and encodes each accepted value again.
///
/// # Panics
/// If the encoding of an accepted value differs from the input.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    let volume = bytes.get(16..32).and_then(|id| id.try_into().ok()).map_or(VolumeId::default(), VolumeId);
    let mut sealed = bytes.to_vec();
    if let Some(cut) = sealed.len().checked_sub(SUM) {
        let sum = Checksum::of(sealed.get(..cut).unwrap_or_default());
        sealed.truncate(cut);
        sealed.extend_from_slice(&sum.0);
    }
    for bytes in [bytes, &sealed] {
        let again = [
            Claim::parse(bytes, volume).ok().map(|it| it.write(volume)),
            Base::parse(bytes, volume).ok().map(|it| it.write(volume)),
            Root::parse(bytes, volume).ok().map(|it| it.write(volume)),
            Checkpoint::parse(bytes, volume).ok().map(|it| it.write(volume)),
            List::parse(bytes, Kind::List, volume).ok().map(|it| it.write(Kind::List, volume)),
            List::parse(bytes, Kind::Progress, volume).ok().map(|it| it.write(Kind::Progress, volume)),
            RegionHeader::parse(bytes, volume).ok().map(|it| it.write(volume)),
        ];
        // A header of a region ends before its frames.
        again.iter().flatten().for_each(|again| assert!(bytes.starts_with(again), "the format is canonical"));
    }
}

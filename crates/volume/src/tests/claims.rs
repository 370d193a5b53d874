//! Claims of a destination about its blocks, and which of them the source believes.

use std::collections::{BTreeMap, BTreeSet};

use cairn_base::{Checksum, Rng, Vbn};

use super::redirects::{destination_of, send};
use super::*;

#[test]
fn set_of_blocks_is_a_set() {
    for seed in 0..100 {
        let mut rng = Rng::new(seed);
        let (mut runs, mut model) = (Vec::new(), BTreeSet::new());
        for _ in 0..rng.below(6) {
            let (first, count) = (rng.below(400), rng.below(200));
            runs.push((Vbn(first), count));
            model.extend(first..first + count);
        }
        let mut set = BlockSet::of(&runs);
        for _ in 0..200 {
            let vbn = rng.below(700);
            match rng.below(3) {
                0 => assert_eq!(set.insert(Vbn(vbn)), model.insert(vbn), "seed {seed}"),
                1 => assert_eq!(set.remove(Vbn(vbn)), model.remove(&vbn), "seed {seed}"),
                _ => assert_eq!(set.has(Vbn(vbn)), model.contains(&vbn), "seed {seed}"),
            }
        }
        let listed: Vec<u64> =
            set.runs().iter().flat_map(|(first, count)| first.0..first.0 + count).collect();
        assert_eq!(listed, model.into_iter().collect::<Vec<_>>(), "seed {seed}");
    }
}

/// The checksums of blocks as they are at the source.
fn at_source(source: &Arc<Volume>, runs: &[Run]) -> BTreeMap<Vbn, Checksum> {
    let vbns = runs.iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn));
    let blocks = source.read_blocks(runs).expect("they can be read");
    vbns.zip(blocks.iter().map(|block| Checksum::of(&block[..]))).collect()
}

#[test]
fn copy_without_a_common_base_gets_what_it_does_not_have_and_no_claim_is_believed_unseen() {
    let (_device, source) = fresh(1024);
    let lun = file(&source, 300);
    write(&source, lun, 0, 200, 1000).expect("there is room");
    let first = source.create_snapshot("first").expect("it is made");
    let (_there, destination) = destination_of(&source);
    send(&source, &destination, &first);
    let shown_sums =
        at_source(&source, &source.changed_blocks(&[], first.id).expect("they are compared").runs);
    let mut gone = first;
    let mut redirected = 0;
    for round in 2..12 {
        source.delete_snapshots(&[gone.id]).expect("it is deleted");
        // Round and round, so that blocks which the destination shows are used again for others.
        for pass in 0..round {
            write(&source, lun, round * 7, 60, 1000 * round + 100 * pass).expect("there is room");
            source.consistency_point().expect("it commits");
        }
        let target = source.create_snapshot(&format!("s{round}")).expect("it is made");
        let all = source.changed_blocks(&[], target.id).expect("they are compared");
        let there = at_source(&source, &all.runs);

        let mut receiver = destination.receive().expect("nothing else is received");
        // The earlier arrival, for a block that the image shows, is newer.
        let newer = there.keys().copied().find(|vbn| destination.state.lock().used.get(*vbn));
        let newer = newer.expect("some of its blocks are in both");
        let spoiled = block(77);
        receiver.write(newer, vec![spoiled.clone()]).expect("there is room");
        let announced = receiver.shown_runs().expect("its maps can be read");
        receiver.claim_shown(&mut |_| true).expect("its nodes can be read");
        let claims = receiver.arrived(Vbn(0), usize::MAX).expect("they are listed");
        let claimed: BTreeSet<u64> = claims.iter().map(|(vbn, _)| vbn.0).collect();
        let runs: BTreeSet<u64> =
            announced.iter().flat_map(|(first, count)| first.0..first.0 + count).collect();
        assert_eq!(claimed, runs, "what is claimed was announced");
        assert_eq!(claimed.len() as u64, receiver.arrived_blocks());
        assert_eq!(claims.iter().find(|(vbn, _)| *vbn == newer), Some(&(newer, Checksum::of(&spoiled[..]))));
        let redirects = destination.state.lock().committed.redirects.clone();
        assert!(
            claims.iter().all(|(vbn, _)| *vbn == newer || redirects.get(*vbn).is_none()),
            "what is not at home is not claimed"
        );
        redirected += redirects.each().count();
        if round == 2 {
            let shown: BTreeSet<u64> = shown_sums.keys().map(|vbn| vbn.0).collect();
            assert_eq!(claimed, shown, "all of the one image");
            let same = claims.iter().filter(|(vbn, _)| *vbn != newer);
            assert!(same.clone().all(|(vbn, sum)| shown_sums.get(vbn) == Some(sum)));
        }
        let mut pieces = Vec::new();
        while pieces.len() < claims.len() {
            let from = pieces.last().map_or(Vbn(0), |(vbn, _): &(Vbn, Checksum)| Vbn(vbn.0 + 1));
            let piece = receiver.arrived(from, 7).expect("they are listed");
            assert!((1..=7).contains(&piece.len()));
            pieces.extend(piece);
        }
        assert_eq!(pieces, claims, "piece by piece they are the same");

        let lies: Vec<(Vbn, Checksum)> = claims
            .iter()
            .enumerate()
            .map(|(at, (vbn, sum))| (*vbn, if at % 5 == 0 { Checksum([9; 16]) } else { *sum }))
            .collect();
        let mut unsent = BlockSet::of(&all.runs);
        let confirmed = source.confirm_claims(&all.snapshots, &mut unsent, &lies).expect("they are compared");
        let right: BTreeSet<Vbn> =
            lies.iter().filter(|(vbn, sum)| there.get(vbn) == Some(sum)).map(|(vbn, _)| *vbn).collect();
        assert_eq!(confirmed, right.len() as u64, "round {round}");
        assert!(confirmed > 20, "{confirmed} of {} are there already", there.len());
        let sent: BTreeSet<Vbn> =
            unsent.runs().iter().flat_map(|(first, count)| (first.0..first.0 + count).map(Vbn)).collect();
        assert!(sent.is_disjoint(&right) && sent.len() + right.len() == there.len(), "round {round}");

        for run in unsent.runs() {
            receiver
                .write(run.0, source.read_blocks(&[run]).expect("they can be read"))
                .expect("there is room");
        }
        receiver.commit(ReceivedImage { target: target.id, snapshots: all.snapshots }).expect("it is whole");
        let image = destination.image(None).expect("it shows something");
        assert_eq!(read_image(&image, lun, 0, 300), read(&source, lun, 0, 300), "round {round}");
        drop(image);
        assert_sound(&destination);
        gone = target;
    }
    assert!(redirected > 0, "some blocks were in the redirect area");
}

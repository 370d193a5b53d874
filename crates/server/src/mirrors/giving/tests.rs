//! Tests of roles that are not given away after all.

use cairn_base::VolumeId;
use cairn_volume::Role;

use super::super::tests::{clock, mirrors};
use super::*;
use crate::volumes::NewVolume;

#[test]
fn volume_of_a_group_that_gave_no_role_away_follows_nobody_though_it_cannot_be_undone_for_another() {
    let folder = tempfile::tempdir().unwrap();
    let (mirrors, _first) = mirrors(folder.path(), clock(), Role::Normal);
    let (devices, log_device, history, beside) = (&[][..], None, None, None);
    let (name, id, role, blocks) = ("vol1", VolumeId([8; 16]), Role::Normal, Some(4096));
    let new = NewVolume { name, id, role, blocks, devices, log_device, history, beside };
    let _second = mirrors.volumes.create(&new).unwrap();
    let giving = |volume: &str| {
        let (volume, address) = (volume.to_owned(), "mirror:1".to_owned());
        let (cron, zone, rpo_ms) = (String::new(), String::new(), None);
        let (every_ms, continuous) = (None, false);
        let asker = Asker { certificate: Fingerprint::default(), host: None };
        let successor =
            Successor { address, volume: volume.clone(), every_ms, cron, continuous, zone, rpo_ms };
        let giving = mirrors.giving(&volume, asker, Relationship(1), &successor);
        let giving = giving.unwrap_or_else(|_| panic!("{volume} can be given away"));
        state::save(&giving.path(), &giving.document).unwrap();
        giving
    };
    let all = vec![giving("vol0"), giving("vol1")];
    let (stays, goes) = (all[0].path(), all[1].path());
    // No file that could be removed.
    std::fs::remove_file(&stays).and_then(|()| std::fs::create_dir(&stays)).unwrap();
    assert!(mirrors.none_given(all).is_err());
    assert!(!goes.exists(), "the next start would take it for a mirror");
}

//! The mirror protocol: its messages alone, and whole sessions against a source and against a
//! destination.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cairn_base::SnapshotId;
use cairn_mirror::{
    Client, Compression, Destination, PeerName, Refusal, Relationship, Source, SourceVolumes, Work, fuzzing,
};
use cairn_stream::Have;
use cairn_volume::Volume;

use crate::scene::{look_at, open, scene, work_on};
use crate::streams::{destination as original, packed, sealed, shown};

/// A message that is written again keeps its meaning; and every frame is written as it was read.
pub(crate) fn messages(data: &[u8]) {
    let mut left = data;
    for (frame, again) in fuzzing::frames(data) {
        left = left.strip_prefix(&again[..]).expect("a frame is written as it was read");
        for (number, meaning) in fuzzing::meanings(&frame).into_iter().enumerate() {
            let Some(written) = meaning else { continue };
            let read = fuzzing::frames(&written);
            let [(frame, _)] = &read[..] else { panic!("a message is one frame") };
            assert!(
                fuzzing::meanings(frame)[number].as_ref() == Some(&written),
                "a message changed its meaning"
            );
        }
    }
}

pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    fuzzing::samples()
}

/// The other side: it sends its bytes, whatever it receives.
struct Says<'a>(&'a [u8]);

impl Read for Says<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Says<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct One(Arc<Volume>);

impl SourceVolumes for One {
    fn volume(&self, name: &str, _peer: &PeerName) -> Result<Arc<Volume>, Refusal> {
        if name == "vol0" { Ok(self.0.clone()) } else { Err(Refusal::NoSuchVolume) }
    }
}

/// A destination that sends any bytes: the source's volume stays sound.
pub(crate) fn source(data: &[u8]) {
    let volume = open(scene().volume.device()).expect("the golden volume opens");
    let cancel = AtomicBool::new(false);
    let mut work = cairn_stream::Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
    let peer = PeerName::new("peer1").expect("a good name");
    let said = if data.first().is_some_and(|first| first % 4 == 0) {
        data[1..].to_vec()
    } else {
        [&fuzzing::hello()[..], data.get(1..).unwrap_or(&[])].concat()
    };
    drop(Source::new().serve_session(&mut Says(&said), &One(volume.clone()), &peer, &mut work));
    let report = volume.check(&mut |_| {}).expect("a sound volume is checked");
    assert!(report.findings.is_empty(), "a destination spoiled its source: {:?}", report.findings);
}

pub(crate) fn source_seeds() -> Vec<Vec<u8>> {
    let volume = open(scene().volume.device()).expect("the golden volume opens");
    let blocks = scene().space_blocks;
    let next = volume.snapshots().last().map_or(0, |snapshot| snapshot.id.0) + 1;
    let all = fuzzing::update("vol0", scene().id, blocks, Vec::new());
    let have: Vec<Have> = Have::of(&volume).into_iter().take(2).collect();
    let some = fuzzing::update("vol0", scene().id, blocks, have);
    let mut seeds = vec![[&[1][..], &all, &fuzzing::ack(SnapshotId(next)), &some].concat()];
    seeds.push([&[1][..], &some, &fuzzing::ack(SnapshotId(next))].concat());
    seeds.push([&[0][..], &fuzzing::hello(), &all].concat());
    seeds.extend(fuzzing::samples().into_iter().map(|sample| [&[1][..], &sample].concat()));
    seeds
}

/// A source that sends any bytes: the destination shows its earlier image, or another whole one.
pub(crate) fn destination(data: &[u8]) {
    let [choice, how, said @ ..] = data else { return };
    let device = original(*choice).device();
    let into = open(device.clone()).expect("the destination opens");
    let before = shown(&into);
    let hello = fuzzing::hello();
    let bytes = match how % 4 {
        0 => said.to_vec(),
        1 => [&hello[..], said].concat(),
        _ => {
            let stream = sealed(said, &before.1);
            // With the snapshot that it announces, so that it can be committed.
            let target = target_of(&stream);
            let answer = fuzzing::transfer(target, "mirror.peer1-0000000000000abc.4");
            [&hello[..], &answer, &stream, &hello].concat()
        }
    };
    let mirror = Destination::new(into.clone(), "vol0", Relationship(0xabc), Compression::None, None);
    let mut says = Says(&bytes);
    let cancel = AtomicBool::new(false);
    let mut taken = false;
    if let Ok(mut client) = Client::hello(&mut says) {
        if how % 8 == 1 {
            drop(client.provision_info("vol0"));
            drop(mirror.refresh(&mut client));
        }
        let mut work = Work { cancel: &cancel, progress: &mut |_| {}, threads: None };
        taken = mirror.update(&mut client, &mut work).is_ok();
    }
    drop((mirror.lag(), mirror.state(), mirror.loss()));
    if shown(&into) == before {
        assert!(look_at(&into), "what was said spoiled the image");
    } else if look_at(&into) && taken && mirror.failover().is_ok() {
        work_on(&into);
    }
    drop((mirror, into));
    drop(open(device).expect("it opens again"));
}

fn target_of(stream: &[u8]) -> SnapshotId {
    let mut input = stream;
    cairn_stream::Consumer::open(&mut input).map_or(SnapshotId(1), |consumer| consumer.header().target)
}

pub(crate) fn destination_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> =
        fuzzing::samples().into_iter().map(|sample| [&[1, 1][..], &sample].concat()).collect();
    seeds.push([&[0, 2][..], &scene().baseline].concat());
    seeds.push([&[1, 2][..], &packed(&scene().update)].concat());
    let last = seeds.iter().flat_map(|seed| seed[2..].to_vec()).take(600).collect::<Vec<u8>>();
    seeds.push([&[2, 0][..], &fuzzing::hello(), &last].concat());
    seeds
}

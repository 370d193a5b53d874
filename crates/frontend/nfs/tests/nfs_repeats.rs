//! Clients that repeat requests, while the power of the server fails at any operation.
//!
//! A client that got no answer sends the request again, with the same number, on the same or a new
//! connection. As long as the server runs, the repeated request is answered as the first one was,
//! and done once. After a cut, everything that was answered is present. A request that was not
//! answered is done as a whole or not at all.

#[allow(dead_code, reason = "this test program uses a part of it")]
mod harness;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_base::{ManualClock, Rng, Timestamp};
use cairn_device::FaultDevice;
use cairn_proto_nfs::*;
use cairn_volume::{FormatOptions, Role, Volume};
use harness::client::{Client, at, mode};
use harness::{BLOCKS, Running, Scene, VOLUME};

/// Names of the directory, each with the first byte of its file.
type Names = BTreeMap<u8, u8>;

/// A change that must not be done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Create(u8),
    Remove(u8),
    Rename(u8, u8),
    Write(u8, u8),
}

fn name(number: u8) -> [u8; 2] {
    [b'n', b'a' + number]
}

impl Change {
    fn random(rng: &mut Rng) -> Self {
        let [one, other] = [rng.below(6) as u8, rng.below(6) as u8];
        match rng.below(4) {
            0 => Change::Create(one),
            1 => Change::Remove(one),
            2 => Change::Rename(one, other),
            _ => Change::Write(one, 1 + rng.below(250) as u8),
        }
    }

    /// The names after it, or why it fails.
    fn apply(self, names: &Names) -> Result<Names, Status> {
        let mut after = names.clone();
        match self {
            Change::Create(one) if names.contains_key(&one) => return Err(Status::Exists),
            Change::Create(one) => _ = after.insert(one, 0),
            Change::Remove(one) => _ = after.remove(&one).ok_or(Status::NoEntry)?,
            Change::Rename(one, other) => {
                let file = after.remove(&one).ok_or(Status::NoEntry)?;
                after.insert(other, file);
            }
            Change::Write(one, byte) => *after.get_mut(&one).ok_or(Status::NoEntry)? = byte,
        }
        Ok(after)
    }

    /// Sends it. `None` for a write to a file that is not there.
    fn send(self, client: &mut Client, root: &Handle, files: &BTreeMap<u8, Handle>) -> Option<(u32, u32)> {
        let (one, other, data);
        let call = match self {
            Change::Create(number) => {
                one = name(number);
                Call::Create { place: at(root, &one), how: CreateHow::Guarded(mode(0o644)) }
            }
            Change::Remove(number) => {
                one = name(number);
                Call::Remove { place: at(root, &one) }
            }
            Change::Rename(from, to) => {
                (one, other) = (name(from), name(to));
                Call::Rename { from: at(root, &one), to: at(root, &other) }
            }
            Change::Write(number, byte) => {
                data = [byte; 100];
                let file = *files.get(&number)?;
                Call::Write { file, offset: 0, count: 100, stable: Stable::FileSync, data: &data }
            }
        };
        Some((client.send(&call), call.procedure()))
    }
}

fn status_of(reply: &Reply) -> Status {
    let status = match reply {
        Reply::Create(outcome) => outcome.as_ref().err().map(|failed| failed.status),
        Reply::Remove(outcome) => outcome.as_ref().err().map(|failed| failed.status),
        Reply::Rename(outcome) => outcome.as_ref().err().map(|failed| failed.status),
        Reply::Write(outcome) => outcome.as_ref().err().map(|failed| failed.status),
        other => panic!("{other:?}"),
    };
    status.unwrap_or(Status::Ok)
}

/// The directory as it is.
fn seen(client: &mut Client, root: &Handle) -> (Names, BTreeMap<u8, Handle>) {
    let (mut names, mut files) = (Names::new(), BTreeMap::new());
    for listed in client.list(root).unwrap() {
        let number = listed.as_bytes()[1] - b'a';
        let file = client.lookup(root, listed.as_bytes()).unwrap().file;
        let data = client.read_all(&file).unwrap();
        assert!(data.iter().all(|byte| *byte == data[0]), "a write is there whole");
        names.insert(number, data.first().copied().unwrap_or(0));
        files.insert(number, file);
    }
    (names, files)
}

/// One life of a server, up to a cut. Returns the possible states after it, and how many repeated
/// requests were answered.
fn live(running: &Running, device: &FaultDevice, names: &Names, rng: &mut Rng) -> (Vec<Names>, u32) {
    let mut client = running.client();
    let root = client.mount("/v").unwrap();
    let (there, mut files) = seen(&mut client, &root);
    assert_eq!(there, *names);
    let (mut names, mut repeated) = (names.clone(), 0);
    device.cut_after(rng.below(120));
    for _ in 0..80 {
        let change = Change::random(rng);
        let wanted = change.apply(&names);
        let Some((xid, procedure)) = change.send(&mut client, &root, &files) else { continue };
        let after = wanted.clone().unwrap_or_else(|_| names.clone());
        let first = client.reply(xid, procedure);
        let status = status_of(&first);
        if device.is_off() {
            // A success is durable. An error may be of a change that was done.
            let is_sure = status == Status::Ok;
            return (if is_sure { vec![after] } else { vec![names, after] }, repeated);
        }
        assert_eq!(status, wanted.err().unwrap_or(Status::Ok), "{change:?}");
        names = after;
        if rng.below(2) == 0 {
            // As if the answer was lost; on the same connection, or on another one.
            if rng.below(2) == 0 {
                client = running.client();
            }
            client.xid = xid;
            change.send(&mut client, &root, &files).unwrap();
            assert_eq!(client.reply(xid, procedure), first, "{change:?}");
            client.xid = xid + 1;
            repeated += 1;
        }
        if let (Change::Create(number), Reply::Create(Ok(made))) = (change, &first) {
            files.insert(number, made.file.unwrap());
        }
        if status == Status::Ok {
            match change {
                Change::Remove(number) => _ = files.remove(&number),
                Change::Rename(from, to) => {
                    let file = files.remove(&from).unwrap();
                    files.insert(to, file);
                }
                Change::Create(_) | Change::Write(..) => {}
            }
        }
    }
    (vec![names], repeated)
}

#[test]
fn repeated_requests_are_done_once_and_answered_ones_survive_a_cut() {
    let (mut repeats, mut unanswered) = (0, 0);
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let mut device = Arc::new(FaultDevice::new(Volume::device_bytes(BLOCKS, Role::Normal)));
        let clock = Arc::new(ManualClock::new(Timestamp(1_000_000_000)));
        let options = FormatOptions { id: VOLUME, blocks: BLOCKS, role: Role::Normal };
        Volume::format(&*device, &options, &*clock).unwrap();
        let mut states = vec![Names::new()];
        for _ in 0..4 {
            let scene = Scene::open(device.clone(), clock.clone());
            let running = scene.serve(vec![scene.whole()]);
            let mut client = running.client();
            let root = client.mount("/v").unwrap();
            let (names, _) = seen(&mut client, &root);
            assert!(states.contains(&names), "seed {seed}: {names:?} is none of {states:?}");
            let (next, repeated) = live(&running, &device, &names, &mut rng);
            repeats += repeated;
            unanswered += usize::from(next.len() > 1);
            states = next;
            drop((client, running, scene));
            device = Arc::new(device.power_cycle(&mut rng));
        }
    }
    assert!(repeats > 100 && unanswered > 10, "{repeats} repeats, {unanswered} changes without an answer");
}

//! iSCSI next to tgt on a file of the same file system, as it is installed and tuned, and next to
//! Cairn's own NBD; the same client for all.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::Plan;
use crate::cairn::Cairn;
use crate::fio::{Load, Seen};
use crate::process::{Server, run, settle};
use crate::report::{Report, Target, median};
use crate::wires::{self, Place};

/// A write-anywhere volume needs room to write anywhere: blocks of volume for each block of LUN.
const VOLUME_FACTOR: u64 = 3;
/// As in the table of `served`.
const MEMORY_MIB: u64 = 1024;
/// As its package installs it: segments of 8 KiB and an R2T for every write.
const TGT: &str = "tgt";
/// With every offer that it can be configured for: segments of 256 KiB and unsolicited data, as
/// Cairn has them.
const TGT_TUNED: &str = "tgt, tuned";
const TUNING: [(&str, &str); 2] = [("MaxRecvDataSegmentLength", "262144"), ("InitialR2T", "No")];
const NBD: &str = "own NBD";
/// The most that one connection of this machine carries.
const BARE: &str = "a TCP stream, nothing behind it";
/// Bytes of a large request.
const LARGE: usize = 128 << 10;
const TARGET: &str = "iqn.2026-11.io.cairn:bench";

/// tgt with one LUN; `tgtadm` finds it by the number of its control socket.
fn tgt(folder: &Path, bytes: u64, settings: &[(&str, &str)]) -> Result<(Server, Place)> {
    std::fs::create_dir_all(folder)?;
    let data = folder.join("tgt.data");
    run(Command::new("fallocate").arg("-l").arg(bytes.to_string()).arg(&data))?;
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let portal = format!("127.0.0.1:{port}");
    // Numbers of 15 bits are all it takes.
    let control = (port & 0x7fff).to_string();
    let mut command = Command::new("tgtd");
    command.args(["-f", "-C", &control, "--iscsi", &format!("portal={portal}")]);
    let server = Server::start_until(command, &folder.join("tgt"), || TcpStream::connect(&portal).is_ok())?;
    let admin = |arguments: &[&str]| {
        run(Command::new("tgtadm").args(["-C", &control, "--lld", "iscsi"]).args(arguments)).map(drop)
    };
    let target = ["--mode", "target", "--tid", "1"];
    admin(&[&["--op", "new"], &target[..], &["-T", TARGET]].concat())?;
    let data = data.to_string_lossy();
    admin(&["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", &data])?;
    admin(&[&["--op", "bind"], &target[..], &["-I", "ALL"]].concat())?;
    for (key, value) in settings {
        admin(&[&["--op", "update"], &target[..], &["-n", key, "-v", value]].concat())?;
    }
    Ok((server, Place::Iscsi(portal, TARGET.to_owned(), 1)))
}

/// The contenders, in the order of [`Contenders::all`].
struct Contenders {
    cairn: Cairn,
    iscsi: Place,
    nbd: Place,
    tgt: (Server, Place),
    tuned: (Server, Place),
}

type Turns = Vec<(&'static str, Vec<Seen>)>;

impl Contenders {
    fn start(plan: &Plan) -> Result<Self> {
        let bytes = plan.export_bytes();
        let folder = plan.folder.join("iscsi");
        std::fs::create_dir_all(&folder)?;
        let cairn = Cairn::start(plan, "iscsi-cairn", "off", MEMORY_MIB)?;
        cairn.make_lun(bytes * VOLUME_FACTOR, bytes)?;
        let status = cairn.json(&["status"])?;
        let address = |of: &str| {
            let listed = status[of].as_array().into_iter().flatten().filter_map(serde_json::Value::as_str);
            let tcp = listed.map(|address| address.trim_start_matches("tcp:"));
            tcp.filter(|address| address.starts_with("127.")).map(str::to_owned).next().context("an address")
        };
        let iscsi = Place::Iscsi(address("iscsi")?, "iqn.2026-11.io.cairn:vol0.db".to_owned(), 0);
        let nbd = Place::Nbd(address("nbd")?, "vol0/db".to_owned());
        let (plain, tuned) =
            (tgt(&folder.join("plain"), bytes, &[])?, tgt(&folder.join("tuned"), bytes, &TUNING)?);
        let contenders = Self { iscsi, nbd, tgt: plain, tuned, cairn };
        for (_, place, server) in contenders.all()?.into_iter().filter(|(name, ..)| *name != NBD) {
            wires::run(place, &Load::fill(bytes), server)?;
        }
        settle()?;
        Ok(contenders)
    }

    fn all(&self) -> Result<[(&'static str, &Place, &Server); 4]> {
        let cairn = self.cairn.server()?;
        let (tgt, tuned) = ((&self.tgt.1, &self.tgt.0), (&self.tuned.1, &self.tuned.0));
        Ok([
            ("cairn", &self.iscsi, cairn),
            (TGT, tgt.0, tgt.1),
            (NBD, &self.nbd, cairn),
            (TGT_TUNED, tuned.0, tuned.1),
        ])
    }

    /// Cairn answers writes over iSCSI before they are durable, as tgt does; or after, which is the
    /// default.
    fn set_write_cache(&self, to: &str) -> Result<()> {
        self.cairn.json(&["export", "set", "vol0/db", "--write-cache", to]).map(drop)
    }

    fn take_turns(&self, plan: &Plan, load: &Load) -> Result<Turns> {
        let all = self.all()?;
        let mut turns: Turns = all.iter().map(|(name, ..)| (*name, Vec::new())).collect();
        for _ in 0..plan.rounds() {
            for (index, (name, place, server)) in all.iter().enumerate() {
                if load.pattern.ends_with("read") && load.bytes <= plan.cached_bytes() {
                    wires::run(place, &Load::warm(load.bytes), server)?;
                }
                let seen = wires::run(place, load, server)?;
                eprintln!(
                    "   {} {} B depth {}: {name}: {:.0} IOPS, {:.0} MB/s, {:.2} s of CPU per 100,000",
                    load.pattern,
                    load.request,
                    load.depth,
                    seen.iops,
                    seen.rate / 1e6,
                    seen.cpu_per_100k,
                );
                turns[index].1.push(seen);
                settle()?;
            }
        }
        Ok(turns)
    }
}

fn rows(
    report: &mut Report,
    turns: &Turns,
    work: &str,
    unit: &'static str,
    figure: fn(&Seen) -> f64,
    asked: [Target; 2],
) {
    let of = |index: usize| median(turns[index].1.iter().map(figure).collect());
    for (peer, target) in [1, 2, 3].into_iter().zip(asked.into_iter().chain([Target::None])) {
        report.against(work, unit, Some(of(0)), (turns[peer].0, of(peer)), target);
    }
}

/// The figures that an initiator sees.
pub(crate) fn iscsi(plan: &Plan, report: &mut Report) -> Result<()> {
    use Target::{AtLeast, AtMost};
    let contenders = Contenders::start(plan)?;
    let (bytes, cached, turn) = (plan.export_bytes(), plan.cached_bytes(), plan.turn());
    let turns_of = |load: &Load| contenders.take_turns(plan, load);

    for (load, work) in [
        (Load::small("randwrite", 32, bytes, turn), "4 KiB random write, depth 32, as delivered"),
        (Load::large("write", bytes, turn), "128 KiB sequential write, depth 32, as delivered"),
    ]
    .into_iter()
    .filter(|(_, work)| plan.wants(work))
    {
        let seen = turns_of(&load)?;
        rows(report, &seen, work, "MB/s", |seen| seen.rate / 1e6, [Target::None; 2]);
    }
    contenders.set_write_cache("on")?;

    for (pattern, touched, work) in [
        ("randread", cached, "4 KiB random read, depth 32, in cache"),
        ("randwrite", bytes, "4 KiB random write, depth 32, no flush"),
    ]
    .into_iter()
    .filter(|(.., work)| plan.wants(work))
    {
        let seen = turns_of(&Load::small(pattern, 32, touched, turn))?;
        rows(report, &seen, work, "IOPS", |seen| seen.iops, [AtLeast(2.5), AtLeast(0.8)]);
        let work = format!("server CPU: {work}");
        rows(report, &seen, &work, "s per 100,000", |seen| seen.cpu_per_100k, [Target::None; 2]);
    }

    let work = "4 KiB random write, depth 32, a flush each 32";
    if plan.wants(work) {
        let seen = turns_of(&Load { flush_each: 32, ..Load::small("randwrite", 32, bytes, turn) })?;
        rows(report, &seen, work, "IOPS", |seen| seen.iops, [AtLeast(3.0), AtLeast(0.8)]);
    }

    for (pattern, work) in
        [("write", "128 KiB sequential write, depth 32"), ("read", "128 KiB sequential read, depth 32")]
            .into_iter()
            .filter(|(_, work)| plan.wants(work))
    {
        let touched = if pattern == "read" { cached } else { bytes };
        let seen = turns_of(&Load::large(pattern, touched, turn))?;
        rows(report, &seen, work, "MB/s", |seen| seen.rate / 1e6, [AtLeast(2.0), AtLeast(0.8)]);
        if pattern == "read" {
            let bare = (0..plan.rounds()).map(|_| wires::bare_stream(touched as usize, LARGE, turn));
            let bare = median(bare.collect::<Result<Vec<f64>>>()?) / 1e6;
            let own = median(seen[0].1.iter().map(|seen| seen.rate / 1e6).collect());
            report.against(work, "MB/s", Some(own), (BARE, bare), Target::None);
        }
        let with_server = format!("server CPU: {work}");
        rows(report, &seen, &with_server, "s per 100,000", |seen| seen.cpu_per_100k, [Target::None; 2]);
        if pattern == "write" {
            let durable = format!("{work}, until a flush has returned");
            rows(report, &seen, &durable, "MB/s", |seen| seen.flushed_rate / 1e6, [Target::None; 2]);
        }
    }

    for (pattern, work) in [("randread", "read"), ("randwrite", "write")]
        .into_iter()
        .filter(|(_, work)| plan.wants(&format!("4 KiB {work}, depth 1")))
    {
        let seen = turns_of(&Load::small(pattern, 1, cached, turn))?;
        let asked = [AtMost(1.0), Target::None];
        rows(report, &seen, &format!("4 KiB {work}, depth 1, p50"), "us", |seen| seen.p50_us, asked);
        rows(report, &seen, &format!("4 KiB {work}, depth 1, p99"), "us", |seen| seen.p99_us, asked);
    }
    report.note(
        "As delivered, Cairn's writes over iSCSI are durable when they are answered, and those of tgt and of Cairn over NBD wait in memory for a flush. For all other rows Cairn was told to \
         answer them as tgt does (`cairn export set vol0/db --write-cache on`)."
            .to_owned(),
    );
    report.note(format!(
        "One client for all, over TCP on one machine: a thread, a connection, no digests, 64 KiB of a write unasked. tgt with its file backend: as its package \
         installs it (segments of 8 KiB, an R2T for every write), and tuned (segments of 256 KiB and unsolicited data, as Cairn has them). Data in cache: {} MiB (Cairn was given {MEMORY_MIB} MiB of memory). {} rounds of {} s.",
        cached >> 20,
        plan.rounds(),
        turn.as_secs(),
    ));
    Ok(())
}

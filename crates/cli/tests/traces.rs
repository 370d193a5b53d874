//! Traces from the command line: made, imported, analysed, replayed and planned from, and the
//! errors for bad ones; and recordings of clients' requests to a server.

mod running;

use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Output, Stdio};

use running::{Running, cairn, wait_until};
use serde_json::Value;

fn run(folder: &Path, arguments: &[&str]) -> Output {
    cairn().current_dir(folder).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn good(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&good(folder, &[arguments, &["--json"]].concat())).unwrap()
}

/// Ends with `code`, and reports the fault and the next step.
#[track_caller]
fn refused(folder: &Path, code: i32, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.starts_with("error: ") && said.contains("\n  next: "), "{said}");
    said
}

const TEXT: &str = "t_ns,dev,op,offset_bytes,length_bytes\n0,a,W,0,8192\n1000000000,a,W,4096,4096\n\
                    bad line\n2000000000,b,R,0,4096\n70000000000,a,D,0,4096\n70000000001,a,F,0,0\n";

#[test]
fn imported_trace_has_the_figures_of_the_text_and_bad_lines_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.csv"), TEXT).unwrap();
    let imported = json(dir.path(), &["trace", "import", "t.csv", "--to", "t.ctr"]);
    assert_eq!((imported["requests"].as_u64(), imported["problems"]["count"].as_u64()), (Some(5), Some(1)));
    assert_eq!(imported["problems"]["shown"][0]["line"], 4);
    let (mut text, mut ours) =
        (json(dir.path(), &["trace", "analyse", "t.csv"]), json(dir.path(), &["trace", "analyse", "t.ctr"]));
    assert_eq!((&text["format"], &ours["format"]), (&"csv".into(), &"cairn".into()));
    assert_eq!(ours["problems"]["count"], 0);
    for report in [&mut text, &mut ours] {
        for own in ["format", "problems"] {
            report.as_object_mut().unwrap().remove(own);
        }
    }
    assert_eq!(text, ours);
    assert_eq!((&ours["w_block_writes"], &ours["f_unique_blocks_written"]), (&3.into(), &2.into()));
    assert_eq!(ours["mirror_pct"]["1min"]["blocks_transferred"], 2);
    let people = good(dir.path(), &["trace", "analyse", "t.csv", "--plots", "figures"]);
    assert!(people.contains("line 4: it has too few fields: bad line"), "{people}");
    assert!(dir.path().join("figures/fast2007-figure8-retained.svg").exists());
    refused(dir.path(), 21, &["trace", "import", "t.csv", "--to", "t.ctr"]);
    good(dir.path(), &["trace", "import", "t.csv", "--to", "t.ctr", "--overwrite", "--plain"]);
}

#[test]
fn bad_traces_get_an_error_that_helps() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("prose"), "what is this\n").unwrap();
    std::fs::write(dir.path().join("t.csv"), TEXT).unwrap();
    refused(dir.path(), 10, &["trace", "analyse", "nothing"]);
    assert!(refused(dir.path(), 2, &["trace", "analyse", "prose"]).contains("--format"));
    refused(dir.path(), 2, &["trace", "analyse", "t.csv", "--format", "msr"]);
    refused(dir.path(), 2, &["trace", "analyse", "t.csv", "--block", "3000"]);
    refused(dir.path(), 2, &["plan", "t.csv", "--link", "0"]);
    // There is no server either, but that is not the fault.
    assert!(refused(dir.path(), 1, &["plan", "t.cvs", "--link", "50M"]).contains("no trace t.cvs"));
    refused(dir.path(), 2, &["trace", "replay", "-"]);
    assert!(!dir.path().join("no.ctr").exists());
    refused(dir.path(), 2, &["trace", "import", "prose", "--to", "no.ctr"]);
    assert!(!dir.path().join("no.ctr").exists(), "a failed import leaves no file");
}

/// `--overwrite` is for a regular file: another target, such as `/dev/null`, is written to and not
/// replaced.
#[test]
fn trace_that_goes_to_no_file_takes_the_place_of_nothing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.csv"), TEXT).unwrap();
    let pipe = dir.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut held = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let is_pipe = || std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo();
    for more in [&[][..], &["--overwrite"]] {
        let import = [&["trace", "import", "t.csv", "--to", "pipe", "--plain"][..], more].concat();
        let imported = run(dir.path(), &import);
        assert!(is_pipe(), "{more:?}: it is a pipe still");
        assert!(imported.status.success(), "{more:?}: {imported:?}");
        let mut head = [0; 4096];
        let read = held.read(&mut head).unwrap();
        std::fs::write(dir.path().join("read.ctr"), &head[..read]).unwrap();
        let report = json(dir.path(), &["trace", "analyse", "read.ctr"]);
        assert_eq!((&report["requests"], &report["problems"]["count"]), (&5.into(), &0.into()));
    }
}

/// If there is no room for a new trace, the error does not blame the input trace, and an existing
/// file keeps its name.
#[test]
fn full_disk_under_a_trace_that_is_made_is_told_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let generate = ["trace", "generate", "iometer", "--size", "1G", "--rate", "5000", "--time", "2m"];
    let to_full = Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let output = cairn().args(generate).stdout(to_full).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(24), "{said}");
    assert!(said.contains("free space"), "{said}");
    let Some(_small) = running::SmallDisk::mount(&disk, 1 << 20) else { return };
    good(
        dir.path(),
        &["trace", "generate", "iometer", "--rate", "5000", "--time", "2m", "--to", "large.ctr"],
    );
    std::fs::write(disk.join("old.ctr"), "old").unwrap();
    for command in [&generate[..], &["trace", "import", "large.ctr"]] {
        for (to, is_there) in [("disk/old.ctr", true), ("disk/new.ctr", false)] {
            let all = [command, &["--to", to, "--overwrite"]].concat();
            let said = refused(dir.path(), 24, &all);
            assert!(said.contains(to) && said.contains("free space"), "{said}");
            assert!(!said.contains("large.ctr: "), "{said}");
            assert_eq!(dir.path().join(to).exists(), is_there, "{all:?}");
        }
    }
    assert_eq!(std::fs::read(disk.join("old.ctr")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 1, "nothing is left");
}

#[test]
fn full_disk_under_a_replay_is_told_as_that() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let generate = ["trace", "generate", "iometer", "--size", "64M", "--rate", "500", "--time", "10s"];
    good(dir.path(), &[&generate[..], &["--to", "made.ctr"]].concat());
    // Either the history cannot begin, or it cannot continue.
    for bytes in [1 << 20, 8 << 20] {
        let Some(_small) = running::SmallDisk::mount(&disk, bytes) else { return };
        let replay = ["trace", "replay", "made.ctr", "--placement", "checkpointing", "--on", "disk"];
        let output = run(dir.path(), &replay);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(24), "{said}");
        assert!(said.contains("error: disk: ") && said.contains("free space"), "{said}");
    }
    let gone = refused(dir.path(), 10, &["trace", "replay", "made.ctr", "--on", "nowhere"]);
    assert!(gone.contains("nowhere"), "{gone}");
}

/// The figures exclude the records that were not replayed.
#[test]
fn replay_of_a_trace_of_which_a_part_is_damaged_says_what_was_left_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.csv"), TEXT).unwrap();
    let replay = ["trace", "replay", "t.csv", "--placement", "logging", "--granularity", "1m"];
    let people = good(dir.path(), &replay);
    assert!(people.contains("line 4: it has too few fields: bad line"), "{people}");
    assert_eq!(json(dir.path(), &replay)[0]["problems"]["count"], 1);
    good(dir.path(), &["trace", "import", "t.csv", "--to", "t.ctr"]);
    assert_eq!(json(dir.path(), &["trace", "replay", "t.ctr"])[0]["problems"]["count"], 0);
    let whole = std::fs::read(dir.path().join("t.ctr")).unwrap();
    std::fs::write(dir.path().join("cut.ctr"), &whole[..whole.len() - 4]).unwrap();
    let people = good(dir.path(), &["trace", "replay", "cut.ctr"]);
    assert!(people.contains("the trace ends without its end"), "{people}");
}

#[test]
fn replay_takes_as_much_memory_as_it_is_told_it_may() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("t.csv"), "0,a,R,0,1073741824\n1,a,R,1073741824,1073741824\n").unwrap();
    let replay = ["trace", "replay", "t.csv", "--placement", "logging", "--granularity", "1m", "--memory"];
    let said = refused(dir.path(), 24, &[&replay[..], &["16M"]].concat());
    assert!(said.contains("give more with --memory"), "{said}");
    good(dir.path(), &[&replay[..], &["1G"]].concat());
}

#[test]
fn workload_of_a_paper_is_made_replayed_and_planned_from() {
    let dir = tempfile::tempdir().unwrap();
    let spc = ["trace", "generate", "spc1", "--bsu", "2", "--size", "64M", "--time", "20s", "--to", "s.ctr"];
    good(dir.path(), &spc);
    let rows = json(
        dir.path(),
        &[
            "trace",
            "replay",
            "s.ctr",
            "--placement",
            "logging,split-down-stream",
            "--granularity",
            "every-write,10s",
        ],
    );
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let of = |name: &str| row[name].as_f64().unwrap();
        let (found, model) = (of("io_per_block_write"), of("model_io_per_block_write"));
        assert!(found > 0.5 && found < model + 0.1, "{row}");
    }
    let plan = json(dir.path(), &["plan", "s.ctr", "--link", "50M"]);
    assert_eq!(plan["recommended"]["mirror_interval_s"], 1.0);
    assert_eq!(plan["lags"].as_array().unwrap().len(), 9);
    assert!(good(dir.path(), &["plan", "s.ctr", "--link", "50M"]).contains("Recommended: --every 1s"));
    // A pipe from one to the other.
    let mut made = cairn();
    made.args(["trace", "generate", "iometer", "--size", "16M", "--time", "10s"]).stdout(Stdio::piped());
    let mut made = made.spawn().unwrap();
    let output = cairn()
        .args(["trace", "analyse", "-", "--json"])
        .stdin(made.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(made.wait().unwrap().success() && output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["writes"].as_u64().unwrap() > 4000 && report["reads"] == 0);
}

#[test]
fn what_clients_ask_of_an_export_is_recorded_under_their_sessions_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Running::start(dir.path(), "d");
    let image = dir.path().join("disk.img").display().to_string();
    server.good(&["device", "adopt", "disk0", "--origin", &image, "--size", "16M"]);
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "16M"]);
    let (mut disk, mut lun) = (server.disk("disk0"), server.disk("v/db"));
    disk.write(0, &[1; 4096]).unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let begun = server.json(&["trace", "record", "disk0", "--to", &file("disk.ctr")]);
    assert_eq!((&begun["requests"], &begun["end"]), (&0.into(), &Value::Null));
    server.good(&["trace", "record", "v/db", "--to", &file("lun.ctr"), "--max", "1M", "--plain"]);
    for block in 0..100u64 {
        disk.write(block % 10 * 4096, &[block as u8; 4096]).unwrap();
        lun.write(block * 4096, &[2; 4096]).unwrap();
    }
    disk.read(0, 8192).unwrap();
    disk.flush().unwrap();
    let listed = server.json(&["trace", "record"]);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(server.good(&["trace", "record"]).contains("running"));
    // One at a time, and never over an existing file; a missing export is not recorded.
    server.bad(11, "busy", &["trace", "record", "disk0", "--to", &file("other.ctr")]);
    server.bad(10, "not-found", &["trace", "record", "nothing", "--to", &file("other.ctr")]);
    let stopped = server.json(&["trace", "record", "disk0", "--stop"]);
    assert_eq!((&stopped["requests"], &stopped["whole"]), (&102.into(), &true.into()));
    assert_eq!(stopped["bytes"].as_u64(), Some(std::fs::metadata(file("disk.ctr")).unwrap().len()));
    server.bad(10, "not-found", &["trace", "record", "disk0", "--stop"]);
    server.bad(21, "taken", &["trace", "record", "disk0", "--to", &file("disk.ctr")]);
    disk.write(0, &[1; 4096]).unwrap();
    // A plan from clients' writes also works without a recording: for a LUN, its volume, a device.
    for subject in ["v", "v/db"] {
        let live = server.json(&["plan", subject, "--link", "50M"]);
        assert_eq!((&live["subject"], &live["written_bytes"]), (&subject.into(), &(100 * 4096).into()));
        assert!((1..50).contains(&live["sampled_blocks"].as_u64().unwrap()), "{live}");
        assert_eq!(live["plan"]["recommended"]["mirror_interval_s"], 1.0);
        assert_eq!(live["plan"]["lags"].as_array().unwrap().len(), 9);
    }
    assert!(server.good(&["plan", "v", "--link", "50M"]).contains("Recommended: --every 1s"));
    for nothing in ["nothing", "no such trace.csv", "v/no such lun?", "spür#1"] {
        server.bad(10, "not-found", &["plan", nothing, "--link", "50M"]);
        server.bad(10, "not-found", &["trace", "record", nothing, "--stop"]);
    }
    server.good(&["volume", "create", "quiet", "--size", "64M"]);
    server.bad(10, "not-found", &["plan", "quiet", "--link", "50M"]);
    server.bad(2, "usage", &["plan", "v", "--link", "50M", "--cache", "1G"]);
    // The other one ends, whole, with the server.
    server.terminate();
    let report = json(dir.path(), &["trace", "analyse", &file("disk.ctr")]);
    assert_eq!((&report["format"], &report["problems"]["count"]), (&"cairn".into(), &0.into()));
    assert_eq!((&report["w_block_writes"], &report["f_unique_blocks_written"]), (&100.into(), &10.into()));
    assert_eq!(report["reads"], 1);
    let report = json(dir.path(), &["trace", "analyse", &file("lun.ctr")]);
    assert_eq!((&report["w_block_writes"], &report["problems"]["count"]), (&100.into(), &0.into()));
    let rows =
        ["trace", "replay", &file("disk.ctr"), "--placement", "logging", "--granularity", "every-write"];
    assert_eq!(json(dir.path(), &rows).as_array().unwrap().len(), 1);
}

#[test]
fn plan_of_what_was_deleted_is_none_of_another_one_that_gets_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), "d");
    let write = || {
        let mut disk = server.disk("v/db");
        for block in 0..1024 {
            disk.write(block * 4096, &[1; 4096]).unwrap();
        }
    };
    let is_done = |arguments: &[&str]| server.run(arguments).status.success();
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    write();
    server.good(&["plan", "v/db", "--link", "50M"]);
    // Once the session of its client is over.
    wait_until("the LUN is deleted", || is_done(&["lun", "delete", "v/db", "--yes"]));
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    server.bad(10, "not-found", &["plan", "v/db", "--link", "50M"]);
    write();
    server.good(&["plan", "v", "--link", "50M"]);
    wait_until("the volume is deleted", || is_done(&["volume", "delete", "v", "--yes"]));
    server.good(&["volume", "create", "v", "--size", "64M"]);
    server.good(&["lun", "create", "v/db", "--size", "8M"]);
    for subject in ["v", "v/db"] {
        server.bad(10, "not-found", &["plan", subject, "--link", "50M"]);
    }
}

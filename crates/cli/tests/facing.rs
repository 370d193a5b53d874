//! The first mirror of the README: the destination has no configured mirror address, and a failback
//! needs no restart of it.

use std::path::Path;
use std::process::{Command, Stdio};

/// In a network of its own, where the standard ports are free: this machine has the address
/// 10.77.0.1 there.
const STORY: &str = r#"
set -e
ip link set lo up
ip addr add 10.77.0.1/32 dev lo
cd "$DIR"
at() { data=$1; shift; "$CAIRN" "$@" --data "$data"; }
serve() {
    data=$1; shift
    "$CAIRN" serve --data "$data" --nbd off --iscsi off "$@" > "$data.log" 2>&1 &
    echo $! > "$data.pid"
    for _ in $(seq 1500); do at "$data" status > /dev/null 2>&1 && return; sleep 0.02; done
    echo "$data does not start"; cat "$data.log"; exit 1
}
trap 'kill -9 $(cat *.pid) 2> /dev/null || true' EXIT
serve source --mirror 10.77.0.1:7500 --advertise 10.77.0.1:7500
serve destination
at source volume create vol0 --size 64M
at source lun create vol0/db --size 1M
at destination mirror create vol0 "$(at source peer invite --json | grep -o 'cairn1-[^"]*' | head -1)" --every 15m
at destination status | grep -q '10.77.0.1:7420'
kill -9 $(cat source.pid)
at destination mirror failover vol0 --yes
kill -9 $(cat destination.pid)
serve destination
at destination lun create vol0/more --size 1M
serve source --mirror 10.77.0.1:7500 --advertise 10.77.0.1:7500
for _ in $(seq 1500); do at source status --json | grep -q 'was failed over to 10.77.0.1:7420' && break; sleep 0.02; done
at destination mirror allow-reverse vol0
at source mirror failback vol0 --discard-divergent --yes
at source lun list vol0 | grep -q more
until at destination mirror update vol0; do sleep 0.05; done
at source mirror status vol0 | grep -q 'source'
# Whoever says where, is taken at his word.
kill -9 $(cat destination.pid)
serve destination --mirror 127.0.0.1:7420
! at destination status | grep -q '10.77.0.1:7420'
echo the end
"#;

#[test]
fn first_mirror_fails_back_though_its_server_was_told_nothing() {
    let isolated = Command::new("unshare").args(["-rn", "ip", "link"]).stdout(Stdio::null()).status();
    if !isolated.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no network of its own can be had here (unshare -rn, ip)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut shell = Command::new("unshare");
    shell.args(["-rn", "bash", "-c", STORY]).env("DIR", dir.path());
    shell.env("CAIRN", Path::new(env!("CARGO_BIN_EXE_cairn")));
    for variable in ["CAIRN_DATA", "CAIRN_SERVER", "CAIRN_TOKEN_FILE", "CAIRN_LOG", "NOTIFY_SOCKET"] {
        shell.env_remove(variable);
    }
    let told = shell.stdin(Stdio::null()).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success() && out.ends_with("the end\n"), "{out}{err}");
}

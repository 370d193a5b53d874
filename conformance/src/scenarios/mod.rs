//! The scenarios, and the table of all of them. A scenario imports the tools beside this folder. No
//! tool imports a scenario.

mod blocks;
mod buckets;
mod copies;
mod crowd;
mod database;
mod files;
mod fio;
mod fsx;
mod full;
mod initiator;
mod lost_machine;
mod rewind;
mod rude;
mod stalled;
mod xfstests;

use crate::scenario::Scenario;
use database::On;

/// Every scenario.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "blocks",
        shows: "our own clients write, trim, flush and take snapshots; what an answered flush covered is there after each kill",
        rounds: 50,
        run: blocks::run,
    },
    Scenario {
        name: "fio",
        shows: "fio's verify: a job that ended is whole after kills in the middle of later ones",
        rounds: 50,
        run: fio::run,
    },
    Scenario {
        name: "copies",
        shows: "nbdcopy and qemu-img convert, killed in the middle and repeated; qemu-img compare and check",
        rounds: 50,
        run: copies::run,
    },
    Scenario {
        name: "database",
        shows: "PostgreSQL under pgbench on an ext4 of a LUN: it comes up after each kill, with every acknowledged transaction",
        rounds: 50,
        run: |world, rounds| database::killed(world, rounds, On::Lun),
    },
    Scenario {
        name: "database-mirror",
        shows: "the same from the mirror after failover, with every transaction that was acknowledged before the last image",
        rounds: 50,
        run: |world, rounds| database::mirrored(world, rounds, On::Lun),
    },
    Scenario {
        name: "database-files",
        shows: "PostgreSQL on the files of a volume: likewise",
        rounds: 50,
        run: |world, rounds| database::killed(world, rounds, On::Files),
    },
    Scenario {
        name: "database-files-mirror",
        shows: "the same from the mirror of those files after failover",
        rounds: 50,
        run: |world, rounds| database::mirrored(world, rounds, On::Files),
    },
    Scenario {
        name: "database-bucket",
        shows: "the same on another server that opens the volume from a bucket, after the loss of the first machine",
        rounds: 20,
        run: lost_machine::run,
    },
    Scenario {
        name: "buckets-versitygw",
        shows: "dumps, mirrors and volumes in a bucket of VersityGW, with kills of server and store, and fencing",
        rounds: 30,
        run: |world, rounds| buckets::run(world, rounds, "versitygw"),
    },
    Scenario {
        name: "buckets-minio",
        shows: "the same in MinIO",
        rounds: 30,
        run: |world, rounds| buckets::run(world, rounds, "minio"),
    },
    Scenario {
        name: "buckets-ceph",
        shows: "the same in the gateway of Ceph",
        rounds: 30,
        run: |world, rounds| buckets::run(world, rounds, "ceph"),
    },
    Scenario {
        name: "buckets-garage",
        shows: "Garage, which takes dumps and must be refused for mirrors and volumes",
        rounds: 30,
        run: |world, rounds| buckets::run(world, rounds, "garage"),
    },
    Scenario {
        name: "initiator",
        shows: "PostgreSQL through qemu's iSCSI initiator on disks that remember by copy-on-write and redirect-on-write: kills that the initiator gets over, and those \
                that it does not outlive; marks; what pgbench does on each",
        rounds: 20,
        run: initiator::run,
    },
    Scenario {
        name: "rewind",
        shows: "PostgreSQL on a file or LUN that is adopted with each placement: DROP TABLE under load, views and clones of instants, a revert and its undoing, a release; kills under \
                load and in each command; every acknowledged transaction is back",
        rounds: 20,
        run: rewind::run,
    },
    Scenario {
        name: "fsx",
        shows: "fsx on an ext4 of a LUN; after a kill e2fsck finds nothing, and fsx goes on",
        rounds: 50,
        run: fsx::run,
    },
    Scenario {
        name: "posix",
        shows: "pjdfstest on the files of a volume finds nothing but what conformance/pjdfstest.txt lists",
        rounds: 1,
        run: files::posix,
    },
    Scenario {
        name: "xfstests",
        shows: "the generic tests of xfstests (the quick ones; in two rounds all) on the files of volumes find nothing but what conformance/xfstests.txt lists",
        rounds: 1,
        run: xfstests::run,
    },
    Scenario {
        name: "files-fsx",
        shows: "fsx on the files of a volume finds nothing, and after a kill of the server it begins anew",
        rounds: 50,
        run: files::exerciser,
    },
    Scenario {
        name: "git",
        shows: "git on the files of a volume: after each kill it has every commit that it acknowledged, and fsck finds nothing",
        rounds: 50,
        run: files::git,
    },
    Scenario {
        name: "build",
        shows: "a build on the files of a volume: after each kill its sources are what they were, and it builds",
        rounds: 20,
        run: files::build,
    },
    Scenario {
        name: "full",
        shows: "a volume that its client fills, and empties again",
        rounds: 10,
        run: full::volume,
    },
    Scenario {
        name: "host-full",
        shows: "the file system under a volume is full before the volume is",
        rounds: 5,
        run: full::host,
    },
    Scenario {
        name: "memory",
        shows: "the memory limit, also with clients that ask for much and take nothing",
        rounds: 3,
        run: crowd::memory,
    },
    Scenario {
        name: "snapshots",
        shows: "10,000 snapshots of a volume in use",
        rounds: 1,
        run: crowd::snapshots,
    },
    Scenario {
        name: "luns",
        shows: "1,000 LUNs: made, listed, exported, opened",
        rounds: 1,
        run: crowd::luns,
    },
    Scenario {
        name: "connections",
        shows: "200 sessions at once, and one too many",
        rounds: 50,
        run: crowd::connections,
    },
    Scenario { name: "deaf", shows: "clients that stop reading their replies", rounds: 10, run: rude::deaf },
    Scenario { name: "cut", shows: "clients that go in the middle of a write", rounds: 100, run: rude::cut },
    Scenario {
        name: "stalled",
        shows: "a mirror whose other side stalls without breaking the connection",
        rounds: 5,
        run: stalled::run,
    },
];

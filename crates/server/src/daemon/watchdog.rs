//! Feeds the watchdog of the service manager (`WatchdogSec=` of systemd), as long as the server is
//! alive.
//!
//! The server is *alive* if it answers as a user of the server would expect, to the same requests:
//!
//! - the command interface answers `GET /v1/status` on the control socket, which reads every
//!   volume, mirror, device and state file, and so takes nearly all locks;
//! - NBD accepts a connection on the socket in the data directory, and answers whether it has an
//!   export: this tests the accepting thread, a session thread, and the state that both need;
//! - the threads of every volume that write back and make consistency points make progress.
//!
//! A thread of its own checks each of these *signs* four times per watchdog period of the manager.
//! A sign is missing after half a period without an answer. While one is missing no heartbeat is
//! sent, so the manager kills and restarts the server one to one and a half periods after the
//! failure. An error or a refusal is an answer: only silence is not.
//!
//! *A slow disk is not a failure.* A restarted server would find the same disk, and its clients
//! would have lost their sessions for nothing. So time does not count while the kernel shows a
//! thread of the server waiting for a disk: in uninterruptible sleep, or in a system call that only
//! files use. Three kinds of volumes do not count: those that wait for room in a history as
//! configured, those whose disk is slow in a rehearsal, and those whose thread has run in the
//! meantime. The downside: with disks that are always busy, a deadlock is found later, or, if they
//! are fully busy all the time, not at all.
//!
//! Without a watchdog (`WATCHDOG_USEC` is not set) the server runs none of this.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io};

use parking_lot::{Condvar, Mutex};

use crate::daemon::notify;
use crate::error::ServerError;
use crate::volumes::Volumes;
use crate::work::rounds::Rounds;

/// How often it is looked whether signs have come, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the threads of volumes are checked while one of them has made no progress.
const ROUND_EVERY: Duration = Duration::from_millis(50);
/// The longest answer that is read to its end; of a longer one the first part does.
const ANSWER_MAX: u64 = 64 << 20;
/// System calls that wait only for a disk, in addition to waits that the kernel does not interrupt.
const DISK_CALLS: [i64; 11] = [
    libc::SYS_io_uring_enter,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
];

/// A thread of a volume, to wait for.
struct Waited {
    rounds: Arc<Rounds>,
    count: u64,
    /// How often it had given its processor away when the wait began.
    switches: Option<u64>,
}

impl Waited {
    fn new(rounds: Arc<Rounds>) -> Self {
        let count = rounds.count.load(Ordering::Acquire);
        let switches = look_at(rounds.thread.load(Ordering::Relaxed)).map(|(switches, _)| switches);
        Self { rounds, count, switches }
    }

    /// Whether it has completed a round, or has run at all, since the wait began.
    fn is_over(&self) -> bool {
        let seen = look_at(self.rounds.thread.load(Ordering::Relaxed));
        let has_run = seen.is_some_and(|(switches, runs)| runs || Some(switches) != self.switches);
        self.rounds.moved_since(self.count) || has_run
    }
}

/// A sign of life that the watchdog checks, and its state.
struct Sign {
    name: &'static str,
    ask: mpsc::Sender<()>,
    /// Answers so far.
    answers: Arc<AtomicU64>,
    asked: u64,
    asked_at: Instant,
    /// Time waited for the answer, as far as it counts.
    waited: Duration,
    /// Whether its absence was logged.
    told: bool,
}

impl Sign {
    /// Starts the checking thread. It is not joined when the server ends: it may hang with the
    /// rest.
    fn new(name: &'static str, mut ask_once: impl FnMut() + Send + 'static) -> Result<Self, ServerError> {
        let (ask, asked) = mpsc::channel();
        let answers = Arc::new(AtomicU64::new(0));
        let counted = answers.clone();
        let work = move || {
            while asked.recv().is_ok() {
                ask_once();
                counted.fetch_add(1, Ordering::Release);
            }
        };
        std::thread::Builder::new()
            .name("sign-of-life".to_owned())
            .spawn(work)
            .map_err(|source| ServerError::Thread { what: "the watchdog", source })?;
        let (asked, asked_at, waited) = (0, Instant::now(), Duration::ZERO);
        Ok(Self { name, ask, answers, asked, asked_at, waited, told: false })
    }

    fn is_outstanding(&self) -> bool {
        self.answers.load(Ordering::Acquire) < self.asked
    }

    /// Checks again when due, and adds `passed` to the waiting time if that `counts`. False if the
    /// sign is missing.
    fn look(&mut self, passed: Duration, every: Duration, patience: Duration, counts: bool) -> bool {
        if self.is_outstanding() {
            self.waited += if counts { passed } else { Duration::ZERO };
            let is_missing = self.waited > patience;
            if is_missing && !self.told {
                self.told = true;
                let waited_s = self.waited.as_secs_f64();
                tracing::error!(
                    sign = self.name,
                    waited_s,
                    "a sign of life is missing: the server stops feeding the watchdog, and the service manager will restart it"
                );
            }
            return !is_missing;
        }
        if self.told {
            self.told = false;
            tracing::warn!(sign = self.name, "a missing sign of life has arrived");
        }
        self.waited = Duration::ZERO;
        if self.asked == 0 || self.asked_at.elapsed() >= every {
            (self.asked, self.asked_at) = (self.asked + 1, Instant::now());
            // The thread ends with the sender.
            let _ = self.ask.send(());
        }
        true
    }
}

/// Feeds the watchdog until it is dropped.
pub(crate) struct Watchdog {
    ending: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts to feed it, when the service manager wants that.
    pub(crate) fn start(
        control: PathBuf,
        nbd: PathBuf,
        volumes: Arc<Volumes>,
    ) -> Result<Option<Self>, ServerError> {
        let Some(limit) = notify::watchdog() else { return Ok(None) };
        let signs = vec![
            Sign::new("the command interface", move || {
                no_answer_is_told("command interface", ask_status(&control))
            })?,
            Sign::new("NBD", move || no_answer_is_told("NBD", ask_nbd(&nbd)))?,
            Sign::new("the work of the volumes", move || wait_for_rounds(&volumes))?,
        ];
        Self::feed(limit, signs, waits_for_disk, || notify::tell("WATCHDOG=1")).map(Some)
    }

    fn feed(
        limit: Duration,
        mut signs: Vec<Sign>,
        waits_for_disk: impl Fn() -> bool + Send + 'static,
        beat: impl Fn() + Send + 'static,
    ) -> Result<Self, ServerError> {
        let ending = Arc::new((Mutex::new(false), Condvar::new()));
        let own = ending.clone();
        let (every, patience, pause) = (limit / 4, limit / 2, (limit / 8).min(LOOK_EVERY));
        let work = move || {
            let (mut beaten, mut looked) = (None::<Instant>, Instant::now());
            let mut ended = own.0.lock();
            while !*ended {
                // A delay from a busy processor does not count as silence of the server.
                let passed = looked.elapsed().min(pause * 2);
                looked = Instant::now();
                let counts = signs.iter().any(Sign::is_outstanding) && !waits_for_disk();
                let mut are_there = true;
                for sign in &mut signs {
                    are_there &= sign.look(passed, every, patience, counts);
                }
                if are_there && beaten.is_none_or(|beaten| beaten.elapsed() >= every) {
                    beat();
                    beaten = Some(Instant::now());
                }
                own.1.wait_for(&mut ended, pause);
            }
        };
        let thread = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(work)
            .map_err(|source| ServerError::Thread { what: "the watchdog", source })?;
        Ok(Self { ending, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.ending.0.lock() = true;
        self.ending.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it was logged, and only means that the manager gets no more heartbeats.
            let _ = thread.join();
        }
    }
}

/// A refusal is an answer: the server is alive.
fn no_answer_is_told(sign: &str, answer: io::Result<()>) {
    if let Err(error) = answer {
        tracing::warn!(%error, sign, "a check of the watchdog was refused");
    }
}

/// Requests the status as `cairn status` does.
fn ask_status(control: &Path) -> io::Result<()> {
    let mut stream = UnixStream::connect(control)?;
    stream.write_all(b"GET /v1/status HTTP/1.0\r\nHost: cairn\r\n\r\n")?;
    io::copy(&mut stream.take(ANSWER_MAX), &mut io::sink()).map(drop)
}

/// Requests a missing export: the same code answers as for an existing one. If TLS is required the
/// request is refused.
fn ask_nbd(socket: &Path) -> io::Result<()> {
    /// Fixed newstyle, no zeroes.
    const CLIENT_FLAGS: u32 = 3;
    const NBD_OPT_ABORT: u32 = 2;
    const NBD_OPT_INFO: u32 = 6;
    /// No volume has such a name.
    const NAME: &[u8] = b"./.";
    let option = |number: u32, data: &[u8]| {
        let length = data.len() as u32;
        [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &length.to_be_bytes(), data].concat()
    };
    let name = [(NAME.len() as u32).to_be_bytes().as_slice(), NAME, &[0, 0]].concat();
    let mut stream = UnixStream::connect(socket)?;
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&[CLIENT_FLAGS.to_be_bytes().as_slice(), &option(NBD_OPT_INFO, &name)].concat())?;
    stream.read_exact(&mut [0; 20])?;
    stream.write_all(&option(NBD_OPT_ABORT, &[]))
}

/// Waits until every thread of every volume has completed a round, or has run at all during it.
fn wait_for_rounds(volumes: &Volumes) {
    let mut waited: Vec<(String, Waited)> = Vec::new();
    for open in volumes.all() {
        waited.extend(open.rounds().into_iter().map(|rounds| (open.name.clone(), Waited::new(rounds))));
    }
    while !waited.is_empty() {
        std::thread::sleep(ROUND_EVERY);
        // One that is closed meanwhile ends its threads.
        let excused: HashMap<String, bool> =
            volumes.all().into_iter().map(|open| (open.name.clone(), open.is_held_up())).collect();
        waited.retain(|(name, thread)| !thread.is_over() && !excused.get(name).copied().unwrap_or(false));
    }
}

/// The number of context switches of a thread of this process, and whether it runs now; `None` if
/// the system does not report it.
fn look_at(thread: u64) -> Option<(u64, bool)> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).ok()?;
    let switches = status.lines().filter_map(|line| line.split_once("_ctxt_switches:"));
    let switches = switches.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum();
    Some((switches, status.lines().any(|line| line.starts_with("State:\tR"))))
}

/// Whether a thread of this process waits for a disk now.
fn waits_for_disk() -> bool {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return false };
    threads.flatten().any(|thread| {
        let said = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        is_at_disk(&said("stat"), &said("syscall"))
    })
}

/// Whether the `/proc` lines of a thread show that it waits for a disk: its state, and its current
/// system call.
fn is_at_disk(stat: &str, call: &str) -> bool {
    // The name of the thread, in parentheses, may hold anything.
    let Some((name, state)) = stat.rsplit_once(") ") else { return false };
    // Workers of io_uring show the call that created them, also while idle; the thread that
    // submitted work waits for it in that call.
    let is_worker = name.contains(" (iou-");
    let number = call.split(' ').next().and_then(|number| number.parse::<i64>().ok());
    state.starts_with('D') || (!is_worker && number.is_some_and(|number| DISK_CALLS.contains(&number)))
}

#[cfg(test)]
mod tests;

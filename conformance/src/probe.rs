//! A client that makes small requests one after the other and records how long each takes: the
//! effect of other clients' trouble on it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cairn_base::{BLOCK_SIZE, Rng};
use cairn_frontend_nbd::Client;

use crate::model::content;
use crate::scenario::Facts;
use crate::server::Cairn;

/// Bytes of the LUN that it needs.
pub(crate) const PROBE_BYTES: u64 = 4 << 20;

/// How much slower the slowest hundredth may become. Machines that run tests are shared, so this is
/// far from the expected ratio. A client that waits for another one's trouble takes longer by
/// orders of magnitude, or never ends.
const RATIO_MAX: f64 = 50.0;
/// How often a slow result is measured again.
const MEASUREMENTS_MAX: usize = 20;
/// Requests of one measurement.
const REQUESTS: usize = 1500;

/// The client. It knows its writes, and compares its reads.
pub(crate) struct Probe {
    disk: Client,
    versions: Vec<u32>,
    next: u32,
    rng: Rng,
    quiet: Duration,
}

impl Probe {
    /// A client of an export, which notes how things are while nothing happens.
    pub(crate) fn new(cairn: &Cairn, export: &str, seed: u64) -> Result<Self> {
        let disk = cairn.disk(export)?;
        let versions = vec![0; (PROBE_BYTES / BLOCK_SIZE as u64) as usize];
        let mut probe = Self { disk, versions, next: 1, rng: Rng::new(seed), quiet: Duration::ZERO };
        probe.measure(REQUESTS)?;
        probe.quiet = slowest_hundredth(probe.measure(2 * REQUESTS)?);
        Ok(probe)
    }

    /// Measures during the trouble, and judges.
    pub(crate) fn judge(&mut self, what: &str, facts: &mut Facts) -> Result<()> {
        // A shared disk stalls occasionally, but a real fault lasts: it is in every measurement.
        let mut best = Duration::MAX;
        for _ in 0..MEASUREMENTS_MAX {
            let seen = self.measure(REQUESTS).with_context(|| format!("a client beside: {what}"))?;
            best = best.min(slowest_hundredth(seen));
            if self.ratio(best) <= RATIO_MAX {
                break;
            }
        }
        self.compare(what, best, facts)
    }

    /// Measures until `done`, and judges the middle one of the measurements.
    pub(crate) fn judge_until(
        &mut self,
        what: &str,
        facts: &mut Facts,
        mut done: impl FnMut() -> bool,
    ) -> Result<()> {
        let mut seen = Vec::new();
        while seen.is_empty() || !done() {
            let times = self.measure(REQUESTS).with_context(|| format!("a client beside: {what}"))?;
            seen.push(slowest_hundredth(times));
        }
        seen.sort_unstable();
        self.compare(what, seen[seen.len() / 2], facts)
    }

    fn ratio(&self, seen: Duration) -> f64 {
        seen.as_secs_f64() / self.quiet.as_secs_f64()
    }

    fn compare(&self, what: &str, seen: Duration, facts: &mut Facts) -> Result<()> {
        facts.max("us p99 of others before", self.quiet.as_micros() as u64);
        facts.max("us p99 of others meanwhile", seen.as_micros() as u64);
        if self.ratio(seen) > RATIO_MAX {
            bail!(
                "{what}: the slowest hundredth of another client's requests went from {:?} to {seen:?}",
                self.quiet
            );
        }
        Ok(())
    }

    /// Writes, reads and flushes one after the other; how long each took.
    fn measure(&mut self, requests: usize) -> Result<Vec<Duration>> {
        let mut times = Vec::with_capacity(requests);
        for index in 0..requests {
            let block = self.rng.below(self.versions.len() as u64) as u32;
            let offset = u64::from(block) * BLOCK_SIZE as u64;
            let start = Instant::now();
            match index % 32 {
                31 => self.disk.flush()?,
                rest if rest % 4 == 3 => {
                    let bytes = self.disk.read(offset, BLOCK_SIZE as u32)?;
                    self.check(block, &bytes)?;
                }
                _ => {
                    self.disk.write(offset, &content(0, block, self.next))?;
                    self.versions[block as usize] = self.next;
                    self.next += 1;
                }
            }
            times.push(start.elapsed());
        }
        Ok(times)
    }

    fn check(&self, block: u32, bytes: &[u8]) -> Result<()> {
        let same = match self.versions[block as usize] {
            0 => bytes.iter().all(|byte| *byte == 0),
            version => bytes == content(0, block, version),
        };
        if !same {
            bail!("block {block} of a client that had nothing to do with it is wrong");
        }
        Ok(())
    }

    /// Reads all of it through a new connection, and compares.
    pub(crate) fn compare_all(&self, cairn: &Cairn, export: &str) -> Result<()> {
        let mut bytes = vec![0; PROBE_BYTES as usize];
        cairn.disk(export)?.read_all(0, &mut bytes, 1 << 20, 4)?;
        (0..).zip(bytes.chunks(BLOCK_SIZE)).try_for_each(|(block, bytes)| self.check(block, bytes))
    }
}

/// The 99th percentile; there is at least one.
fn slowest_hundredth(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() * 99 / 100]
}

//! fio with `ioengine=nbd`, the client of every figure: `--norandommap --randrepeat=0 --thread`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::process::{Server, run};

/// The work of a client.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    /// fio's own word: `randread`, `write` ...
    pub(crate) pattern: &'static str,
    /// Bytes of a request.
    pub(crate) request: u64,
    /// Requests in flight.
    pub(crate) depth: u32,
    /// A flush after this many writes; 0 for none.
    pub(crate) flush_each: u32,
    /// The part of the export that is touched, from its start, in bytes.
    pub(crate) bytes: u64,
    /// Until when.
    pub(crate) until: Until,
    /// Requests a second that are offered; 0 for as many as go.
    pub(crate) iops: u32,
}

/// When a load ends.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// After a time.
    Elapsed(Duration),
    /// Until this many bytes were transferred.
    Bytes(u64),
}

/// The measurements of one load.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// Requests a second, without flushes.
    pub(crate) iops: f64,
    /// Bytes a second.
    pub(crate) rate: f64,
    /// The same until the flush after the load has returned: data that a peer left in the page
    /// cache counts once it is on the disk.
    pub(crate) flushed_rate: f64,
    /// Latencies in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) worst_us: f64,
    /// The server's CPU seconds for 100,000 requests, the flush after the load included.
    pub(crate) cpu_per_100k: f64,
}

/// One export of a running server.
pub(crate) struct Target<'a> {
    pub(crate) server: &'a Server,
    pub(crate) uri: String,
    /// For fio's report.
    pub(crate) scratch: &'a Path,
}

impl Load {
    /// 4 KiB requests over all of `bytes`.
    pub(crate) fn small(pattern: &'static str, depth: u32, bytes: u64, length: Duration) -> Self {
        let until = Until::Elapsed(length);
        Self { pattern, request: 4096, depth, flush_each: 0, bytes, until, iops: 0 }
    }

    /// 128 KiB requests in order.
    pub(crate) fn large(pattern: &'static str, bytes: u64, length: Duration) -> Self {
        let until = Until::Elapsed(length);
        Self { pattern, request: 128 << 10, depth: 32, flush_each: 0, bytes, until, iops: 0 }
    }

    /// Everything written once, in order.
    pub(crate) fn fill(bytes: u64) -> Self {
        Self {
            pattern: "write",
            request: 1 << 20,
            depth: 8,
            flush_each: 0,
            bytes,
            until: Until::Bytes(bytes),
            iops: 0,
        }
    }

    /// Everything read once, in order, so that it is in the cache.
    pub(crate) fn warm(bytes: u64) -> Self {
        Self { pattern: "read", ..Self::fill(bytes) }
    }

    /// Runs against `target`, then flushes it.
    pub(crate) fn run(&self, target: &Target<'_>) -> Result<Seen> {
        let report = target.scratch.join("fio.json");
        let cpu_before = target.server.cpu()?;
        let mut fio = Command::new("fio");
        fio.args(["--name=load", "--ioengine=nbd", "--thread", "--norandommap", "--randrepeat=0"])
            .arg("--output-format=json")
            .arg(format!("--output={}", report.display()))
            .arg(format!("--uri={}", target.uri))
            .arg(format!("--rw={}", self.pattern))
            .arg(format!("--bs={}", self.request))
            .arg(format!("--iodepth={}", self.depth))
            .arg(format!("--size={}", self.bytes))
            // Writes nothing into the folder that it was started in.
            .current_dir(target.scratch);
        match self.until {
            Until::Elapsed(length) => fio.arg("--time_based").arg(format!("--runtime={}", length.as_secs())),
            // Lasting content differs from block to block; a timed load does not spend its client's
            // time on that.
            Until::Bytes(bytes) => fio.arg("--refill_buffers").arg(format!("--io_size={bytes}")),
        };
        if self.flush_each > 0 {
            fio.arg(format!("--fsync={}", self.flush_each));
        }
        if self.iops > 0 {
            fio.arg(format!("--rate_iops={}", self.iops));
        }
        run(&mut fio)?;
        let flush_began = Instant::now();
        flush(&target.uri)?;
        let flushing = flush_began.elapsed();
        let cpu = target.server.cpu()? - cpu_before;
        // fio puts its warnings before the object.
        let text = std::fs::read_to_string(&report)?;
        let object = text.find('{').map_or("", |start| &text[start..]);
        let report: Value = serde_json::from_str(object).with_context(|| format!("fio's report: {text}"))?;
        self.read_report(&report, cpu, flushing)
    }

    fn read_report(&self, report: &Value, cpu: Duration, flushing: Duration) -> Result<Seen> {
        let direction = if self.pattern.ends_with("read") { "read" } else { "write" };
        let side = &report["jobs"][0][direction];
        let number = |value: &Value| value.as_f64().with_context(|| format!("fio's report: {side}"));
        let percentile = |name: &str| number(&side["clat_ns"]["percentile"][name]).map(|ns| ns / 1e3);
        Ok(Seen {
            iops: number(&side["iops"])?,
            rate: number(&side["bw_bytes"])?,
            flushed_rate: number(&side["io_bytes"])?
                / (number(&side["runtime"])? / 1e3 + flushing.as_secs_f64()),
            p50_us: percentile("50.000000")?,
            p99_us: percentile("99.000000")?,
            worst_us: number(&side["clat_ns"]["max"])? / 1e3,
            cpu_per_100k: cpu.as_secs_f64() / number(&side["total_ios"])? * 1e5,
        })
    }
}

/// Flushes an export with a client of its own.
fn flush(uri: &str) -> Result<()> {
    run(Command::new("qemu-io").args(["-f", "raw", "-c", "flush", uri])).map(drop)
}

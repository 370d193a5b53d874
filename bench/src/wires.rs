//! A client that speaks iSCSI and NBD over TCP with the same loop: one thread, one connection, a
//! fixed number of requests in flight, so that only the servers of two targets or two protocols
//! differ.
//!
//! fio has no iSCSI engine here, and one client for the one protocol and another for the other
//! would measure the clients.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cairn_base::Rng;

use crate::fio::{Load, Seen, Until};
use crate::process::Server;
use crate::report::percentile;

/// The target of a client.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// A portal, a target, and the LUN.
    Iscsi(String, String, u8),
    /// An address and an export.
    Nbd(String, String),
}

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
}

/// The record of a request until it is answered.
#[derive(Debug, Clone, Copy)]
struct Request {
    kind: Kind,
    offset: u64,
    length: u32,
    begun: Instant,
}

/// A protocol.
enum Wire {
    Iscsi(Iscsi),
    Nbd,
}

/// The parameters agreed at login.
struct Iscsi {
    lun: u8,
    segment: usize,
    first_burst: usize,
    immediate: bool,
    command: u32,
    status: u32,
}

/// A connection.
struct Client {
    stream: TcpStream,
    wire: Wire,
    input: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of a read's data that are still to come.
    skip: usize,
    /// Whose request is answered once they came.
    after: Option<usize>,
    /// The next bytes to send; data is not copied into it.
    out: Out,
    data: Vec<u8>,
}

/// Headers, and the data among them: its position in the headers, its position in the data, its
/// length.
#[derive(Default)]
struct Out {
    headers: Vec<u8>,
    data: Vec<(usize, usize, usize)>,
}

impl Out {
    fn header(&mut self, bytes: &[u8]) {
        self.headers.extend_from_slice(bytes);
    }

    fn data(&mut self, from: usize, length: usize) {
        self.data.push((self.headers.len(), from, length));
    }

    fn send(&mut self, data: &[u8], to: &mut TcpStream) -> Result<()> {
        let mut slices = Vec::with_capacity(2 * self.data.len() + 1);
        let mut done = 0;
        for &(until, from, length) in &self.data {
            slices.push(IoSlice::new(&self.headers[done..until]));
            slices.push(IoSlice::new(&data[from..from + length]));
            done = until;
        }
        slices.push(IoSlice::new(&self.headers[done..]));
        let mut left = &mut slices[..];
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let sent = to.write_vectored(left)?;
            IoSlice::advance_slices(&mut left, sent);
        }
        self.headers.clear();
        self.data.clear();
        Ok(())
    }
}

/// Fits into the cache of a core: the client must cost little, as the servers are measured.
const INPUT_BYTES: usize = 256 << 10;
const NO_TAG: u32 = u32::MAX;
const HEADER: usize = 48;
const NBD_OPTION_GO: u32 = 7;

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}

fn be24(bytes: &[u8], at: usize) -> usize {
    be32(bytes, at.saturating_sub(1)) as usize & 0xff_ffff
}

/// Runs a load against a place, then flushes it. `server` is whose CPU time is counted.
pub(crate) fn run(place: &Place, load: &Load, server: &Server) -> Result<Seen> {
    let mut client = Client::connect(place)?;
    let cpu_before = server.cpu()?;
    let depth = load.depth as usize;
    let mut slots: Vec<Option<Request>> = vec![None; depth];
    let mut rng = Rng::new(0x0bad_cafe);
    let (mut next, mut since_flush, mut given) = (0, 0, 0);
    let mut latencies: Vec<f64> = Vec::with_capacity(1 << 20);
    let kind = if load.pattern.ends_with("read") { Kind::Read } else { Kind::Write };
    let is_random = load.pattern.starts_with("rand");
    let blocks = load.bytes / load.request;
    let begun = Instant::now();
    let mut finished = begun;
    let mut free: Vec<usize> = (0..depth).rev().collect();
    loop {
        let goes_on = match load.until {
            Until::Elapsed(length) => begun.elapsed() < length,
            Until::Bytes(bytes) => given < bytes,
        };
        while let Some(slot) = if goes_on { free.pop() } else { None } {
            let now = Instant::now();
            let request = if load.flush_each > 0 && since_flush == load.flush_each {
                since_flush = 0;
                Request { kind: Kind::Flush, offset: 0, length: 0, begun: now }
            } else {
                since_flush += 1;
                let block = if is_random { rng.below(blocks) } else { next % blocks };
                next += 1;
                given += load.request;
                Request { kind, offset: block * load.request, length: load.request as u32, begun: now }
            };
            slots[slot] = Some(request);
            client.send(slot, &request);
        }
        if free.len() == depth {
            break;
        }
        client.flush_out()?;
        client.receive()?;
        while let Some(slot) = client.answered(&slots)? {
            let request = slots.get_mut(slot).and_then(Option::take).context("an answer to nothing")?;
            finished = Instant::now();
            if request.kind != Kind::Flush {
                latencies.push((finished - request.begun).as_nanos() as f64 / 1e3);
            }
            free.push(slot);
        }
    }
    let length = finished - begun;
    client.one(Request { kind: Kind::Flush, offset: 0, length: 0, begun })?;
    let cpu = server.cpu()? - cpu_before;
    Ok(seen(load, length, begun.elapsed(), cpu, latencies))
}

/// Bytes a second of one TCP stream to the same client without a server: a thread sends pieces of
/// `request` bytes from memory of `bytes` bytes. No server on this machine gives one connection
/// more.
pub(crate) fn bare_stream(bytes: usize, request: usize, length: Duration) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let mut data = vec![0; bytes];
        Rng::new(1).fill(&mut data);
        let (mut stream, _) = listener.accept()?;
        // Until the client has disconnected.
        while data.chunks(request).all(|piece| stream.write_all(piece).is_ok()) {}
        Ok(())
    });
    let mut input = vec![0; INPUT_BYTES];
    // The first of it comes when the data is made.
    let mut count = stream.read(&mut input)?;
    let begun = Instant::now();
    while begun.elapsed() < length {
        let more = stream.read(&mut input)?;
        ensure!(more > 0, "the stream ended");
        count += more;
    }
    let rate = count as f64 / begun.elapsed().as_secs_f64();
    drop(stream);
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    Ok(rate)
}

/// The measurements of a load that took `length`, and `flushed` with the flush after it.
fn seen(load: &Load, length: Duration, flushed: Duration, cpu: Duration, mut latencies: Vec<f64>) -> Seen {
    latencies.sort_by(f64::total_cmp);
    let count = latencies.len() as f64;
    let iops = count / length.as_secs_f64();
    Seen {
        iops,
        rate: iops * load.request as f64,
        flushed_rate: count * load.request as f64 / flushed.as_secs_f64(),
        p50_us: percentile(&latencies, 0.5),
        p99_us: percentile(&latencies, 0.99),
        worst_us: percentile(&latencies, 1.0),
        cpu_per_100k: cpu.as_secs_f64() / count * 1e5,
    }
}

impl Client {
    fn connect(place: &Place) -> Result<Self> {
        let address = match place {
            Place::Iscsi(address, ..) | Place::Nbd(address, _) => address,
        };
        let mut stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let wire = match place {
            Place::Iscsi(_, target, lun) => Wire::Iscsi(Iscsi::log_in(&mut stream, target, *lun)?),
            Place::Nbd(_, export) => {
                open_export(&mut stream, export)?;
                Wire::Nbd
            }
        };
        // Differs from block to block, like lasting content.
        let mut data = vec![0; 4 << 20];
        Rng::new(1).fill(&mut data);
        let input = vec![0; INPUT_BYTES];
        let mut client =
            Self { stream, wire, input, start: 0, end: 0, skip: 0, after: None, out: Out::default(), data };
        if matches!(client.wire, Wire::Iscsi(_)) {
            client.clear_attentions()?;
        }
        Ok(client)
    }

    /// A unit may have unit attentions before it serves.
    fn clear_attentions(&mut self) -> Result<()> {
        for _ in 0..4 {
            let read = Request { kind: Kind::Read, offset: 0, length: 4096, begun: Instant::now() };
            if self.one(read).is_ok() {
                return Ok(());
            }
        }
        bail!("the unit refuses to be read")
    }

    /// One request and its answer.
    fn one(&mut self, request: Request) -> Result<()> {
        self.send(0, &request);
        self.flush_out()?;
        loop {
            self.receive()?;
            if self.answered(&[Some(request)])?.is_some() {
                return Ok(());
            }
            self.flush_out()?;
        }
    }

    fn send(&mut self, slot: usize, request: &Request) {
        let from = (request.offset as usize) % (2 << 20);
        match &mut self.wire {
            Wire::Iscsi(iscsi) => iscsi.command(slot as u32, request, from, &mut self.out),
            Wire::Nbd => {
                let kind = match request.kind {
                    Kind::Read => 0u16,
                    Kind::Write => 1,
                    Kind::Flush => 3,
                };
                self.out.header(&0x2560_9513u32.to_be_bytes());
                self.out.header(&[0, 0]);
                self.out.header(&kind.to_be_bytes());
                self.out.header(&(slot as u64).to_be_bytes());
                self.out.header(&request.offset.to_be_bytes());
                self.out.header(&request.length.to_be_bytes());
                if request.kind == Kind::Write {
                    self.out.data(from, request.length as usize);
                }
            }
        }
    }

    fn flush_out(&mut self) -> Result<()> {
        self.out.send(&self.data, &mut self.stream)
    }

    /// Waits for more bytes.
    fn receive(&mut self) -> Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let count = self.stream.read(&mut self.input[self.end..])?;
        ensure!(count > 0, "the server closed the connection");
        self.end += count;
        Ok(())
    }

    /// The next request whose answer is complete in the received bytes.
    fn answered(&mut self, slots: &[Option<Request>]) -> Result<Option<usize>> {
        loop {
            let skipped = self.skip.min(self.end - self.start);
            self.skip -= skipped;
            self.start += skipped;
            if self.skip > 0 {
                return Ok(None);
            }
            if let Some(slot) = self.after.take() {
                return Ok(Some(slot));
            }
            let bytes = &self.input[self.start..self.end];
            match &mut self.wire {
                Wire::Nbd => {
                    if bytes.len() < 16 {
                        return Ok(None);
                    }
                    ensure!(be32(bytes, 0) == 0x6744_6698, "no reply of NBD");
                    ensure!(be32(bytes, 4) == 0, "an error of NBD: {}", be32(bytes, 4));
                    let slot = be32(bytes, 12) as usize;
                    let request = slots.get(slot).copied().flatten().context("an answer to nothing")?;
                    self.skip = if request.kind == Kind::Read { request.length as usize } else { 0 };
                    self.after = Some(slot);
                    self.start += 16;
                }
                Wire::Iscsi(iscsi) => {
                    if bytes.len() < HEADER {
                        return Ok(None);
                    }
                    let header: [u8; HEADER] = bytes[..HEADER].try_into()?;
                    let length = be24(&header, 5).next_multiple_of(4);
                    let tag = be32(&header, 16);
                    match header[0] & 0x3f {
                        // Data-In, the last one with the status.
                        0x25 => {
                            self.after = (header[1] & 1 != 0).then_some(tag as usize);
                            if self.after.is_some() {
                                iscsi.status = be32(&header, 24).wrapping_add(1);
                            }
                        }
                        0x21 => {
                            iscsi.status = be32(&header, 24).wrapping_add(1);
                            ensure!(
                                header[3] == 0 || length > 0,
                                "a command ended with status {}",
                                header[3]
                            );
                            if header[3] != 0 {
                                self.start += HEADER + length;
                                bail!("a command ended with status {}", header[3]);
                            }
                            self.after = Some(tag as usize);
                        }
                        0x31 => {
                            let request = slots.get(tag as usize).copied().flatten();
                            let request = request.context("an R2T for nothing")?;
                            let from = request.offset as usize % (2 << 20);
                            // Sent with the other pending bytes: the loop around this sends before
                            // it waits.
                            iscsi.data_out(&header, from, &mut self.out);
                        }
                        // A NOP-In: an answer if it requests one.
                        0x20 if be32(&header, 20) != NO_TAG => {
                            let mut pong = [0; HEADER];
                            (pong[0], pong[1]) = (0x40, 0x80);
                            pong[16..20].copy_from_slice(&NO_TAG.to_be_bytes());
                            pong[20..24].copy_from_slice(&header[20..24]);
                            pong[24..28].copy_from_slice(&iscsi.command.to_be_bytes());
                            pong[28..32].copy_from_slice(&iscsi.status.to_be_bytes());
                            self.out.header(&pong);
                        }
                        0x20 => {}
                        other => bail!("an unexpected PDU: {other:#x}"),
                    }
                    self.start += HEADER;
                    self.skip = length;
                }
            }
        }
    }
}

impl Iscsi {
    fn log_in(stream: &mut TcpStream, target: &str, lun: u8) -> Result<Self> {
        let keys = [
            "InitiatorName=iqn.2026-11.io.cairn:bench".to_owned(),
            format!("TargetName={target}"),
            "SessionType=Normal".to_owned(),
            "HeaderDigest=None".to_owned(),
            "DataDigest=None".to_owned(),
            "InitialR2T=No".to_owned(),
            "ImmediateData=Yes".to_owned(),
            "MaxRecvDataSegmentLength=262144".to_owned(),
            "MaxBurstLength=1048576".to_owned(),
            "FirstBurstLength=65536".to_owned(),
            "MaxOutstandingR2T=1".to_owned(),
            "MaxConnections=1".to_owned(),
            "ErrorRecoveryLevel=0".to_owned(),
        ];
        let mut agreed =
            Self { lun, segment: 8192, first_burst: 65_536, immediate: true, command: 1, status: 0 };
        let mut text: Vec<u8> = keys.iter().flat_map(|key| key.bytes().chain([0])).collect();
        for _ in 0..8 {
            let mut header = [0; HEADER];
            (header[0], header[1]) = (0x43, 0x87);
            header[4..8].copy_from_slice(&(text.len() as u32).to_be_bytes());
            header[8..14].copy_from_slice(&[0x80, 0, 0, 1, 0, 0]);
            header[24..28].copy_from_slice(&agreed.command.to_be_bytes());
            header[28..32].copy_from_slice(&agreed.status.to_be_bytes());
            text.resize(text.len().next_multiple_of(4), 0);
            stream.write_all(&[&header[..], &text].concat())?;
            stream.read_exact(&mut header)?;
            let length = be24(&header, 5);
            let mut answer = vec![0; length.next_multiple_of(4)];
            stream.read_exact(&mut answer)?;
            ensure!(header[0] & 0x3f == 0x23, "no login response");
            ensure!(header[36] == 0, "the login was refused: {:02x}{:02x}", header[36], header[37]);
            agreed.status = be32(&header, 24).wrapping_add(1);
            for pair in String::from_utf8_lossy(&answer[..length]).split('\0') {
                agreed.note(pair);
            }
            if header[1] & 0x83 == 0x83 {
                return Ok(agreed);
            }
            text.clear();
        }
        bail!("the login does not end")
    }

    fn note(&mut self, pair: &str) {
        match pair.split_once('=') {
            Some(("MaxRecvDataSegmentLength", value)) => self.segment = value.parse().unwrap_or(self.segment),
            Some(("FirstBurstLength", value)) => self.first_burst = value.parse().unwrap_or(self.first_burst),
            Some(("ImmediateData", value)) => self.immediate = value == "Yes",
            _ => {}
        }
    }

    /// A command, with as much data as may go along.
    fn command(&mut self, tag: u32, request: &Request, from: usize, out: &mut Out) {
        let mut header = [0; HEADER];
        let immediate = match request.kind {
            Kind::Write if self.immediate => {
                (request.length as usize).min(self.segment).min(self.first_burst)
            }
            _ => 0,
        };
        header[0] = 0x01;
        header[1] = 0x80
            | match request.kind {
                Kind::Read => 0x40,
                Kind::Write => 0x20,
                Kind::Flush => 0,
            };
        header[4..8].copy_from_slice(&(immediate as u32).to_be_bytes());
        header[9] = self.lun;
        header[16..20].copy_from_slice(&tag.to_be_bytes());
        header[20..24].copy_from_slice(&request.length.to_be_bytes());
        header[24..28].copy_from_slice(&self.command.to_be_bytes());
        header[28..32].copy_from_slice(&self.status.to_be_bytes());
        header[32] = match request.kind {
            Kind::Read => 0x28,
            Kind::Write => 0x2a,
            Kind::Flush => 0x35,
        };
        header[34..38].copy_from_slice(&((request.offset / 512) as u32).to_be_bytes());
        header[39..41].copy_from_slice(&((request.length / 512) as u16).to_be_bytes());
        self.command = self.command.wrapping_add(1);
        out.header(&header);
        if immediate > 0 {
            out.data(from, immediate);
        }
    }

    /// The answer to an R2T. The data of the command is at `from`.
    fn data_out(&self, asked: &[u8; HEADER], from: usize, out: &mut Out) {
        let (offset, length) = (be32(asked, 40) as usize, be32(asked, 44) as usize);
        for (number, at) in (0..length).step_by(self.segment).enumerate() {
            let piece = self.segment.min(length - at);
            let mut header = [0; HEADER];
            header[0] = 0x05;
            header[1] = if at + piece == length { 0x80 } else { 0 };
            header[4..8].copy_from_slice(&(piece as u32).to_be_bytes());
            header[8..24].copy_from_slice(&asked[8..24]);
            header[28..32].copy_from_slice(&self.status.to_be_bytes());
            header[36..40].copy_from_slice(&(number as u32).to_be_bytes());
            header[40..44].copy_from_slice(&((offset + at) as u32).to_be_bytes());
            out.header(&header);
            out.data(from + offset + at, piece);
        }
    }
}

/// The handshake of NBD, up to the phase of transmission.
pub(crate) fn open_export(stream: &mut (impl Read + Write), export: &str) -> Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    ensure!(greeting.starts_with(b"NBDMAGICIHAVEOPT"), "no server of NBD");
    let mut option = 3u32.to_be_bytes().to_vec();
    option.extend_from_slice(b"IHAVEOPT");
    option.extend_from_slice(&NBD_OPTION_GO.to_be_bytes());
    option.extend_from_slice(&(export.len() as u32 + 6).to_be_bytes());
    option.extend_from_slice(&(export.len() as u32).to_be_bytes());
    option.extend_from_slice(export.as_bytes());
    option.extend_from_slice(&[0, 0]);
    stream.write_all(&option)?;
    loop {
        let mut reply = [0; 20];
        stream.read_exact(&mut reply)?;
        let mut rest = vec![0; be32(&reply, 16) as usize];
        stream.read_exact(&mut rest)?;
        match be32(&reply, 12) {
            1 => return Ok(()),
            3 => {}
            other => bail!("the export was refused: {other:#x}"),
        }
    }
}

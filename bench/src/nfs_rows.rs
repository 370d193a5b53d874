//! Files over NFS next to nfs-ganesha on the file system of the run (ext4, if `--dir` is there),
//! with the same client for both: a program on libnfs, which is compiled for the run.
//!
//! Ganesha registers with a port mapper or does not start. If none answers, this starts one:
//! run the table as root, in a network namespace of its own if the machine should not have it
//! (`unshare -n sh -c 'ip link set lo up; cairn-bench nfs'`).

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::Plan;
use crate::cairn::Cairn;
use crate::fio::{Load, Target as Export, Until};
use crate::process::{Server, run, settle};
use crate::report::{Report, Target, median};

/// The client.
const CLIENT: &str = include_str!("nfs_rows/client.c");
const MEMORY_MIB: u64 = 1024;
const CLIENTS: usize = 8;
const GANESHA: &str = "nfs-ganesha";
const NBD: &str = "own NBD";
/// Bytes of a large request.
const LARGE: u64 = 1 << 20;
/// Large requests in flight.
const LARGE_DEPTH: u32 = 8;

/// A server with an export.
struct Contender {
    name: &'static str,
    url: String,
}

/// nfs-ganesha, and the port mapper that it needs.
struct Ganesha {
    _server: Server,
    _mapper: Option<Mapper>,
    url: String,
    data: PathBuf,
}

struct Mapper(Child);

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn mapper() -> Result<Option<Mapper>> {
    let answers = || TcpStream::connect("127.0.0.1:111").is_ok();
    if answers() {
        return Ok(None);
    }
    let mut command = Command::new("rpcbind");
    command.args(["-f", "-w"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().context("rpcbind, which nfs-ganesha needs, did not start")?;
    let mapper = Mapper(child);
    for _ in 0..500 {
        if answers() {
            return Ok(Some(mapper));
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    anyhow::bail!("rpcbind does not answer")
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn url(path: &str, nfs: u16, mount: u16) -> String {
    format!("nfs://127.0.0.1{path}?nfsport={nfs}&mountport={mount}&version=3&uid=0&gid=0")
}

impl Ganesha {
    fn start(plan: &Plan) -> Result<Self> {
        let folder = plan.folder.join("ganesha");
        let data = folder.join("data");
        std::fs::create_dir_all(&data)?;
        std::fs::create_dir_all(folder.join("recovery"))?;
        let mapper = mapper()?;
        let [nfs, mount, locks, quota] = [free_port()?, free_port()?, free_port()?, free_port()?];
        let text = format!(
            "NFS_Core_Param {{ NFS_Port = {nfs}; MNT_Port = {mount}; NLM_Port = {locks}; Rquota_Port = {quota};\n\
             Protocols = 3; Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; }}\n\
             NFSV4 {{ Graceless = true; RecoveryRoot = \"{recovery}\"; }}\n\
             EXPORT {{ Export_Id = 1; Path = {path}; Pseudo = /data; Protocols = 3; Transports = TCP;\n\
             Access_Type = RW; Squash = No_Root_Squash; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
            recovery = folder.join("recovery").display(),
            path = data.display()
        );
        let config = folder.join("ganesha.conf");
        std::fs::write(&config, text)?;
        let mut command = Command::new("ganesha.nfsd");
        command.args(["-F", "-N", "NIV_EVENT", "-f"]).arg(&config);
        command.arg("-L").arg(folder.join("ganesha.log")).arg("-p").arg(folder.join("ganesha.pid"));
        let ready = || TcpStream::connect(("127.0.0.1", mount)).is_ok();
        let server = Server::start_until(command, &folder.join("ganesha"), ready)
            .with_context(|| std::fs::read_to_string(folder.join("ganesha.log")).unwrap_or_default())?;
        Ok(Self { url: url(&data.display().to_string(), nfs, mount), _server: server, _mapper: mapper, data })
    }
}

/// Programs that run at once.
fn at_once(commands: Vec<Command>) -> Result<Vec<Vec<f64>>> {
    let children = commands.into_iter().map(|mut command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    });
    let children = children.collect::<std::io::Result<Vec<Child>>>()?;
    let outputs: Vec<_> = children.into_iter().map(Child::wait_with_output).collect();
    let figures = outputs.into_iter().map(|output| {
        let output = output?;
        ensure!(output.status.success(), "the client: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        Ok(text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?)
    });
    figures.collect()
}

/// The parts of a run.
struct Run<'a> {
    plan: &'a Plan,
    client: PathBuf,
    cairn: Option<Cairn>,
    contenders: Vec<Contender>,
}

impl Run<'_> {
    fn command(&self, contender: &Contender, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.client);
        command.arg(&contender.url).args(arguments);
        command
    }

    /// One client's figures.
    fn one(&self, contender: &Contender, arguments: &[&str]) -> Result<Vec<f64>> {
        at_once(vec![self.command(contender, arguments)])?.pop().context("figures")
    }

    /// Turns of all contenders: the figure of each.
    fn turns(&self, mut turn: impl FnMut(&Contender, usize) -> Result<f64>) -> Result<Vec<f64>> {
        let mut seen: Vec<Vec<f64>> = self.contenders.iter().map(|_| Vec::new()).collect();
        for round in 0..self.plan.rounds() {
            for (contender, seen) in self.contenders.iter().zip(&mut seen) {
                seen.push(turn(contender, round).with_context(|| format!("with {}", contender.name))?);
            }
        }
        Ok(seen.into_iter().map(median).collect())
    }

    fn row(&self, report: &mut Report, work: &str, unit: &'static str, figures: &[f64], target: Target) {
        let of = |wanted: &str| {
            let place = self.contenders.iter().position(|contender| contender.name == wanted)?;
            figures.get(place).copied()
        };
        match (of("cairn"), of(GANESHA)) {
            (cairn, Some(peer)) => report.against(work, unit, cairn, (GANESHA, peer), target),
            (Some(cairn), None) => report.alone(work, unit, cairn, Target::None),
            (None, None) => {}
        }
    }

    fn io(
        &self,
        contender: &Contender,
        pattern: &str,
        (bytes, request, depth): (u64, u64, u32),
        seconds: f64,
    ) -> Result<(f64, f64)> {
        let (bytes, request, depth) = (bytes.to_string(), request.to_string(), depth.to_string());
        let seconds = format!("{seconds}");
        let seen = self.one(contender, &["io", pattern, "/data", &bytes, &request, &depth, &seconds])?;
        let [requests, taken, ..] = seen[..] else { anyhow::bail!("the client printed {seen:?}") };
        let request: f64 = request.parse()?;
        Ok((requests / taken, requests * request / taken))
    }

    fn random(&self, report: &mut Report) -> Result<()> {
        let (bytes, turn) = (self.plan.cached_bytes(), self.plan.turn().as_secs_f64());
        for contender in &self.contenders {
            self.io(contender, "write", (bytes, LARGE, LARGE_DEPTH), 0.0)?;
        }
        settle()?;
        for (pattern, work) in
            [("randread", "4 KiB random reads, in memory"), ("randwrite", "4 KiB random writes")]
        {
            if !self.plan.wants(work) {
                continue;
            }
            let figures = self.turns(|contender, _| {
                if pattern == "randread" {
                    self.io(contender, "read", (bytes, LARGE, LARGE_DEPTH), 0.0)?;
                }
                Ok(self.io(contender, pattern, (bytes, 4096, 32), turn)?.0)
            })?;
            self.row(
                report,
                &format!("{work}, 32 outstanding"),
                "requests/s",
                &figures,
                Target::AtLeast(2.0),
            );
        }
        Ok(())
    }

    fn sequential(&self, report: &mut Report) -> Result<()> {
        let bytes = self.plan.cached_bytes() * 2;
        for pattern in ["write", "read"] {
            let work = format!("1 MiB sequential {pattern}, {LARGE_DEPTH} outstanding");
            if !self.plan.wants(&work) {
                continue;
            }
            let figures = self.turns(|contender, _| {
                let rate = self.io(contender, pattern, (bytes, LARGE, LARGE_DEPTH), 0.0)?.1;
                settle()?;
                Ok(rate / 1e6)
            })?;
            self.row(report, &work, "MB/s", &figures, Target::AtLeast(1.0));
            if let (Some(cairn), Some(ours)) = (&self.cairn, figures.first()) {
                let load = Load {
                    pattern,
                    request: LARGE,
                    depth: LARGE_DEPTH,
                    flush_each: 0,
                    bytes,
                    until: Until::Bytes(bytes),
                    iops: 0,
                };
                let export =
                    Export { server: cairn.server()?, uri: cairn.lun()?, scratch: &self.plan.folder };
                let mut rates = Vec::new();
                for _ in 0..self.plan.rounds() {
                    let seen = load.run(&export)?;
                    rates.push(if pattern == "write" { seen.flushed_rate } else { seen.rate } / 1e6);
                    settle()?;
                }
                report.against(work, "MB/s", Some(*ours), (NBD, median(rates)), Target::AtLeast(0.8));
            }
        }
        Ok(())
    }

    fn small(&self, report: &mut Report) -> Result<()> {
        let count = if self.plan.quick { 100 } else { 100_000 / CLIENTS };
        let mut steps: Vec<[Vec<f64>; 5]> = self.contenders.iter().map(|_| Default::default()).collect();
        for round in 0..self.plan.rounds() {
            for (contender, steps) in self.contenders.iter().zip(&mut steps) {
                let command = |number| {
                    let folder = format!("/small-{round}-{number}");
                    self.command(contender, &["small", &folder, &count.to_string()])
                };
                let seen = at_once((0..CLIENTS).map(command).collect())?;
                let slowest = |step| {
                    let taken = seen.iter().filter_map(|one| one.get(step).copied());
                    taken.fold(0.0, f64::max)
                };
                let whole: f64 = (0..4).map(slowest).sum();
                for (step, steps) in steps.iter_mut().take(4).enumerate() {
                    steps.push((count * CLIENTS) as f64 / slowest(step));
                }
                steps[4].push((count * CLIENTS) as f64 / whole);
                settle()?;
            }
        }
        let works = ["create with 4 KiB and fsync", "stat", "read", "delete", "all four"];
        for (step, work) in works.into_iter().enumerate() {
            let figures: Vec<f64> = steps.iter().map(|seen| median(seen[step].clone())).collect();
            let target = if step == 4 { Target::AtLeast(1.5) } else { Target::None };
            let work = format!("{} small files, {CLIENTS} clients: {work}", count * CLIENTS);
            self.row(report, &work, "files/s", &figures, target);
        }
        Ok(())
    }

    fn fsync(&self, report: &mut Report) -> Result<()> {
        let seconds = self.plan.turn().as_secs().to_string();
        let figures = self.turns(|contender, _| {
            let command = |number| self.command(contender, &["fsync", &format!("/fsync-{number}"), &seconds]);
            let seen = at_once((0..CLIENTS).map(command).collect())?;
            Ok(seen
                .iter()
                .map(|one| one.first().zip(one.get(1)).map_or(0.0, |(calls, taken)| calls / taken))
                .sum())
        })?;
        let work = format!("fsync of 4 KiB, {CLIENTS} clients");
        self.row(report, &work, "fsyncs/s", &figures, Target::AtLeast(1.5));
        Ok(())
    }

    fn names(&self, report: &mut Report) -> Result<()> {
        let count = if self.plan.quick { 2_000 } else { 1_000_000 };
        let (mut create, mut list) = (Vec::new(), Vec::new());
        for contender in &self.contenders {
            let seen = self.one(contender, &["names", "/names", &count.to_string()])?;
            let [created, listed] = seen[..] else { anyhow::bail!("the client printed {seen:?}") };
            create.push(f64::from(count) / created);
            list.push(f64::from(count) / listed);
        }
        self.row(report, &format!("{count} names: create, 64 outstanding"), "names/s", &create, Target::None);
        self.row(report, &format!("{count} names: readdir"), "names/s", &list, Target::None);
        match &self.cairn {
            Some(cairn) => cairn.report_memory(report, 0),
            None => Ok(()),
        }
    }
}

/// Compiles the client.
fn client(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("client.c"), folder.join("client"));
    std::fs::write(&source, CLIENT)?;
    run(Command::new("cc").arg("-O2").arg("-o").arg(&program).arg(&source).arg("-lnfs"))
        .context("the client needs a C compiler and libnfs-dev")?;
    Ok(program)
}

/// All rows.
pub(crate) fn nfs(plan: &Plan, report: &mut Report) -> Result<()> {
    plan.ask_room(20)?;
    let client = client(&plan.folder)?;
    let mut contenders = Vec::new();
    let cairn = match plan.only_peers {
        true => None,
        false => {
            let cairn = Cairn::start(plan, "nfs-cairn", "off", MEMORY_MIB)?;
            cairn.make_lun(if plan.quick { 1 << 30 } else { 16 << 30 }, 2 * plan.cached_bytes())?;
            cairn.cli(&["export", "set", "vol0", "--nfs", "--no-root-squash"])?;
            let status = cairn.json(&["status"])?;
            let address = status["nfs"][0].as_str().context("an address of NFS")?;
            let port = address.rsplit_once(':').context("a port")?.1.parse()?;
            contenders.push(Contender { name: "cairn", url: url("/vol0", port, port) });
            Some(cairn)
        }
    };
    let ganesha = Ganesha::start(plan);
    match &ganesha {
        Ok(ganesha) => contenders.push(Contender { name: GANESHA, url: ganesha.url.clone() }),
        Err(error) => report.note(format!("{GANESHA} is not in this run: {error:#}")),
    }
    let run = Run { plan, client, cairn, contenders };
    run.random(report)?;
    run.sequential(report)?;
    if plan.wants("small") {
        run.small(report)?;
    }
    if plan.wants("fsync") {
        run.fsync(report)?;
    }
    if plan.wants("names") {
        run.names(report)?;
    }
    if let Ok(ganesha) = &ganesha {
        report.note(format!("{GANESHA} serves {} by its VFS module.", ganesha.data.display()));
    }
    report.note("The client is a program on libnfs, with a connection each. Writes end with an fsync inside of the time.");
    Ok(())
}

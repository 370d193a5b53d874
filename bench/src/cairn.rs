//! Cairn as its users drive it: `cairn serve`, and the command line for other work.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Plan;
use crate::process::{Server, run};
use crate::report::{Report, Target};

/// The volume of every table.
pub(crate) const VOLUME: &str = "vol0";

/// A file system in memory.
const MEMORY_FOLDER: &str = "/dev/shm";

/// The default memory of `cairn serve`, in MiB.
pub(crate) const MEMORY_DEFAULT_MIB: u64 = 256;

/// A server with a data directory of its own.
pub(crate) struct Cairn {
    program: PathBuf,
    data: PathBuf,
    mirror: String,
    memory_mib: u64,
    /// Lowers its priority below everything else on this machine.
    elsewhere: bool,
    server: Option<Server>,
}

impl Cairn {
    /// Starts a server on an empty data directory. `mirror` is the address of its mirror listener,
    /// or `off`; `memory_mib` is the limit that it is given for the volume.
    pub(crate) fn start(plan: &Plan, name: &str, mirror: &str, memory_mib: u64) -> Result<Self> {
        let data = plan.folder.join(name);
        std::fs::create_dir(&data)?;
        Self::at(plan, data, mirror, memory_mib, false)
    }

    /// The same as if on another machine, as far as this one can simulate that: its data is in
    /// memory, and it gets the processor time that others leave.
    pub(crate) fn elsewhere(plan: &Plan, name: &str, mirror: &str, memory_mib: u64) -> Result<Self> {
        let data = Path::new(MEMORY_FOLDER).join(format!("cairn-bench-{}-{name}", std::process::id()));
        std::fs::create_dir(&data).with_context(|| {
            format!("{} can't be made: this table wants a file system in memory", data.display())
        })?;
        Self::at(plan, data, mirror, memory_mib, true)
    }

    fn at(plan: &Plan, data: PathBuf, mirror: &str, memory_mib: u64, elsewhere: bool) -> Result<Self> {
        let (program, mirror) = (plan.cairn.clone(), mirror.to_owned());
        let mut cairn = Self { program, data, mirror, memory_mib, elsewhere, server: None };
        cairn.serve()?;
        Ok(cairn)
    }

    /// Starts the server, which must not be running, and waits until it serves NBD.
    pub(crate) fn serve(&mut self) -> Result<()> {
        let mut command = if self.elsewhere {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0"]).arg(&self.program);
            command
        } else {
            Command::new(&self.program)
        };
        command.arg("serve").arg("--data").arg(&self.data).args([
            "--nbd",
            "127.0.0.1:0",
            "--iscsi",
            "127.0.0.1:0",
            "--nfs",
            "127.0.0.1:0",
            "--http",
            "off",
        ]);
        command.args(["--mirror", &self.mirror, "--cache", &format!("{}M", self.memory_mib)]);
        self.server = Some(Server::start(command, &self.data.join("nbd.sock"))?);
        Ok(())
    }

    /// Adds the row that compares the most memory that the server held with its limit and 64 MiB
    /// for each TiB of the volume.
    pub(crate) fn report_memory(&self, report: &mut Report, volume_bytes: u64) -> Result<()> {
        let mib = f64::from(1 << 20);
        let most = self.server()?.memory_max()? as f64 / mib;
        let limit = self.memory_mib as f64 + 64.0 * volume_bytes as f64 / (1u64 << 40) as f64;
        let work = format!("most memory of the server over this table, limit {} MiB", self.memory_mib);
        report.alone(&work, "MiB", most, Target::Limit(limit));
        Ok(())
    }

    /// Ends the server in order and starts it again: nothing is in its memory then.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.end()?;
        self.serve()
    }

    /// Ends the server in order.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), Server::end)
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), Server::kill)
    }

    /// Its data directory.
    pub(crate) fn folder(&self) -> &Path {
        &self.data
    }

    /// The running server.
    pub(crate) fn server(&self) -> Result<&Server> {
        self.server.as_ref().context("cairn is not running")
    }

    /// A command of the command line for this server, to be run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--data").arg(&self.data);
        command
    }

    /// Runs a command of the command line and returns its output.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Result<String> {
        run(&mut self.command(arguments))
    }

    /// Runs a dump to standard output, and reads it: a dump to `/dev/null` does not count, and
    /// can't be a base.
    pub(crate) fn dump_through_pipe(&self, arguments: &[&str]) -> Result<()> {
        let mut dump = self.command(arguments).stdout(Stdio::piped()).spawn()?;
        let mut out = dump.stdout.take().context("no pipe")?;
        std::io::copy(&mut out, &mut std::io::sink())?;
        ensure!(dump.wait()?.success(), "{arguments:?} failed");
        Ok(())
    }

    /// Runs a command with `--json` and returns the last object that it printed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let said = run(self.command(arguments).arg("--json"))?;
        match serde_json::from_str(&said) {
            Ok(value) => Ok(value),
            // Long work prints an object a line, the summary last.
            Err(_) => serde_json::from_str(said.lines().last().unwrap_or_default())
                .with_context(|| format!("{arguments:?} did not print JSON: {said}")),
        }
    }

    /// Calls the server's API directly, without starting a program: for requests made many times a
    /// second.
    pub(crate) fn api(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let mut stream = UnixStream::connect(self.data.join("control.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: cairn\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
        ensure!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {body}");
        serde_json::from_str(body).with_context(|| format!("{method} {path}: {body}"))
    }

    /// The text that the server gives at a path.
    pub(crate) fn text(&self, path: &str) -> Result<String> {
        let mut stream = UnixStream::connect(self.data.join("control.sock"))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        write!(stream, "GET {path} HTTP/1.0\r\nHost: cairn\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("no answer of HTTP")?;
        ensure!(head.starts_with("HTTP/1.0 2") || head.starts_with("HTTP/1.1 2"), "{path}: {head}");
        Ok(body.to_owned())
    }

    /// Makes the volume with a LUN `db`.
    pub(crate) fn make_lun(&self, volume_bytes: u64, lun_bytes: u64) -> Result<()> {
        self.cli(&["volume", "create", VOLUME, "--size", &volume_bytes.to_string()])?;
        self.cli(&["lun", "create", "vol0/db", "--size", &lun_bytes.to_string()])?;
        Ok(())
    }

    /// The NBD URI of the LUN.
    pub(crate) fn lun(&self) -> Result<String> {
        Ok(self.server()?.uri("vol0/db"))
    }
}

impl Drop for Cairn {
    fn drop(&mut self) {
        // The bench removes its own folder; this one is not in it.
        if self.elsewhere {
            drop(self.server.take());
            let _ = std::fs::remove_dir_all(&self.data);
        }
    }
}

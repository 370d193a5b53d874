//! Cairn as its users drive it: `cairn serve`, and the command line for everything else.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Plan;
use crate::process::{Server, run};
use crate::report::{Report, Target};

/// The volume of every table.
pub(crate) const VOLUME: &str = "vol0";

/// What `cairn serve` takes when nothing is said, in MiB.
pub(crate) const MEMORY_DEFAULT_MIB: u64 = 256;

/// A server with a data directory of its own.
pub(crate) struct Cairn {
    program: PathBuf,
    data: PathBuf,
    mirror: String,
    memory_mib: u64,
    server: Option<Server>,
}

impl Cairn {
    /// Starts a server on an empty data directory. `mirror` is the address of its mirror listener, or `off`; `memory_mib` is the limit
    /// that it is given for the volume.
    pub(crate) fn start(plan: &Plan, name: &str, mirror: &str, memory_mib: u64) -> Result<Self> {
        let data = plan.folder.join(name);
        std::fs::create_dir(&data)?;
        let mut cairn =
            Self { program: plan.cairn.clone(), data, mirror: mirror.to_owned(), memory_mib, server: None };
        cairn.serve()?;
        Ok(cairn)
    }

    /// Starts the server, which must not be running, and waits until it serves NBD.
    pub(crate) fn serve(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("serve").arg("--data").arg(&self.data).args([
            "--nbd",
            "127.0.0.1:0",
            "--iscsi",
            "127.0.0.1:0",
            "--http",
            "off",
        ]);
        command.args(["--mirror", &self.mirror, "--cache", &format!("{}M", self.memory_mib)]);
        self.server = Some(Server::start(command, &self.data.join("nbd.sock"))?);
        Ok(())
    }

    /// Adds the row that compares the most memory that the server held with its limit and 64 MiB for each TiB of the volume.
    pub(crate) fn report_memory(&self, report: &mut Report, volume_bytes: u64) -> Result<()> {
        let mib = f64::from(1 << 20);
        let most = self.server()?.memory_max()? as f64 / mib;
        let limit = self.memory_mib as f64 + 64.0 * volume_bytes as f64 / (1u64 << 40) as f64;
        let work = format!("most memory of the server over this table, limit {} MiB", self.memory_mib);
        report.alone(&work, "MiB", most, Target::Limit(limit));
        Ok(())
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.server.take().map_or(Ok(()), Server::kill)
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

    /// Runs a command of the command line and gives what it printed.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Result<String> {
        run(&mut self.command(arguments))
    }

    /// Runs a command with `--json` and gives the last object that it printed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let said = run(self.command(arguments).arg("--json"))?;
        match serde_json::from_str(&said) {
            Ok(value) => Ok(value),
            // Long work prints an object a line, the summary last.
            Err(_) => serde_json::from_str(said.lines().last().unwrap_or_default())
                .with_context(|| format!("{arguments:?} did not print JSON: {said}")),
        }
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

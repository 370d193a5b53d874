//! `cairn serve` as a process that is killed and started again, and the command line against it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cairn_base::Rng;
use cairn_frontend_nbd::{Address, Client, ClientOptions};
use parking_lot::Mutex;
use serde_json::Value;

use crate::program::{Running, run, wait_until};
use crate::scenario::World;

/// A server with a data directory of its own.
pub(crate) struct Cairn {
    program: PathBuf,
    /// Its data directory.
    pub(crate) data: PathBuf,
    log: PathBuf,
    arguments: Vec<String>,
    process: Mutex<Option<Running>>,
    power_cuts: bool,
    /// The volume that loses unflushed data, once it is made.
    rehearsed: AtomicBool,
}

impl Cairn {
    /// Starts a server on the folder `name`; NBD is on its socket alone.
    pub(crate) fn start(world: &World, name: &str, arguments: &[&str]) -> Result<Self> {
        let cairn = Self {
            program: world.cairn.clone(),
            data: world.folder.join(name),
            log: world.folder.join(format!("{name}.log")),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            process: Mutex::new(None),
            power_cuts: world.power_cuts,
            rehearsed: AtomicBool::new(false),
        };
        cairn.serve()?;
        Ok(cairn)
    }

    /// A server that no mirror can reach.
    pub(crate) fn start_alone(world: &World, name: &str) -> Result<Self> {
        Self::start(world, name, &["--mirror", "off"])
    }

    fn spawn(&self) -> Result<Running> {
        let mut command = self.clean();
        command.arg("serve").arg("--data").arg(&self.data).args([
            "--nbd",
            "off",
            "--iscsi",
            "127.0.0.1:0",
            "--http",
            "off",
        ]);
        Running::start(command.args(&self.arguments), &self.log)
    }

    fn clean(&self) -> Command {
        let mut command = Command::new(&self.program);
        for variable in ["CAIRN_DATA", "CAIRN_SERVER", "CAIRN_TOKEN_FILE", "CAIRN_LOG", "NOTIFY_SOCKET"] {
            command.env_remove(variable);
        }
        command
    }

    /// Starts the server, which must not run, and waits until it answers.
    pub(crate) fn serve(&self) -> Result<()> {
        assert!(self.process.lock().is_none(), "it runs");
        let mut process = self.spawn()?;
        wait_until("the server answers", || {
            if let Some(status) = process.ended()? {
                bail!("the server ended ({status}): {}", process.tail());
            }
            Ok(self.command(&["status"]).output()?.status.success())
        })?;
        *self.process.lock() = Some(process);
        if self.rehearsed.load(Ordering::Relaxed) { self.rehearse() } else { Ok(()) }
    }

    /// From now until the server ends, `vol0` has nothing that was not flushed.
    fn rehearse(&self) -> Result<()> {
        self.cli(&["volume", "rehearse", "vol0", "--lose-unflushed", "--yes"]).map(drop)
    }

    /// SIGKILL.
    pub(crate) fn kill(&self) -> Result<()> {
        let process = self.process.lock().take();
        process.context("the server does not run")?.kill()
    }

    /// Starts it, at times after killing it in the middle of its start; returns how many kills that
    /// made.
    pub(crate) fn serve_after_stumbling(&self, rng: &mut Rng) -> Result<u64> {
        let mut kills = 0;
        while rng.one_in(3) {
            let mut process = self.spawn()?;
            let moment = Duration::from_micros(rng.below(30_000));
            if process.ended_within(moment)?.is_some() {
                bail!("the server ended while it started: {}", process.tail());
            }
            process.kill()?;
            kills += 1;
        }
        self.serve()?;
        Ok(kills)
    }

    /// SIGTERM, and its end.
    pub(crate) fn stop(&self) -> Result<()> {
        let process = self.process.lock().take().context("the server does not run")?;
        run(Command::new("kill").arg(process.id().to_string()))?;
        process.succeeds()
    }

    /// A command of the command line for this server, to be run.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.clean();
        command.args(arguments).arg("--data").arg(&self.data);
        command
    }

    /// Runs a command that must succeed; returns its output.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Result<String> {
        run(&mut self.command(arguments))
    }

    /// Runs a command with `--json`, however it ends; the last object that it printed.
    pub(crate) fn said(&self, arguments: &[&str]) -> Result<Value> {
        let output = self.command(arguments).arg("--json").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        serde_json::from_str(text.lines().last().unwrap_or_default())
            .or_else(|_| serde_json::from_str(&text))
            .with_context(|| format!("{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// The same of a command that must succeed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Result<Value> {
        let value = self.said(arguments)?;
        if value["message_type"] == "error" {
            bail!("{arguments:?}: {value}");
        }
        Ok(value)
    }

    /// Makes volume `vol0`.
    pub(crate) fn make_volume(&self, bytes: u64) -> Result<()> {
        self.cli(&["volume", "create", "vol0", "--size", &bytes.to_string()])?;
        self.rehearsed.store(self.power_cuts, Ordering::Relaxed);
        if self.power_cuts { self.rehearse() } else { Ok(()) }
    }

    /// Makes volume `vol0` and its LUN `db`.
    pub(crate) fn make_lun(&self, volume_bytes: u64, lun_bytes: u64) -> Result<()> {
        self.cli(&["volume", "create", "vol0", "--size", &volume_bytes.to_string()])?;
        self.cli(&["lun", "create", "vol0/db", "--size", &lun_bytes.to_string()])?;
        self.rehearsed.store(self.power_cuts, Ordering::Relaxed);
        if self.power_cuts { self.rehearse() } else { Ok(()) }
    }

    /// A whole check, which must find nothing.
    pub(crate) fn check(&self, volume: &str) -> Result<()> {
        let said = self.cli(&["volume", "check", volume])?;
        if !said.contains("sound") {
            bail!("volume check of {volume}: {said}");
        }
        Ok(())
    }

    /// The most memory of its own that was resident at once, in bytes: without the pages of the
    /// program's file, which the kernel drops when it needs room.
    pub(crate) fn memory_max(&self) -> Result<u64> {
        let process = self.process.lock();
        let id = process.as_ref().context("the server does not run")?.id();
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let kib = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let line = line.with_context(|| format!("no {name} in the status of a process"))?;
            Ok(line.trim().trim_end_matches(" kB").parse::<u64>()?)
        };
        Ok(kib("VmHWM:")?.saturating_sub(kib("RssFile:")?) * 1024)
    }

    /// The NBD URI of an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// The NBD socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.data.join("nbd.sock")
    }

    /// Connects to an export.
    pub(crate) fn disk(&self, export: &str) -> Result<Client> {
        Ok(connect(&self.socket(), export)?)
    }

    /// The log must not report a panic. Losing a volume to another server is an error in it.
    pub(crate) fn has_not_panicked(&self) -> Result<()> {
        let log = std::fs::read_to_string(&self.log)?;
        match log.lines().find(|line| line.contains("panicked")) {
            Some(line) => bail!("the log of the server reports: {line}"),
            None => Ok(()),
        }
    }

    /// The log must not report a bug; other messages are fine.
    pub(crate) fn log_is_clean(&self) -> Result<()> {
        let log = std::fs::read_to_string(&self.log)?;
        match log.lines().find(|line| line.contains("panicked") || line.contains("ERROR")) {
            Some(line) => bail!("the log of the server reports: {line}"),
            None => Ok(()),
        }
    }
}

/// Connects to an export of a socket.
pub(crate) fn connect(socket: &Path, export: &str) -> Result<Client, cairn_frontend_nbd::ClientError> {
    Client::connect(&Address::Unix(socket.to_owned()), &ClientOptions::new(export))
}

//! A server of the demo: a child process with a data directory of its own.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_api::client::{Client, Place};
use cairn_api::{self as api, ErrorKind};
use cairn_base::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Failure;
use crate::output::note_line;

/// Longest wait for a server to start.
const START: Duration = Duration::from_secs(20);

/// The running servers of a demo, so that it can be stopped at any moment.
#[derive(Clone, Default)]
pub struct Servers(Arc<Mutex<Vec<u32>>>);

impl Servers {
    /// Stops them all. No other one starts while the caller holds the guard.
    pub fn end(&self) -> MutexGuard<'_, Vec<u32>> {
        let servers = self.0.lock();
        for process in servers.iter().filter_map(|process| Pid::from_raw(*process as i32)) {
            // A server that has just exited by itself is fine.
            let _ = kill_process(process, Signal::KILL);
        }
        servers
    }
}

/// A running server; dropping it ends it, unless it was left.
pub struct Child {
    process: Option<std::process::Child>,
    data: PathBuf,
    keep: bool,
    servers: Servers,
    /// Its API.
    pub client: Client,
}

impl Child {
    /// Starts `cairn serve` on `DIR/NAME`, its log in `DIR/NAME.log`. A server that is kept does
    /// not get the Ctrl-C of this terminal.
    pub fn start(dir: &Path, name: &str, keep: bool, servers: &Servers) -> Result<Self, Failure> {
        let data = dir.join(name);
        let log = File::create(dir.join(format!("{name}.log")))?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("serve")
            .arg("--data")
            .arg(&data)
            .args(["--nbd", "off", "--iscsi", "off", "--http", "off", "--mirror", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        for variable in ["CAIRN_SERVER", "CAIRN_DATA", "CAIRN_TOKEN_FILE"] {
            command.env_remove(variable);
        }
        if keep {
            command.process_group(0);
        }
        let client = Client::new(Place::Data(data.clone()), note_line)?;
        let process = {
            let mut servers = servers.0.lock();
            let process = command.spawn()?;
            servers.push(process.id());
            process
        };
        let mut child = Self { process: Some(process), data, keep, servers: servers.clone(), client };
        child.wait_until_it_serves()?;
        Ok(child)
    }

    fn wait_until_it_serves(&mut self) -> Result<(), Failure> {
        let deadline = Instant::now() + START;
        loop {
            let failure = match self.client.get::<api::Status>("/v1/status") {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            let ended = self.process.as_mut().map(std::process::Child::try_wait).transpose()?.flatten();
            if ended.is_some() || Instant::now() > deadline {
                let log = self.data.with_extension("log");
                let log = std::fs::read_to_string(log).unwrap_or_default();
                let message = format!("a server did not start: {}\n{}", failure.message, log.trim_end());
                return Err(Failure::new(ErrorKind::Failed, message, "fix the cause, which its log shows"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The data directory.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The process; 0 when it was killed.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, std::process::Child::id)
    }

    /// SIGKILL.
    pub fn kill(&mut self) -> Result<(), Failure> {
        if let Some(mut process) = self.process.take() {
            // Its number may be another's once it was waited for.
            let mut servers = self.servers.0.lock();
            servers.retain(|server| *server != process.id());
            process.kill()?;
            process.wait()?;
        }
        Ok(())
    }

    /// A server on the same directory, after this one was killed.
    pub fn restart(&self) -> Result<Self, Failure> {
        let dir = self.data.parent().unwrap_or(&self.data);
        let name = self.data.file_name().unwrap_or_default().to_string_lossy();
        Self::start(dir, &name, self.keep, &self.servers)
    }

    /// Lets it run on.
    pub fn leave(mut self) {
        self.process = None;
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Err(failure) = self.kill() {
            eprintln!("note: a server of the demo could not be ended: {}", failure.body.message);
        }
    }
}

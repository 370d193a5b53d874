//! An object store of others as a process that is killed and started again: `stores/store` knows
//! how each is served.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use crate::program::{Running, run, wait_until};
use crate::scenario::{Verdict, World};
use crate::server::Cairn;

/// Ports from here on are tried; each store takes three.
const PORTS: std::ops::Range<u16> = 21_000..31_000;
/// For one answer of a store that starts.
const ANSWER: Duration = Duration::from_secs(2);

/// A store that runs.
pub(crate) struct ObjectStore {
    kind: &'static str,
    folder: PathBuf,
    port: u16,
    log: PathBuf,
    process: Mutex<Option<Running>>,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("stores/store")
}

/// Three ports in a row that no one listens on. Runs at the same time begin at different places.
fn free_ports(kind: &str) -> Result<u16> {
    let of_kind: u32 = kind.bytes().map(u32::from).sum();
    let first = u16::try_from((std::process::id() + 100 * of_kind) % 3_000).unwrap_or(0) * 3;
    let free = |port: &u16| (*port..port + 3).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok());
    let found = PORTS.skip(first.into()).step_by(3).find(free);
    found.context("no three ports in a row are free")
}

impl ObjectStore {
    /// Starts a store in a folder of its own; a verdict where its programs are missing.
    pub(crate) fn start(world: &World, kind: &'static str) -> Result<Result<Self, Verdict>> {
        let found = Command::new(script()).args([kind, "find"]).output()?;
        if !found.status.success() {
            let needs = String::from_utf8_lossy(&found.stderr).trim().to_owned();
            // No package of `./test` brings it.
            return Ok(Err(Verdict::Skipped { needs, kernel: true }));
        }
        let (folder, log) = (world.folder.join(kind), world.folder.join(format!("{kind}.log")));
        std::fs::create_dir_all(&folder)?;
        let store = Self { kind, folder, port: free_ports(kind)?, log, process: Mutex::new(None) };
        store.serve()?;
        Ok(Ok(store))
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn serve(&self) -> Result<()> {
        let mut command = Command::new(script());
        command.args([self.kind, "serve"]).arg(&self.folder).arg(self.port.to_string());
        // All its processes are one group, and one kill ends them.
        let mut process = Running::start(command.process_group(0), &self.log)?;
        wait_until("the object store answers", || {
            if let Some(status) = process.ended()? {
                bail!("the object store ended ({status}): {}", process.tail());
            }
            Ok(self.answers().unwrap_or(false))
        })?;
        *self.process.lock() = Some(process);
        Ok(())
    }

    /// Whether it answers a request without credentials with anything but "not yet".
    fn answers(&self) -> Result<bool> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET /conformance/ HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")?;
        let mut status = [0; 12];
        stream.read_exact(&mut status)?;
        Ok(status.starts_with(b"HTTP/1.") && status[9] != b'5')
    }

    /// SIGKILL to all of it.
    pub(crate) fn kill(&self) -> Result<()> {
        self.process.lock().take().context("the object store does not run")?.kill()
    }

    /// Makes a bucket.
    pub(crate) fn make_bucket(&self, name: &str) -> Result<()> {
        let mut command = Command::new(script());
        command.args([self.kind, "bucket"]).arg(&self.folder).arg(self.port.to_string()).arg(name);
        run(&mut command).map(drop)
    }

    /// Adds `BUCKET/PREFIX` to a server under the name of the prefix; its answer.
    pub(crate) fn add_to(
        &self,
        cairn: &Cairn,
        (bucket, prefix): (&str, &str),
        key: Option<&Path>,
    ) -> Result<serde_json::Value> {
        let place = format!("s3://{bucket}/{prefix}");
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let credentials = self.folder.join("credentials").display().to_string();
        let mut arguments = vec!["bucket", "add", prefix, &place, "--endpoint", &endpoint];
        arguments.extend(["--credentials", &credentials]);
        let key = key.map(|key| key.display().to_string());
        if let Some(key) = &key {
            arguments.extend(["--key", key]);
        }
        cairn.json(&arguments)
    }
}

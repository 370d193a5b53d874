//! An object store on loopback for a table, and the programs that move bytes to and from it.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cairn::Cairn;
use crate::process::{Server, run};

/// The bucket of every contender.
pub(crate) const BUCKET: &str = "bench";

/// The password of repositories of restic.
const PASSWORD: &str = "bench";

/// A running store, as `conformance/stores/store` starts it.
pub(crate) struct Store {
    folder: PathBuf,
    port: u16,
    _server: Server,
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/stores/store")
}

impl Store {
    /// VersityGW in a folder of its own, with an empty bucket.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(script());
        command.args(["versitygw", "serve"]).arg(folder).arg(port.to_string());
        let ready = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let server = Server::start_until(command, &folder.join("store"), ready)?;
        let store = Self { folder: folder.to_owned(), port, _server: server };
        let mut bucket = Command::new(script());
        run(bucket.args(["versitygw", "bucket"]).arg(folder).arg(port.to_string()).arg(BUCKET))?;
        Ok(store)
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Adds the bucket to a server, with a prefix of that name, reached at `address`.
    pub(crate) fn add_to(&self, cairn: &Cairn, name: &str, address: SocketAddr) -> Result<()> {
        let endpoint = format!("http://{address}");
        let credentials = self.folder.join("credentials").display().to_string();
        let place = format!("s3://{BUCKET}/{name}");
        let add = ["bucket", "add", name, &place, "--endpoint", &endpoint, "--credentials", &credentials];
        cairn.cli(&add).map(drop)
    }

    /// The credentials, as every program takes them from its environment.
    fn with_key(&self, command: &mut Command) -> Result<()> {
        let text = std::fs::read_to_string(self.folder.join("credentials"))?;
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_prefix('='));
            line.map(|value| value.trim().to_owned()).with_context(|| format!("no {name}"))
        };
        command.env("AWS_ACCESS_KEY_ID", of("aws_access_key_id")?);
        command.env("AWS_SECRET_ACCESS_KEY", of("aws_secret_access_key")?).env("AWS_REGION", "us-east-1");
        // The store is on loopback without TLS, and rclone of Debian refuses to start with it.
        command.env_remove("AWS_CA_BUNDLE");
        Ok(())
    }

    /// s5cmd, with its defaults.
    pub(crate) fn s5cmd(&self, address: SocketAddr, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new("s5cmd");
        command.arg("--endpoint-url").arg(format!("http://{address}")).args(arguments);
        self.with_key(&mut command)?;
        Ok(command)
    }

    /// rclone, with its defaults; `REMOTE` in an argument is the bucket.
    pub(crate) fn rclone(&self, arguments: &[&str]) -> Result<Command> {
        let remote = format!(
            ":s3,provider=Other,env_auth=true,force_path_style=true,endpoint='http://{}':{BUCKET}",
            self.address()
        );
        let mut command = Command::new("rclone");
        // It reads no configuration of the machine.
        command.args(["--config", "/dev/null", "--quiet"]);
        command.args(arguments.iter().map(|argument| argument.replace("REMOTE", &remote)));
        self.with_key(&mut command)?;
        Ok(command)
    }

    /// restic, with its defaults, on the repository of that name.
    pub(crate) fn restic(&self, repository: &str, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new("restic");
        command.arg("--quiet").arg("--repo");
        command.arg(format!("s3:http://{}/{BUCKET}/{repository}", self.address())).args(arguments);
        command.env("RESTIC_PASSWORD", PASSWORD).env("RESTIC_CACHE_DIR", self.folder.join("restic-cache"));
        self.with_key(&mut command)?;
        Ok(command)
    }
}

/// A program that a row needs.
pub(crate) fn ask_for(program: &str) -> Result<()> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return Ok(());
    }
    bail!("{program} is not installed; rclone and restic are Debian packages, s5cmd is a Python package")
}

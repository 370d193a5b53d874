//! A PostgreSQL cluster in a folder, and clients that know which of their transactions were
//! acknowledged.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use crate::program::{PATIENCE, Running, run, wait_until};
use crate::scenario::World;

/// The user that it runs as; it refuses to be root.
const USER: &str = "postgres";
/// Clients that insert rows and note each answer.
const CLIENTS: usize = 3;

/// The programs of the newest PostgreSQL of Debian's packages.
pub(crate) fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let folders = versions.flatten().map(|version| version.path().join("bin"));
    folders.filter(|folder| folder.join("postgres").is_file() && folder.join("initdb").is_file()).max()
}

/// A cluster.
pub(crate) struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    sockets: PathBuf,
    log: PathBuf,
    process: Option<Running>,
}

impl Postgres {
    /// The cluster in `folder`, which is made there when `new`. Starts it and waits until it has
    /// recovered.
    pub(crate) fn start(world: &World, folder: &Path, name: &str, new: bool) -> Result<Self> {
        let programs = programs().context("PostgreSQL is not installed")?;
        let sockets = world.folder.join(format!("sockets-{name}"));
        std::fs::create_dir_all(&sockets)?;
        let data = folder.join("cluster");
        let log = world.folder.join(format!("postgres-{name}.log"));
        let mut postgres = Self { programs, data, sockets, log, process: None };
        if new {
            std::fs::create_dir(&postgres.data)?;
            run(Command::new("chown").arg(USER).arg(&postgres.data).arg(&postgres.sockets))?;
            let mut initdb = postgres.as_user("initdb");
            initdb
                .args(["--auth=trust", "--data-checksums", "--username", USER, "--pgdata"])
                .arg(&postgres.data);
            run(&mut initdb)?;
        } else {
            run(Command::new("chown").arg(USER).arg(&postgres.sockets))?;
        }
        postgres.serve()?;
        Ok(postgres)
    }

    fn as_user(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]).arg(self.programs.join(program));
        // It must be able to enter the folder that it is started in.
        command.current_dir("/");
        command
    }

    fn serve(&mut self) -> Result<()> {
        let mut command = self.as_user("postgres");
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.sockets).args(["-c", "listen_addresses="]);
        // Checkpoints often, so that kills hit them too.
        for setting in ["shared_buffers=16MB", "checkpoint_timeout=30s", "max_wal_size=64MB"] {
            command.args(["-c", setting]);
        }
        let mut process = Running::start(&mut command, &self.log)?;
        wait_until("PostgreSQL has recovered", || {
            if let Some(status) = process.ended()? {
                bail!("the database does not come up ({status}): {}", process.tail());
            }
            let mut ready = Command::new(self.programs.join("pg_isready"));
            Ok(ready.args(["-q", "-U", USER, "-h"]).arg(&self.sockets).status()?.success())
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// A client program, connected.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-h").arg(&self.sockets).args(["-U", USER]);
        command
    }

    /// Runs SQL; returns its output, without headers.
    pub(crate) fn sql(&self, text: &str) -> Result<String> {
        run(self.client("psql").args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-c", text]))
    }

    /// Makes the tables of pgbench and of the acknowledged rows.
    pub(crate) fn make_tables(&self) -> Result<()> {
        self.sql("create table acknowledged (id bigint primary key, filler text)")?;
        run(self.client("pgbench").args(["--initialize", "--quiet", "--scale=1", "postgres"])).map(drop)
    }

    /// Ends it at once, without a checkpoint, and leaves its files as they are. SIGKILL would not
    /// reach the children that wait for a failed one, and they would keep the file system busy.
    pub(crate) fn end_at_once(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the database does not run")?;
        run(Command::new("kill").args(["-QUIT", &process.id().to_string()]))?;
        match process.ended_within(PATIENCE)? {
            Some(_) => Ok(()),
            None => bail!("the database does not end: {}", process.tail()),
        }
    }

    /// Ends it in order.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let process = self.process.take().context("the database does not run")?;
        run(Command::new("kill").args(["-INT", &process.id().to_string()]))?;
        process.succeeds()
    }

    /// The acknowledged rows that are there.
    pub(crate) fn rows(&self) -> Result<HashSet<u64>> {
        let rows = self.sql("select id from acknowledged")?;
        Ok(rows.lines().map(str::parse).collect::<Result<_, _>>()?)
    }

    /// Checks that every required row exists, that no unsent row does, and that pgbench's
    /// invariants hold.
    pub(crate) fn compare(&self, ledger: &Ledger, must_have: &[u64]) -> Result<u64> {
        let rows = self.rows()?;
        let missing: Vec<_> = must_have.iter().filter(|id| !rows.contains(id)).collect();
        if !missing.is_empty() {
            bail!(
                "{} acknowledged transactions are missing: {:?}",
                missing.len(),
                &missing[..missing.len().min(20)]
            );
        }
        let sent = ledger.sent.load(Ordering::SeqCst);
        if let Some(foreign) = rows.iter().find(|id| **id >= sent) {
            bail!("row {foreign} was never sent");
        }
        let same = self.sql(
            "select (select sum(abalance) from pgbench_accounts) = s and (select sum(bbalance) from pgbench_branches) = s \
             and (select sum(tbalance) from pgbench_tellers) = s \
             from (select coalesce(sum(delta), 0) as s from pgbench_history) as history",
        )?;
        if same.trim() != "t" {
            bail!("the balances of pgbench do not add up");
        }
        Ok(rows.len() as u64)
    }

    /// Compares every index with its table.
    pub(crate) fn check_indexes(&self) -> Result<()> {
        run(self.client("pg_amcheck").args(["--install-missing", "--heapallindexed", "postgres"])).map(drop)
    }

    /// Starts pgbench and the clients that note each answer.
    pub(crate) fn load(&self, world: &World, ledger: &Arc<Ledger>) -> Result<Load> {
        let mut pgbench = self.client("pgbench");
        pgbench.args(["--client=4", "--time=3600", "--no-vacuum", "postgres"]);
        let pgbench = Running::start(&mut pgbench, &world.folder.join("pgbench.log"))?;
        let clients = (0..CLIENTS).map(|_| self.noting_client(world, ledger)).collect::<Result<_>>()?;
        Ok(Load { _pgbench: pgbench, clients })
    }

    /// Transactions a second of pgbench's own load during `seconds`, with four clients and nothing
    /// else.
    pub(crate) fn rate(&self, seconds: u32) -> Result<u64> {
        let mut pgbench = self.client("pgbench");
        let said =
            run(pgbench.args(["--client=4", &format!("--time={seconds}"), "--no-vacuum", "postgres"]))?;
        let rate =
            said.lines().find_map(|line| line.strip_prefix("tps = ")).context("pgbench gives no rate")?;
        let number = rate.split(' ').next().unwrap_or_default().parse::<f64>()?;
        Ok(number.round() as u64)
    }

    fn noting_client(&self, world: &World, ledger: &Arc<Ledger>) -> Result<Client> {
        let log = File::options().create(true).append(true).open(world.folder.join("psql.log"))?;
        let mut psql = self.client("psql");
        psql.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-d", "postgres"]);
        let mut child = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let (mut to, from) = child.stdin.take().zip(child.stdout.take()).context("no pipes")?;
        let ledger = ledger.clone();
        let thread = std::thread::spawn(move || {
            let mut answers = BufReader::new(from).lines();
            loop {
                let id = ledger.sent.fetch_add(1, Ordering::SeqCst);
                // The echo comes only after the commit was answered.
                let text = format!(
                    "insert into acknowledged values ({id}, repeat('x', {}));\n\\echo {id}\n",
                    id % 700
                );
                if to.write_all(text.as_bytes()).is_err() {
                    return;
                }
                match answers.next() {
                    Some(Ok(line)) if line == id.to_string() => ledger.note(id),
                    _ => return,
                }
            }
        });
        Ok(Client { child, thread: Some(thread) })
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if self.process.is_some() {
            // Nothing more can be done about one that does not end.
            let _ = self.end_at_once();
        }
    }
}

/// Transactions that were sent, and those whose commit was answered, which also go to a file
/// outside.
pub(crate) struct Ledger {
    sent: AtomicU64,
    acknowledged: Mutex<(Vec<u64>, File)>,
}

impl Ledger {
    /// An empty one, with its file in the world's folder.
    pub(crate) fn new(world: &World) -> Result<Self> {
        let file = File::create(world.folder.join("acknowledged"))?;
        Ok(Self { sent: AtomicU64::new(1), acknowledged: Mutex::new((Vec::new(), file)) })
    }

    fn note(&self, id: u64) {
        let mut acknowledged = self.acknowledged.lock();
        acknowledged.0.push(id);
        // For readers of a failure; the run itself uses the list.
        let _ = writeln!(acknowledged.1, "{id}");
    }

    /// All that were answered so far.
    pub(crate) fn acknowledged(&self) -> Vec<u64> {
        self.acknowledged.lock().0.clone()
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.acknowledged.lock().0.len() as u64
    }
}

struct Client {
    child: Child,
    thread: Option<JoinHandle<()>>,
}

/// Clients that run; dropping it ends them.
pub(crate) struct Load {
    _pgbench: Running,
    clients: Vec<Client>,
}

impl Load {
    /// Whether one has failed.
    pub(crate) fn is_broken(&self) -> bool {
        self.clients.iter().any(|client| client.thread.as_ref().is_none_or(JoinHandle::is_finished))
    }

    /// Ends them. All transactions acknowledged until then are in the ledger.
    pub(crate) fn end(self) {}
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have ended by itself; its end ends the thread.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

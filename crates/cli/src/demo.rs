//! `cairn demo`: two servers, real files, a mirror that follows changes, a disaster in the middle
//! of a transfer, failover, and the proof by hash that the mirror holds exactly the last image that
//! was transferred.

mod child;
mod image;
mod model;
mod report;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cairn_api::{self as api, ErrorKind};
use cairn_base::Rng;
use cairn_frontend_nbd::{Address, Client as NbdClient, ClientError, ClientOptions};
use indicatif::ProgressBar;

use crate::arguments::Demo;
use crate::exit::Failure;
use crate::output::{Output, size};
use child::{Child, Servers};
use model::Model;
use report::{Image, Report};

const VOLUME: &str = "vol0";
const LUN: &str = "vol0/disk";
/// Updates that go through before the disaster.
const ROUNDS: usize = 3;
/// An update begins that often.
const EVERY: Duration = Duration::from_millis(2500);
/// Bytes changed before each update.
const CHANGE: u64 = 16 << 20;
/// Bytes changed at a time between updates, and the interval.
const TRICKLE: u64 = 64 << 10;
const TRICKLE_EVERY: Duration = Duration::from_millis(50);
/// Bytes changed before the disaster: enough that the kill finds the transfer under way.
const LAST_CHANGE: u64 = 192 << 20;
/// The kill comes when this part of the last transfer, in per cent, has arrived.
const KILL_AT: u64 = 30;
/// Longest wait for anything that the demo waits for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time for the removal of its folder.
const REMOVING: Duration = Duration::from_secs(5);

/// Runs the demo.
pub fn run(demo: &Demo, output: Output) -> Result<(), Failure> {
    let started = Instant::now();
    let dir = tempfile::Builder::new().prefix("cairn-demo-").tempdir()?;
    let servers = Servers::default();
    end_on_signals(dir.path().to_owned(), demo.keep, servers.clone())?;
    let (folder, keep, report) = (dir.path().to_owned(), demo.keep, Report::default());
    let mut story = Story { output, dir: folder, keep, servers, report };
    let (source, destination) = match story.tell(demo) {
        Ok(servers) => servers,
        Err(mut failure) if demo.keep => {
            // Its servers have ended.
            let kept = dir.keep();
            failure.body.next = format!(
                "{}; what there is, with the logs of both servers, stays in {}",
                failure.body.next,
                kept.display()
            );
            return Err(failure);
        }
        Err(failure) => return Err(failure),
    };
    story.report.total_ms = started.elapsed().as_millis() as u64;
    let good = story.report.proved;
    output.show(&story.report, Report::table);
    if demo.keep {
        let kept = dir.keep();
        let source = source.restart()?;
        source.leave();
        destination.leave();
        let program = std::env::current_exe()?;
        output.tell(&serde_json::json!({ "kept": kept }), |_| next_steps(&program, &kept));
    }
    if good {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::Damaged,
        "the mirror does not hold the image that it names: this is a bug",
        "run it again with --keep, and report it with both data directories",
    ))
}

struct Story {
    output: Output,
    dir: PathBuf,
    keep: bool,
    servers: Servers,
    report: Report,
}

impl Story {
    /// Begins a step: the bar that the user watches, and the moment.
    fn step(&self, what: &str, total: u64) -> (ProgressBar, Instant) {
        if !self.output.json && !self.output.quiet {
            eprintln!("{:>2}. {what}", self.report.steps.len() + 1);
        }
        let bar = self.output.bar(total);
        bar.set_message("   ".to_owned());
        (bar, Instant::now())
    }

    fn done(&mut self, (bar, began): (ProgressBar, Instant), name: &str, note: String) {
        bar.finish_and_clear();
        self.report.step(name, began.elapsed(), note);
    }

    fn tell(&mut self, demo: &Demo) -> Result<(Child, Child), Failure> {
        let step = self.step("start two servers, each a process of its own", 0);
        let mut source = Child::start(&self.dir, "source", self.keep, &self.servers)?;
        let destination = Child::start(&self.dir, "destination", self.keep, &self.servers)?;
        self.done(step, "two servers", format!("pids {} and {}", source.pid(), destination.pid()));

        let step = self.step("make a disk image of real files of this machine", demo.budget.0);
        let picture = image::build(&self.dir, demo.budget.0, &step.0)?;
        self.done(step, "disk image", picture.note());
        let mut model = Model::open(&picture.path, picture.length)?;

        make_lun(&source, picture.length)?;
        let step = self.step("put it on a LUN of the source through NBD", model.data_bytes());
        let mut disk = connect(&source)?;
        model.copy_to(&mut disk, &step.0)?;
        let rate = model.data_bytes() as f64 / step.1.elapsed().as_secs_f64().max(1e-9);
        self.done(
            step,
            "write through NBD",
            format!("{} at {}/s", size(model.data_bytes()), size(rate as u64)),
        );

        let mut images = vec![self.baseline(&source, &destination, &model)?];
        let mut rng = Rng::new(u64::from(std::process::id()));
        let mut written =
            self.updates((&source, &destination), &mut model, &mut disk, &mut rng, &mut images)?;
        let step = self.step("kill the source (SIGKILL) in the middle of a transfer", LAST_CHANGE);
        let change = LAST_CHANGE.min(picture.length / 2);
        written += model.change(&mut disk, &mut rng, change)?;
        images.push(self.begin_update(&source, &destination, &model, written)?);
        let job = self.running(&destination)?;
        let arrived = kill_in_the_middle(&job, &mut source, &destination, &step.0)?;
        let killed = Instant::now();
        drop(disk);
        self.done(step, "kill the source", format!("{} of the transfer had arrived", size(arrived)));

        let expected = self.fail_over(&destination, &images, written, killed)?;
        self.prove(&destination, picture.length, expected)?;
        Ok((source, destination))
    }

    /// Makes the mirror, and returns its first image.
    fn baseline(&mut self, source: &Child, destination: &Child, model: &Model) -> Result<Image, Failure> {
        let step = self.step("make the mirror with one token: baseline, encrypted", 0);
        let invitation: api::Invitation = source.client.post("/v1/peers/invite", &api::Invite::default())?;
        let request = api::CreateMirror {
            volume: VOLUME.to_owned(),
            name: None,
            token: invitation.token,
            every_ms: None,
            continuous: false,
            cron: None,
            zone: None,
            lock_ms: None,
            lock_key: None,
            devices: Vec::new(),
            log_device: None,
            history: None,
            rpo_ms: None,
            no_hold: false,
            stall_ms: None,
            link: api::LinkWish::default(),
            seed: None,
        };
        let before = model.hash();
        let job: api::Job = destination.client.post("/v1/mirrors", &request)?;
        let snapshot = self.snapshot_of(&job, source, destination)?;
        let image = Image { snapshot, hash: before, at: Instant::now(), written_bytes: 0 };
        let mirror = wait(&job, destination, &step.0)?;
        let last = mirror.last.clone().unwrap_or_default();
        let rate = last.sent_bytes as f64 / step.1.elapsed().as_secs_f64().max(1e-9);
        self.done(step, "baseline", format!("{} at {}/s", size(last.sent_bytes), size(rate as u64)));
        self.report.transfer(&last);
        Ok(image)
    }

    /// Changes data while updates run. Returns the number of written bytes.
    fn updates(
        &mut self,
        (source, destination): (&Child, &Child),
        model: &mut Model,
        disk: &mut NbdClient,
        rng: &mut Rng,
        images: &mut Vec<Image>,
    ) -> Result<u64, Failure> {
        let step = self.step("change data while updates run", ROUNDS as u64 * CHANGE);
        let mut written = 0;
        let mut next = Instant::now();
        for _ in 0..ROUNDS {
            while Instant::now() < next {
                written += model.change(disk, rng, TRICKLE)?;
                std::thread::sleep(TRICKLE_EVERY);
            }
            next = Instant::now() + EVERY;
            written += model.change(disk, rng, CHANGE)?;
            step.0.inc(CHANGE);
            images.push(self.begin_update(source, destination, model, written)?);
            let job = self.running(destination)?;
            // Clients continue while the image travels; their new writes belong to the next one.
            written += model.change(disk, rng, 1 << 20)?;
            let mirror = wait(&job, destination, &ProgressBar::hidden())?;
            self.report.transfer(&mirror.last.unwrap_or_default());
        }
        let note = format!("{ROUNDS} updates sent {}", size(self.report.updates_sent_bytes()));
        self.done(step, "updates", note);
        Ok(written)
    }

    /// Makes the destination writable. Returns the hash that its content must have.
    fn fail_over(
        &mut self,
        destination: &Child,
        images: &[Image],
        written: u64,
        killed: Instant,
    ) -> Result<blake3::Hash, Failure> {
        let step = self.step("fail over to the destination", 0);
        let outcome: api::Failover =
            destination.client.post("/v1/mirrors/vol0/failover", &api::FailoverRequest { dry_run: false })?;
        let shown = outcome.image.unwrap_or_default();
        let image = images.iter().find(|image| image.snapshot == shown).ok_or_else(|| {
            Failure::new(
                ErrorKind::Failed,
                format!("the mirror shows `{shown}`, which the demo never saw"),
                "run it again with --keep and look at `cairn snapshot list vol0`",
            )
        })?;
        self.report.image = shown.clone();
        self.report.lost_bytes = written - image.written_bytes;
        self.report.lost_ms = killed.duration_since(image.at).as_millis() as u64;
        let expected = image.hash;
        self.done(step, "failover", format!("the mirror takes writes, at {shown}"));
        Ok(expected)
    }

    fn prove(&mut self, destination: &Child, lun_bytes: u64, expected: blake3::Hash) -> Result<(), Failure> {
        let step = self.step("read the mirror back through NBD and compare hashes", lun_bytes);
        let mut disk = connect(destination)?;
        let found = model::hash_of(&mut disk, &step.0)?;
        self.report.proved = found == expected;
        self.report.expected = expected.to_hex().to_string();
        self.report.found = found.to_hex().to_string();
        let verdict = if self.report.proved { "the same, block for block" } else { "DIFFERENT" };
        self.done(step, "proof by hash", verdict.to_owned());
        Ok(())
    }

    /// Starts an update, and returns when the source has frozen the image that it brings.
    fn begin_update(
        &self,
        source: &Child,
        destination: &Child,
        model: &Model,
        written_bytes: u64,
    ) -> Result<Image, Failure> {
        let hash = model.hash();
        let job: api::Job =
            destination.client.post("/v1/mirrors/vol0/update", &api::UpdateRequest::default())?;
        let snapshot = self.snapshot_of(&job, source, destination)?;
        Ok(Image { snapshot, hash, at: Instant::now(), written_bytes })
    }

    /// The newest update of the destination.
    fn running(&self, destination: &Child) -> Result<api::Job, Failure> {
        let jobs: Vec<api::Job> = destination.client.get("/v1/jobs")?;
        jobs.into_iter().next().ok_or_else(|| {
            Failure::new(ErrorKind::Failed, "the update is gone", "see the log of the destination")
        })
    }

    /// Waits until the source has taken the snapshot for `job`, and returns its name. The demo
    /// writes nothing meanwhile, so that it knows the content of the snapshot.
    fn snapshot_of(&self, job: &api::Job, source: &Child, destination: &Child) -> Result<String, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let job: api::Job = destination.client.get(&format!("/v1/jobs/{}", job.id))?;
            let mirrors: Vec<api::Mirror> = destination.client.get("/v1/mirrors")?;
            let transfer = mirrors.into_iter().next().and_then(|mirror| mirror.last);
            let named = transfer.filter(|last| last.started_ms > 0).and_then(|last| last.snapshot);
            let over = job.state != api::JobState::Running;
            if let Some(error) = job.error {
                return Err(error.into());
            }
            let snapshots: Vec<api::Snapshot> = source.client.get("/v1/volumes/vol0/snapshots")?;
            let newest = snapshots.last().map(|snapshot| snapshot.name.clone());
            if let (Some(named), Some(newest)) = (named, newest)
                && (newest.ends_with(&format!("@{named}")) || newest == named)
            {
                return Ok(named);
            }
            if over || Instant::now() > deadline {
                return Err(Failure::new(
                    ErrorKind::Failed,
                    "the update named no snapshot",
                    "see the logs of both servers with --keep",
                ));
            }
        }
    }
}

/// Opens the LUN through a server's NBD socket.
fn make_lun(source: &Child, lun_bytes: u64) -> Result<(), Failure> {
    let volume_bytes = (lun_bytes * 4).next_multiple_of(1 << 30);
    let volume = api::CreateVolume {
        name: VOLUME.to_owned(),
        size_bytes: Some(volume_bytes),
        devices: Vec::new(),
        log_device: None,
        history: None,
        bucket: None,
        cache: None,
        no_schedule: true,
    };
    let _: api::Volume = source.client.post("/v1/volumes", &volume)?;
    let lun = api::CreateLun { name: "disk".to_owned(), size_bytes: lun_bytes };
    let _: api::Lun = source.client.post("/v1/volumes/vol0/luns", &lun)?;
    Ok(())
}

fn connect(server: &Child) -> Result<NbdClient, Failure> {
    let address = Address::Unix(server.data().join("nbd.sock"));
    Ok(NbdClient::connect(&address, &ClientOptions::new(LUN))?)
}

/// Follows a transfer to its end.
fn wait(job: &api::Job, destination: &Child, bar: &ProgressBar) -> Result<api::Mirror, Failure> {
    let mut job = job.clone();
    while job.state == api::JobState::Running {
        bar.set_length(job.total_bytes);
        bar.set_position(job.done_bytes);
        std::thread::sleep(Duration::from_millis(20));
        job = destination.client.get(&format!("/v1/jobs/{}", job.id))?;
    }
    match (job.error, job.outcome) {
        (None, Some(api::JobOutcome::Mirror(mirror))) => Ok(*mirror),
        (Some(error), _) => Err(error.into()),
        _ => Err(Failure::new(ErrorKind::Failed, "the transfer sent nothing", "see the destination's log")),
    }
}

/// Kills the source once a good part of the transfer has arrived; the bytes that had.
fn kill_in_the_middle(
    job: &api::Job,
    source: &mut Child,
    destination: &Child,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    let path = format!("/v1/jobs/{}", job.id);
    loop {
        let job: api::Job = destination.client.get(&path)?;
        bar.set_length(job.total_bytes);
        bar.set_position(job.done_bytes);
        let enough = job.total_bytes > 0 && job.done_bytes * 100 >= job.total_bytes * KILL_AT;
        if enough || job.state != api::JobState::Running {
            source.kill()?;
            break;
        }
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let job: api::Job = destination.client.get(&path)?;
        if job.state != api::JobState::Running {
            return Ok(job.done_bytes);
        }
        if Instant::now() > deadline {
            return Err(Failure::new(
                ErrorKind::Failed,
                "the destination has not noticed that the source is gone",
                "this is a bug; see its log with --keep",
            ));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ctrl-C, or another signal that ends it: its servers, which may not have got the signal, end
/// first, and then only the folder is left.
fn end_on_signals(dir: PathBuf, keep: bool, servers: Servers) -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = {
        let _inside = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
            .map(signal)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        let any = std::future::poll_fn(|context| {
            let came = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
            if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        });
        runtime.block_on(any);
        // None comes any more.
        let _ended = servers.end();
        if keep {
            eprintln!("note: what there is stays in {}", dir.display());
        } else if let Err(error) = remove(&dir) {
            eprintln!("note: {} stays: {error}", dir.display());
        }
        std::process::exit(130);
    })?;
    Ok(())
}

/// Removes a folder in which others may still make files: servers that are being ended, and work in
/// progress.
fn remove(dir: &Path) -> std::io::Result<()> {
    let began = Instant::now();
    loop {
        match std::fs::remove_dir_all(dir) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(_) if began.elapsed() < REMOVING => std::thread::sleep(Duration::from_millis(20)),
            outcome => return outcome,
        }
    }
}

fn next_steps(program: &Path, dir: &Path) -> String {
    let cairn = program.display();
    let (source, destination) = (dir.join("source"), dir.join("destination"));
    let (source, destination) = (source.display(), destination.display());
    format!(
        "both servers run on (the source was started again); try:\n  \
         {cairn} status --data {destination}\n  \
         {cairn} snapshot list vol0 --data {destination}\n  \
         nbdinfo 'nbd+unix:///vol0/disk?socket={destination}/nbd.sock'\n  \
         {cairn} status --data {source}\nto end them and remove everything:\n  \
         kill $({cairn} status --json --data {source} | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/') \
         $({cairn} status --json --data {destination} | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/'); rm -r {}\n\
         to open their web pages:\n  \
         {cairn} web --data {source}\n  \
         {cairn} web --data {destination}",
        dir.display()
    )
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Failure::new(
            ErrorKind::Failed,
            format!("NBD: {error}"),
            "run `cairn demo --keep`, and look at the logs beside the data directories",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_that_is_kept_ends_with_the_lines_that_open_both_pages() {
        let text = next_steps(Path::new("/bin/cairn"), Path::new("/tmp/cairn-demo"));
        let last: Vec<&str> = text.lines().rev().take(3).map(str::trim).collect();
        let web = |name: &str| format!("/bin/cairn web --data /tmp/cairn-demo/{name}");
        assert_eq!(last, [web("destination"), web("source"), "to open their web pages:".to_owned()]);
    }
}

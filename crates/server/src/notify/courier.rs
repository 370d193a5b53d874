//! The thread of a target: delivers what waits for it, one message at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_notify::{Failure, Fault, Message, Pace, Program, Shape, Sleep, Target, body};

use crate::notify::{Kept, Notify, rng};
use crate::work::programs;

/// The longest sleep without a look whether the target is still there.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How often a ping that is due looks whether all is well.
const WELL_EVERY: Duration = Duration::from_secs(1);
/// How often a running delivery looks whether it is still wanted.
const WANTED_EVERY: Duration = Duration::from_millis(50);

/// A target has a thread for as long as this lives.
struct Post(Arc<Notify>, String);

impl Drop for Post {
    fn drop(&mut self) {
        self.0.running.lock().remove(&self.1);
    }
}

/// Starts the threads of targets that have none. One that gets no thread is tried at the next look.
pub(super) fn start(notify: &Arc<Notify>, targets: &[Kept]) {
    for kept in targets {
        if !notify.running.lock().insert(kept.series.clone()) {
            continue;
        }
        let post = Post(notify.clone(), kept.series.clone());
        let thread = std::thread::Builder::new().name("courier".to_owned());
        if let Err(error) = thread.spawn(move || run(&post.0, &post.1)) {
            tracing::warn!(target = kept.name, %error, "notifications to a target wait for a thread");
        }
    }
}

/// Delivers until the target is deleted or the server ends.
fn run(notify: &Notify, series: &str) {
    let (mut pace, mut rng, mut news) = (Pace::default(), rng(), 0);
    // By the monotonic clock.
    let mut not_before = Duration::ZERO;
    let mut before: Option<(Target, u64)> = None;
    while let Some(kept) = notify.of_series(series).filter(|_| !notify.is_ending()) {
        let pokes = notify.health.lock().get(&kept.name).map_or(0, |health| health.pokes);
        let this = (kept.target.clone(), pokes);
        // A target that was changed, or tested with success, is tried at once.
        if before.as_ref() != Some(&this) {
            (pace, not_before, before) = (Pace::default(), Duration::ZERO, Some(this));
        }
        let left = not_before.saturating_sub(notify.clock.monotonic());
        let work = if left.is_zero() { notify.work_for(&kept) } else { None };
        let Some(work) = work else {
            let time = match kept.target {
                // That all is well again is no news.
                Target::Ping(_) if left.is_zero() => WELL_EVERY,
                _ if left.is_zero() => LOOK_EVERY,
                _ => left.min(LOOK_EVERY),
            };
            notify.wait(&mut news, time);
            continue;
        };
        let outcome = notify.deliver(&kept, work.as_ref(), &|| {
            notify.is_ending() || notify.of_series(series).as_ref() != Some(&kept)
        });
        let Some(outcome) = outcome else { continue };
        notify.note(&kept, &outcome);
        let wait = match &outcome {
            Ok(_) => {
                pace.succeeded();
                if let Some(message) = &work {
                    notify.at_desk(&kept, |desk| (desk.delivered(&message.id), true));
                }
                Duration::ZERO
            }
            Err(failure) => {
                tracing::warn!(target = kept.name, failure.message, "a notification was not delivered");
                match (pace.failed(failure, &mut rng), &work) {
                    (Sleep::Discard(wait), Some(message)) => {
                        tracing::warn!(
                            target = kept.name,
                            "a notification that is refused each time is discarded"
                        );
                        notify.at_desk(&kept, |desk| (desk.discard(&message.id), true));
                        wait
                    }
                    (Sleep::For(wait) | Sleep::Discard(wait), _) => wait,
                }
            }
        };
        let wait = match &kept.target {
            Target::Ping(ping) if outcome.is_ok() => ping.every(),
            Target::Ping(ping) => wait.min(ping.every()),
            _ => wait,
        };
        not_before = notify.clock.monotonic().saturating_add(wait);
    }
}

impl Notify {
    /// The next delivery: a message, or a ping.
    fn work_for(&self, kept: &Kept) -> Option<Option<Message>> {
        match kept.target {
            Target::Ping(_) => self.is_well(kept).then_some(None),
            _ => self.at_desk(kept, |desk| (desk.head().cloned(), false)).map(Some),
        }
    }

    /// One try. None if it is not wanted any more.
    pub(super) fn deliver(
        &self,
        kept: &Kept,
        message: Option<&Message>,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Option<Result<String, Failure>> {
        if let (Target::Program(program), Some(message)) = (&kept.target, message) {
            return self.run_program(&kept.name, program, message, is_unwanted);
        }
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                let next = "look at the limits of this machine for open files and threads";
                return Some(Err(Failure::new(
                    Fault::Passing,
                    format!("the system gives no runtime: {error}"),
                    next,
                )));
            }
        };
        let sent = async {
            match (&kept.target, message) {
                (Target::Ping(ping), _) => cairn_notify::ping(ping).await,
                (target, Some(message)) => {
                    cairn_notify::send(target, message, &self.origin, self.now_ms() / 1000).await
                }
                (_, None) => Ok(String::new()),
            }
        };
        let outcome = runtime.block_on(async {
            let unwanted = async {
                while !is_unwanted() {
                    tokio::time::sleep(WANTED_EVERY).await;
                }
            };
            tokio::select! {
                outcome = sent => Some(outcome),
                () = unwanted => None,
            }
        });
        // A name server that does not answer keeps a thread of it for a while.
        runtime.shutdown_background();
        outcome
    }

    /// Runs a command with the message on its standard input.
    fn run_program(
        &self,
        name: &str,
        program: &Program,
        message: &Message,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Option<Result<String, Failure>> {
        let next = "run it by hand as the server's user, with a JSON object on its standard input";
        let failed =
            |how: String| Some(Err(Failure::new(Fault::Passing, format!("the command {how}"), next)));
        let input = body(Shape::Webhook, message, &self.origin, "").to_string().into_bytes();
        let variables = [("CAIRN_NOTIFY", name), ("CAIRN_SEVERITY", message.severity().word())];
        let (mut child, said) = match programs::start(&program.command, &variables, Some(input)) {
            Ok(started) => started,
            Err(error) => return failed(format!("can't be started: {error}")),
        };
        let until = Instant::now() + Duration::from_millis(program.timeout_ms);
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => {
                    return Some(Ok(format!("the command ended with 0{}", said.last())));
                }
                Ok(Some(status)) => return failed(format!("failed: {status}{}", said.last())),
                Ok(None) if is_unwanted() => {
                    programs::end(child);
                    return None;
                }
                Ok(None) if Instant::now() < until => std::thread::sleep(programs::LOOK_EVERY),
                Ok(None) => {
                    programs::end(child);
                    let limit = program.timeout_ms;
                    return failed(format!("did not end within {limit} ms, and was killed{}", said.last()));
                }
                Err(error) => {
                    programs::end(child);
                    return failed(format!("can't be waited for: {error}"));
                }
            }
        }
    }
}

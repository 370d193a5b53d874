//! The threads that look at the problems of the server. One makes the status; a disk that hangs may
//! hold it. The other waits for it no longer than a moment, and reports that it hangs.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::daemon::server::Server;
use crate::error::ServerError;
use crate::notify::standing::of_status;
use crate::notify::{Notify, courier, hangs};

/// How often problems are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Time for a status, before that it takes so long is a problem.
const PATIENCE: Duration = Duration::from_secs(30);

/// The thread that decides which messages are due; it ends when this is dropped.
pub(crate) struct Watcher {
    notify: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(crate) fn start(server: &Arc<Server>) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Thread { what: "notifications", source };
        let notify = server.notify.clone();
        let ask = looker(Arc::downgrade(server), notify.clone()).map_err(failed)?;
        let (own, home) = (notify.clone(), server.clone());
        let watch = move || {
            let (mut news, mut asked) = (0, None::<Duration>);
            while !own.is_ending() {
                home.home.look(home.data_dir());
                let targets = own.targets();
                courier::start(&own, &targets);
                if !targets.is_empty() {
                    turn(&own, &ask, &mut asked);
                }
                let begun = own.clock.monotonic();
                // News of other threads do not hurry this one.
                while !own.is_ending() {
                    let left = LOOK_EVERY.saturating_sub(own.clock.monotonic().saturating_sub(begun));
                    if left.is_zero() {
                        break;
                    }
                    own.wait(&mut news, left);
                }
            }
        };
        let thread = std::thread::Builder::new().name("notify".to_owned()).spawn(watch).map_err(failed)?;
        Ok(Self { notify, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.notify.end();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of notifications had panicked");
        }
    }
}

/// Looks at the problems that were found last, and asks for new ones. `asked` is the time at which
/// the thread for these was asked, while it has not answered.
fn turn(notify: &Notify, ask: &SyncSender<()>, asked: &mut Option<Duration>) {
    let now = notify.clock.monotonic();
    let (mut problems, at) = {
        let seen = notify.seen.lock();
        (seen.problems.clone(), seen.at)
    };
    let is_answered = asked.is_none_or(|asked| at.is_some_and(|at| at >= asked));
    if is_answered {
        *asked = ask.try_send(()).ok().map(|()| now);
    } else if let Some(waits) = asked.map(|asked| now.saturating_sub(asked)).filter(|waits| *waits > PATIENCE)
    {
        problems.push(hangs(waits.as_secs()));
    }
    if at.is_some() || !problems.is_empty() {
        notify.look(&problems);
    }
}

/// The thread that makes a status when it is asked. It is not waited for: it may hang.
fn looker(server: Weak<Server>, notify: Arc<Notify>) -> std::io::Result<SyncSender<()>> {
    let (ask, asked) = sync_channel(1);
    let look = move || {
        while asked.recv().is_ok() {
            let Some(server) = server.upgrade() else { return };
            let problems = of_status(&server.status());
            let mut seen = notify.seen.lock();
            (seen.problems, seen.at) = (problems, Some(notify.clock.monotonic()));
        }
    };
    std::thread::Builder::new().name("problems".to_owned()).spawn(look)?;
    Ok(ask)
}

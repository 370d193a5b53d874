//! Work that no client waits for: it gets what clients leave of a busy processor.

/// How far behind a client's thread: where both could run, a tenth as much as that gets. On an idle machine nothing changes, and a mirror whose machine is always busy goes on.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lets the threads of clients go before this one, for as long as it lives.
pub(crate) fn step_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS) {
        tracing::debug!(%error, "a thread of the background has the priority of clients");
    }
}

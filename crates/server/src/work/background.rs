//! Work that no client waits for: it gets the processor time that clients leave.

/// The difference to the niceness of a client's thread: if both could run, it gets a tenth of that
/// thread's time. An idle machine is not affected, and a mirror on a machine that is always busy
/// still makes progress.
#[cfg(target_os = "linux")]
const NICER: i32 = 10;

/// Gives the threads of clients priority over this one, for its lifetime.
pub(crate) fn step_back() {
    #[cfg(target_os = "linux")]
    {
        let thread = Some(rustix::thread::gettid());
        // Relative to the niceness that the owner gave the whole server, which the first thread
        // has: this one may have been started by a thread that has stepped back.
        let first = Some(rustix::process::getpid());
        let nicer = rustix::process::getpriority_process(first).map(|now| now + NICER);
        if let Err(error) = nicer.and_then(|nicer| rustix::process::setpriority_process(thread, nicer)) {
            tracing::debug!(%error, "a background thread has the priority of clients");
        }
    }
}

/// Runs work that clients or programs wait for on a thread that may have stepped back: with their
/// priority, if the system permits raising it again (root, or `LimitNICE=`).
pub(crate) fn ahead<T>(act: impl FnOnce() -> T) -> T {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{getpid, getpriority_process, setpriority_process};
        let thread = Some(rustix::thread::gettid());
        if let (Ok(own), Ok(first)) = (getpriority_process(thread), getpriority_process(Some(getpid())))
            && own > first
            && setpriority_process(thread, first).is_ok()
        {
            let done = act();
            // To go back further is everybody's right.
            let _ = setpriority_process(thread, own);
            return done;
        }
    }
    act()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn thread_that_steps_back_is_behind_the_others_and_no_other_thread_is() {
        let niceness = || rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap();
        let before = niceness();
        let stepped = std::thread::spawn(move || {
            super::step_back();
            let child = std::thread::spawn(move || {
                super::step_back();
                niceness()
            });
            assert_eq!(child.join().unwrap(), niceness(), "one step, whoever started it");
            niceness()
        });
        assert_eq!(stepped.join().unwrap(), (before + super::NICER).min(19));
        assert_eq!(niceness(), before);
    }
}

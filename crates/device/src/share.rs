//! How the system shares a busy processor between the threads of a program.

use std::io;
use std::time::Duration;

/// The longest slice that Linux takes (`sched_setattr(2)`).
pub const LONGEST_SLICE: Duration = Duration::from_millis(100);

/// Sets the niceness of the calling thread, and how long it works at a stretch where others wait; the system's own slice when that is none. A thread that
/// wakes up does not wait for the end of a slice that is longer than its own, so a long slice lets others go first at once, and takes nothing from the thread's share.
/// Linux before 6.12 has one slice for all threads and heeds the niceness alone.
///
/// Fails where the system does not let a program go ahead again (`LimitNICE=`), and changes nothing then.
pub fn set_share(nice: i32, slice: Option<Duration>) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice.clamp(-20, 19),
        sched_priority: 0,
        sched_runtime: slice.map_or(0, |slice| slice.as_nanos() as u64),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the call reads the attributes, whose size they tell themselves, and changes this thread (0) alone.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

//! Tells systemd how the service is: one datagram to the socket named by `NOTIFY_SOCKET`, as in
//! sd_notify(3).

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Sends `state` (`READY=1`, `STOPPING=1`) to the manager at `socket`.
pub(crate) fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

/// Sends `state` if a manager listens; a failure is logged and changes nothing.
pub(crate) fn tell(state: &str) {
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, state)
    {
        tracing::warn!(%error, state, "could not notify the service manager");
    }
}

/// How long the manager waits for `WATCHDOG=1` before it kills the service, by the rules of
/// sd_watchdog_enabled(3); `None` when it does not wait for this process.
pub(crate) fn watchdog() -> Option<Duration> {
    let socket = std::env::var_os("NOTIFY_SOCKET");
    socket.and_then(|_| limit(std::env::var_os("WATCHDOG_USEC"), std::env::var_os("WATCHDOG_PID")))
}

fn limit(microseconds: Option<OsString>, process: Option<OsString>) -> Option<Duration> {
    let number = |text: OsString| text.into_string().ok()?.parse::<u64>().ok();
    let limit = number(microseconds?).filter(|limit| *limit > 0)?;
    let is_meant = process.is_none_or(|process| number(process) == Some(std::process::id().into()));
    is_meant.then_some(Duration::from_micros(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_is_fed_by_the_process_that_is_meant_and_by_no_other() {
        let said = |text: &str| Some(OsString::from(text));
        let own = said(&std::process::id().to_string());
        assert_eq!(limit(said("30000000"), None), Some(Duration::from_secs(30)));
        assert_eq!(limit(said("30000000"), own.clone()), Some(Duration::from_secs(30)));
        assert_eq!(limit(said("30000000"), said("1")), None);
        assert_eq!(limit(said("30000000"), said("x")), None);
        for none in [None, said("0"), said(""), said("soon"), said("-1")] {
            assert_eq!(limit(none, own.clone()), None);
        }
    }
}

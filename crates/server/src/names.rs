//! Names as users write them: `VOLUME`, `VOLUME/LUN`, `VOLUME@SNAPSHOT`, `VOLUME@SNAPSHOT/LUN`.

use std::net::SocketAddr;

use crate::error::ServerError;
use crate::mirrors::role_error::RoleError;

/// How the names of the snapshots begin that image dumps make for themselves.
pub(crate) const IMAGE_PREFIX: &str = "image.";
/// How the names of the snapshots begin that dumps of files make for themselves.
pub(crate) const DUMP_PREFIX: &str = "dump.";
/// Longest name of a volume, LUN or snapshot, in bytes.
pub(crate) const MAX_NAME: usize = 64;

/// Letters, digits, `.`, `_` and `-`, beginning with a letter or a digit: the same in a path, a URI
/// and a shell.
pub(crate) fn check(what: &'static str, name: &str) -> Result<(), ServerError> {
    let good = !name.is_empty()
        && name.len() <= MAX_NAME
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        && name.as_bytes()[0].is_ascii_alphanumeric();
    if good { Ok(()) } else { Err(ServerError::InvalidName { what, name: name.to_owned() }) }
}

/// As [`check`], for a snapshot that an owner names: names with the reserved prefixes belong to
/// mirrors and dumps, which create and delete such snapshots without asking.
pub(crate) fn check_snapshot(name: &str) -> Result<(), ServerError> {
    check("snapshot", name)?;
    let reserved = [cairn_stream::MIRROR_PREFIX, IMAGE_PREFIX, DUMP_PREFIX];
    if reserved.iter().any(|prefix| name.starts_with(prefix)) {
        return Err(RoleError::ReservedName { name: name.to_owned() }.into());
    }
    Ok(())
}

/// The parts of an NBD export name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ExportName<'a> {
    pub(crate) volume: &'a str,
    pub(crate) snapshot: Option<&'a str>,
    pub(crate) lun: &'a str,
}

impl<'a> ExportName<'a> {
    /// Reads a name; a client sends any bytes.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (left, lun) = text.split_once('/')?;
        let (volume, snapshot) = match left.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(snapshot)),
            None => (left, None),
        };
        Some(Self { volume, snapshot, lun })
    }
}

/// This machine's name.
pub(crate) fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// A listening address, in a form that a client can use: the wildcard address is replaced by this
/// machine's name.
pub(crate) fn from_elsewhere(address: &str) -> String {
    match (address.parse::<SocketAddr>(), host()) {
        (Ok(all), host) if all.ip().is_unspecified() && !host.is_empty() => format!("{host}:{}", all.port()),
        _ => address.to_owned(),
    }
}

#[cfg(test)]
mod tests;

//! The URIs of NBD exports.

use std::fmt::Write;
use std::path::Path;

/// `nbd+unix:///NAME?socket=PATH`, as libnbd and qemu read it.
pub fn unix_uri(socket: &Path, export: &str) -> String {
    let mut uri = String::from("nbd+unix:///");
    percent(&mut uri, export.as_bytes());
    uri.push_str("?socket=");
    percent(&mut uri, socket.as_os_str().as_encoded_bytes());
    uri
}

/// `nbd://HOST:PORT/NAME`.
pub fn tcp_uri(address: &str, export: &str) -> String {
    let mut uri = format!("nbd://{address}/");
    percent(&mut uri, export.as_bytes());
    uri
}

/// RFC 3986: all but unreserved characters and `/` (allowed in a path and in a query) are escaped.
fn percent(uri: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            uri.push(char::from(byte));
        } else {
            write!(uri, "%{byte:02X}").expect("a string takes all that is written");
        }
    }
}

#[cfg(test)]
mod tests;

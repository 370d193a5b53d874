//! The volume `vol0` with the LUN `db` of 4 MiB, and its mirror.

use serde_json::Value;

use super::Running;

/// Writes this many bytes, durably.
pub fn write(server: &Running, offset: u64, byte: u8, length: usize) {
    let mut disk = server.disk("vol0/db");
    disk.write(offset, &vec![byte; length]).unwrap();
    disk.flush().unwrap();
}

/// All of the LUN.
pub fn content(server: &Running) -> Vec<u8> {
    server.disk("vol0/db").read(0, 4 << 20).unwrap()
}

/// Of the mirror.
pub fn status(server: &Running) -> Value {
    server.json(&["mirror", "status", "vol0"])
}

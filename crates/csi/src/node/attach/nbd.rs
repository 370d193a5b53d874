//! Disks by the NBD client of the node, `nbd-client`.
//!
//! The kernel keeps the connection and tells neither the server nor the export of a device. So a
//! note of each volume names its device: first as intended, and after the connection as connected.
//! A device with an intention that is in use may be that of another program. It is left alone, and
//! the next free one is taken: a session more of the same node does no harm, and the server closes
//! it when the volume is taken from the node.

use std::fs;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tonic::Status;

use super::{Attach, Disk, checked, given, named};
use crate::node::programs::Programs;

/// Seconds without an answer after which the kernel fails requests.
const TIMEOUT: &str = "60";

pub(super) struct Nbd {
    pub(super) programs: Programs,
    /// The folder of the notes.
    pub(super) notes: PathBuf,
    pub(super) tls: Option<PathBuf>,
}

/// The note of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    /// `nbd0`.
    device: String,
    connected: bool,
    /// The process that connected it, as sysfs shows it; another one means another connection.
    pid: String,
    /// The start of the machine: a device of an earlier one is not connected any more.
    boot: String,
}

/// Names the present start of the machine.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

impl Nbd {
    fn note_path(&self, volume: &str) -> PathBuf {
        self.notes.join(format!("{volume}.json"))
    }

    fn note(&self, volume: &str) -> Option<Note> {
        serde_json::from_slice(&fs::read(self.note_path(volume)).ok()?).ok()
    }

    fn write(&self, volume: &str, note: &Note) -> Result<(), Status> {
        let failed =
            |error: std::io::Error| Status::internal(format!("cannot write a note of {volume}: {error}"));
        fs::create_dir_all(&self.notes).map_err(failed)?;
        let text = serde_json::to_vec(note).map_err(|error| Status::internal(error.to_string()))?;
        let new = self.notes.join(format!(".{volume}.new"));
        fs::write(&new, text).map_err(failed)?;
        fs::rename(&new, self.note_path(volume)).map_err(failed)
    }

    /// The process of a device's connection; none if it is not connected.
    fn pid(&self, device: &str) -> Option<String> {
        let text = fs::read_to_string(self.programs.sys.join("block").join(device).join("pid")).ok()?;
        Some(text.trim().to_owned())
    }

    /// The device of a note that is still connected as noted.
    fn connected(&self, volume: &str) -> Option<Note> {
        self.note(volume).filter(|note| {
            note.connected && note.boot == boot() && self.pid(&note.device) == Some(note.pid.clone())
        })
    }

    fn free(&self) -> Result<String, Status> {
        let blocks = fs::read_dir(self.programs.sys.join("block"))
            .map_err(|error| Status::internal(format!("cannot list block devices: {error}")))?;
        let names = blocks.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut numbers: Vec<u32> = names.filter_map(|name| name.strip_prefix("nbd")?.parse().ok()).collect();
        numbers.sort_unstable();
        let mut free =
            numbers.into_iter().map(|number| format!("nbd{number}")).filter(|name| self.pid(name).is_none());
        free.next().ok_or_else(|| {
            Status::resource_exhausted("no NBD device is free: load the module nbd with a larger nbds_max")
        })
    }
}

impl Attach for Nbd {
    fn attach(&self, disk: &Disk) -> Result<PathBuf, Status> {
        let volume = named(&disk.volume)?;
        if let Some(note) = self.connected(volume) {
            return Ok(self.programs.dev.join(note.device));
        }
        let address = given(&disk.nbd, "NBD address")?;
        let device = self.free()?;
        self.write(
            volume,
            &Note { device: device.clone(), connected: false, pid: String::new(), boot: boot() },
        )?;
        let node = self.programs.dev.join(&device).display().to_string();
        let mut arguments: Vec<String> = match address.strip_prefix("unix:") {
            Some(socket) => vec!["-unix".to_owned(), socket.to_owned(), node.clone()],
            None => {
                let (host, port) = address
                    .rsplit_once(':')
                    .ok_or_else(|| Status::invalid_argument(format!("{address} is no HOST:PORT")))?;
                vec![host.trim_matches(['[', ']']).to_owned(), port.to_owned(), node.clone()]
            }
        };
        arguments.extend(["-name", &disk.export, "-timeout", TIMEOUT].map(str::to_owned));
        if disk.read_only {
            arguments.push("-readonly".to_owned());
        }
        if let Some(tls) = &self.tls {
            for (option, file) in [
                ("-certfile", "client-cert.pem"),
                ("-keyfile", "client-key.pem"),
                ("-cacertfile", "ca-cert.pem"),
            ] {
                arguments.extend([option.to_owned(), tls.join(file).display().to_string()]);
            }
        }
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let done = self.programs.code("nbd-client", &words)?;
        let pid = self.pid(&device);
        match (done, pid) {
            ((0, _), Some(pid)) => {
                self.write(volume, &Note { device, connected: true, pid, boot: boot() })?;
                Ok(PathBuf::from(node))
            }
            ((code, output), _) => Err(Status::unavailable(format!(
                "nbd-client did not connect {volume} at {address} ({code}): {}",
                output.trim()
            ))),
        }
    }

    fn find(&self, volume: &str) -> Result<Option<PathBuf>, Status> {
        let note = checked(volume).and_then(|volume| self.connected(volume));
        Ok(note.map(|note| self.programs.dev.join(note.device)))
    }

    fn detach(&self, volume: &str) -> Result<(), Status> {
        let Some(volume) = checked(volume) else { return Ok(()) };
        if let Some(note) = self.connected(volume) {
            let node = self.programs.dev.join(&note.device).display().to_string();
            self.programs.run("nbd-client", &["-d", &node])?;
        }
        match fs::remove_file(self.note_path(volume)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Status::internal(format!("cannot remove the note of {volume}: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn refresh(&self, _volume: &str) -> Result<(), Status> {
        // The size is a part of the connection.
        Ok(())
    }
}

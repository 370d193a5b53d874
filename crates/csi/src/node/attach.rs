//! How a disk of the server becomes a block device of the node.
//!
//! Each method finds its device again without notes where the kernel tells it: iSCSI by the name of
//! the target, the loop device by its file. The kernel does not tell the export of an NBD device,
//! so that method keeps notes.

mod fuse;
mod iscsi;
mod nbd;

use std::path::PathBuf;

use tonic::Status;

use super::NodeOptions;

/// The ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// `iscsiadm` of the node. The sessions survive a restart of the server.
    Iscsi,
    /// `nbd-client` of the node. A device ends with its connection.
    Nbd,
    /// `nbdfuse` and a loop device, where the kernel has neither. The process must stay alive.
    Fuse,
}

/// A disk, as the controller describes it to the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) volume: String,
    /// The name of the export.
    pub(super) export: String,
    /// HOST:PORT or unix:PATH.
    pub(super) nbd: Option<String>,
    /// The name of the iSCSI target, and HOST:PORT.
    pub(super) target: Option<String>,
    pub(super) portal: Option<String>,
    pub(super) read_only: bool,
}

/// A way to attach disks. Each method may be repeated after a crash.
pub(super) trait Attach: Send + Sync {
    /// The device of a disk, which is attached if it is not yet.
    fn attach(&self, disk: &Disk) -> Result<PathBuf, Status>;
    /// The device of a volume, if it is attached.
    fn find(&self, volume: &str) -> Result<Option<PathBuf>, Status>;
    /// Detaches a volume, if it is attached.
    fn detach(&self, volume: &str) -> Result<(), Status>;
    /// Makes the device as long as the disk is in the server, if the method can.
    fn refresh(&self, volume: &str) -> Result<(), Status>;
}

impl Attachment {
    pub(super) fn make(self, options: &NodeOptions) -> Box<dyn Attach> {
        let (programs, state, tls) = (options.programs.clone(), options.state.clone(), options.tls.clone());
        match self {
            Attachment::Iscsi => Box::new(iscsi::Iscsi { programs }),
            Attachment::Nbd => Box::new(nbd::Nbd { programs, notes: state.join("nbd"), tls }),
            Attachment::Fuse => Box::new(fuse::Fuse { programs, folder: state.join("fuse"), tls }),
        }
    }
}

/// Refuses an id that is no name of a volume: it becomes a part of paths and arguments.
fn checked(volume: &str) -> Option<&str> {
    let good = !volume.is_empty()
        && volume.len() <= 64
        && volume.as_bytes()[0].is_ascii_alphanumeric()
        && volume.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    good.then_some(volume)
}

fn named(volume: &str) -> Result<&str, Status> {
    checked(volume).ok_or_else(|| Status::not_found(format!("there is no volume {volume}")))
}

fn given<'a>(field: &'a Option<String>, what: &str) -> Result<&'a str, Status> {
    // An argument that begins with a dash would be an option.
    match field.as_deref() {
        Some(value) if !value.is_empty() && !value.starts_with('-') => Ok(value),
        _ => Err(Status::failed_precondition(format!(
            "the server reported no {what}: check its listeners and the options of the controller"
        ))),
    }
}

#[cfg(test)]
mod tests;

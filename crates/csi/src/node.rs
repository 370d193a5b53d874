//! The Node service: disks attached to a node, formatted, mounted, and given to containers.
//!
//! Everything that it needs to know it finds again: mounts in `mountinfo`, attached disks by
//! [`attach`], the content of a disk on the disk. So each call may be repeated after a crash.
//!
//! A disk is attached and mounted once, at the staging path. Containers get bind mounts of that.

mod attach;
mod format;
mod mounts;
mod programs;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cairn_proto_csi::v1;
use tonic::Status;

use crate::controller::{FileSystem, Use, check_there, context, signed};
use crate::names::NodeId;
use crate::turns::Turns;
use attach::{Attach, Disk};
use format::Content;
use mounts::Mounts;

pub use attach::Attachment;
pub use programs::Programs;

/// Disks of one node at most, as Kubernetes counts them.
const DISKS_MAX: i64 = 128;

/// Settings of a node.
#[derive(Debug, Clone)]
pub struct NodeOptions {
    /// How the server recognizes it.
    pub id: NodeId,
    /// How disks become block devices.
    pub attachment: Attachment,
    /// A folder for its notes, and for new file systems on their way to a disk. No other node has
    /// it.
    pub state: PathBuf,
    /// A folder with `ca-cert.pem`, `client-cert.pem` and `client-key.pem`: NBD with TLS.
    pub tls: Option<PathBuf>,
    /// The programs that it runs.
    pub programs: Programs,
}

/// The Node service.
pub struct Node {
    options: NodeOptions,
    attach: Box<dyn Attach>,
    turns: Turns,
}

/// Refuses a path that is not absolute, or contains steps upward.
fn path_of(text: &str, what: &str) -> Result<PathBuf, Status> {
    check_there(text, what)?;
    let path = PathBuf::from(text);
    let is_plain = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
    match path.is_absolute() && is_plain && !text.contains('\0') {
        true => Ok(path),
        false => Err(Status::invalid_argument(format!("the {what} {text} is not an absolute path"))),
    }
}

fn io(what: &str, path: &Path) -> impl Fn(std::io::Error) -> Status {
    move |error| Status::internal(format!("cannot {what} {}: {error}", path.display()))
}

fn field<'a>(context: &'a HashMap<String, String>, key: &str) -> Result<&'a str, Status> {
    context
        .get(key)
        .map(String::as_str)
        .ok_or_else(|| Status::invalid_argument(format!("the publish context has no {key}")))
}

impl Node {
    /// A node.
    pub fn new(options: NodeOptions) -> Self {
        let attach = options.attachment.make(&options);
        format::clear(&options.state);
        Self { options, attach, turns: Turns::default() }
    }

    fn mounts(&self) -> Result<Mounts, Status> {
        Mounts::read(&self.options.programs)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, Status> {
        self.options.programs.run(program, arguments)
    }

    /// Its id and limits.
    pub fn info(&self) -> v1::NodeGetInfoResponse {
        v1::NodeGetInfoResponse {
            node_id: self.options.id.to_string(),
            max_volumes_per_node: DISKS_MAX,
            ..v1::NodeGetInfoResponse::default()
        }
    }

    /// The capabilities.
    pub fn capabilities(&self) -> v1::NodeGetCapabilitiesResponse {
        use v1::node_service_capability::rpc::Type as Rpc;
        use v1::node_service_capability::{Rpc as Supported, Type};
        let all =
            [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::SingleNodeMultiWriter];
        let capability = |rpc: Rpc| v1::NodeServiceCapability {
            r#type: Some(Type::Rpc(Supported { r#type: rpc.into() })),
        };
        v1::NodeGetCapabilitiesResponse { capabilities: all.into_iter().map(capability).collect() }
    }

    /// Attaches a disk, and mounts its file system at the staging path.
    pub fn stage(&self, asked: &v1::NodeStageVolumeRequest) -> Result<v1::NodeStageVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let staging = path_of(&asked.staging_target_path, "staging target path")?;
        let used = Use::of(asked.volume_capability.as_ref())?;
        let read_only =
            used.read_only || asked.publish_context.get(context::READ_ONLY).is_some_and(|is| is == "true");
        let disk = Disk {
            volume: asked.volume_id.clone(),
            export: field(&asked.publish_context, context::EXPORT)?.to_owned(),
            nbd: asked.publish_context.get(context::NBD).cloned(),
            target: asked.publish_context.get(context::TARGET).cloned(),
            portal: asked.publish_context.get(context::PORTAL).cloned(),
            read_only,
        };
        let _turn = self.turns.take(&asked.volume_id)?;
        let device = self.attach.attach(&disk)?;
        let Some(file_system) = used.file_system else { return Ok(v1::NodeStageVolumeResponse {}) };
        if let Some(there) = self.mounts()?.at(&staging) {
            return match there.is_of(&device)? {
                true => Ok(v1::NodeStageVolumeResponse {}),
                false => Err(Status::already_exists(format!("{} has another mount", staging.display()))),
            };
        }
        let was_blank = asked.publish_context.get(context::BLANK).is_some_and(|is| is == "true");
        self.prepare(&asked.volume_id, &device, file_system, was_blank, read_only)?;
        std::fs::create_dir_all(&staging).map_err(io("create", &staging))?;
        let mut flags = used.flags.clone();
        if read_only {
            flags.push("ro".to_owned());
        }
        if file_system == FileSystem::Xfs {
            // A clone has the id of its origin, which may be mounted on this node.
            flags.push("nouuid".to_owned());
        }
        // After an expansion, and for a clone that is longer than its origin.
        let grows = !read_only && format::is_shorter(&device, file_system)?;
        if grows && file_system == FileSystem::Ext4 {
            self.grow_unmounted(&device)?;
        }
        self.mount(&device, &staging, file_system, &flags)?;
        if grows && file_system == FileSystem::Xfs {
            self.grow(&device, &staging, file_system)?;
        }
        Ok(v1::NodeStageVolumeResponse {})
    }

    /// Makes a file system on a blank disk, and repairs one that is there.
    fn prepare(
        &self,
        volume: &str,
        device: &Path,
        wanted: FileSystem,
        was_blank: bool,
        read_only: bool,
    ) -> Result<(), Status> {
        let content = format::content(device)?;
        match content {
            Content::Blank | Content::Unfinished if read_only => {
                Err(Status::failed_precondition(format!("{volume} has no file system, and takes no writes")))
            }
            Content::Blank if !was_blank => Err(Status::failed_precondition(format!(
                "{volume} begins with zeroes and has data: it is not formatted; delete it, or mount it by hand"
            ))),
            Content::Blank | Content::Unfinished => {
                let is_first = content == Content::Blank;
                format::make(&self.options.programs, &self.options.state, device, wanted, is_first)
            }
            Content::Has(found) if found == wanted => match (found, read_only) {
                (FileSystem::Ext4, false) => self.repair(device),
                _ => Ok(()),
            },
            Content::Has(found) => Err(Status::failed_precondition(format!(
                "{volume} has the file system {}, not {}",
                found.name(),
                wanted.name()
            ))),
            Content::Other => Err(Status::failed_precondition(format!(
                "{volume} has data that is neither ext4 nor xfs: it is not formatted"
            ))),
        }
    }

    /// Replays the journal and makes safe repairs, as at a start of a machine.
    fn repair(&self, device: &Path) -> Result<(), Status> {
        let device = device.display().to_string();
        match self.options.programs.code("fsck.ext4", &["-p", &device])? {
            // Errors were corrected.
            (0 | 1, _) => Ok(()),
            (_, output) => {
                Err(Status::internal(format!("the file system of {device} needs a repair: {output}")))
            }
        }
    }

    fn mount(
        &self,
        device: &Path,
        at: &Path,
        file_system: FileSystem,
        flags: &[String],
    ) -> Result<(), Status> {
        let (device, at) = (device.display().to_string(), at.display().to_string());
        let flags = flags.join(",");
        let mut arguments = vec!["-t", file_system.name()];
        if !flags.is_empty() {
            arguments.extend(["-o", &flags]);
        }
        arguments.extend([device.as_str(), at.as_str()]);
        self.run("mount", &arguments).map(drop)
    }

    /// Makes ext4 as long as its disk before it is mounted, which needs no right but to the disk.
    fn grow_unmounted(&self, device: &Path) -> Result<(), Status> {
        let device = device.display().to_string();
        match self.options.programs.code("fsck.ext4", &["-f", "-p", &device])? {
            (0 | 1, _) => self.run("resize2fs", &[&device]).map(drop),
            (_, output) => {
                Err(Status::internal(format!("the file system of {device} needs a repair: {output}")))
            }
        }
    }

    /// Makes a mounted file system as long as its disk.
    fn grow(&self, device: &Path, at: &Path, file_system: FileSystem) -> Result<(), Status> {
        let (device, at) = (device.display().to_string(), at.display().to_string());
        match file_system {
            FileSystem::Ext4 => self.run("resize2fs", &[&device]).map(drop),
            FileSystem::Xfs => self.run("xfs_growfs", &[&at]).map(drop),
        }
    }

    /// Unmounts the staging path and detaches the disk.
    pub fn unstage(
        &self,
        asked: &v1::NodeUnstageVolumeRequest,
    ) -> Result<v1::NodeUnstageVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let staging = path_of(&asked.staging_target_path, "staging target path")?;
        let _turn = self.turns.take(&asked.volume_id)?;
        let device = self.attach.find(&asked.volume_id)?;
        // Of another disk it stays.
        while let Some(there) = self.mounts()?.at(&staging) {
            match &device {
                Some(device) if !there.is_of(device)? => break,
                _ => drop(self.run("umount", &[&staging.display().to_string()])?),
            }
        }
        if let Some(device) = &device
            && let Some(used) = self.mounts()?.using(device)?.first()
        {
            let message = format!("{} is still mounted at {}", asked.volume_id, used.display());
            return Err(Status::failed_precondition(message));
        }
        self.attach.detach(&asked.volume_id)?;
        Ok(v1::NodeUnstageVolumeResponse {})
    }

    /// Gives a volume to a container: a bind mount of the staging path, or of the device.
    pub fn publish(
        &self,
        asked: &v1::NodePublishVolumeRequest,
    ) -> Result<v1::NodePublishVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let target = path_of(&asked.target_path, "target path")?;
        let used = Use::of(asked.volume_capability.as_ref())?;
        let staging = path_of(&asked.staging_target_path, "staging target path")?;
        let _turn = self.turns.take(&asked.volume_id)?;
        let unstaged =
            || Status::failed_precondition(format!("{} is not staged on this node", asked.volume_id));
        let device = self.attach.find(&asked.volume_id)?.ok_or_else(unstaged)?;
        let is_read_only = asked.readonly || used.read_only;
        let disk_takes_writes = asked.publish_context.get(context::READ_ONLY).is_none_or(|is| is != "true");
        if used.file_system.is_none() && is_read_only && disk_takes_writes {
            return Err(Status::invalid_argument(
                "a block volume is read-only only if it is published to the node for reading",
            ));
        }
        let mounts = self.mounts()?;
        if used.file_system.is_some()
            && !mounts.at(&staging).is_some_and(|there| there.is_of(&device).unwrap_or(false))
        {
            return Err(unstaged());
        }
        if used.single {
            let mut others = mounts.using(&device)?;
            others.retain(|path| *path != target && *path != staging);
            if let Some(other) = others.first() {
                let message =
                    format!("{} is published at {}, for one user", asked.volume_id, other.display());
                return Err(Status::failed_precondition(message));
            }
        }
        let (source, at) =
            (if used.file_system.is_some() { &staging } else { &device }, target.display().to_string());
        match mounts.at(&target) {
            Some(there) if there.is_of(&device)? => {}
            Some(_) => return Err(Status::already_exists(format!("{at} has another mount"))),
            None => {
                let parent = target.parent().unwrap_or(Path::new("/"));
                std::fs::create_dir_all(parent).map_err(io("create", parent))?;
                match used.file_system {
                    Some(_) => std::fs::create_dir_all(&target).map_err(io("create", &target))?,
                    None => {
                        let new = std::fs::OpenOptions::new().create(true).append(true).open(&target);
                        new.map(drop).map_err(io("create", &target))?;
                    }
                }
                self.run("mount", &["--bind", &source.display().to_string(), &at])?;
            }
        }
        // Also after a crash between the two mounts.
        if is_read_only
            && used.file_system.is_some()
            && let Err(error) = self.run("mount", &["-o", "remount,bind,ro", &at])
        {
            let _ = self.run("umount", &[&at]);
            return Err(error);
        }
        Ok(v1::NodePublishVolumeResponse {})
    }

    /// Takes a volume from a container.
    pub fn unpublish(
        &self,
        asked: &v1::NodeUnpublishVolumeRequest,
    ) -> Result<v1::NodeUnpublishVolumeResponse, Status> {
        check_there(&asked.volume_id, "volume id")?;
        let target = path_of(&asked.target_path, "target path")?;
        let _turn = self.turns.take(&asked.volume_id)?;
        while self.mounts()?.at(&target).is_some() {
            self.run("umount", &[&target.display().to_string()])?;
        }
        let removed = match target.symlink_metadata() {
            Ok(found) if found.is_dir() => std::fs::remove_dir(&target),
            Ok(_) => std::fs::remove_file(&target),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        };
        removed.map_err(io("remove", &target))?;
        Ok(v1::NodeUnpublishVolumeResponse {})
    }

    /// The attached device of a volume that is mounted at a path.
    fn in_use_at(&self, volume: &str, path: &str) -> Result<(PathBuf, PathBuf, bool), Status> {
        check_there(volume, "volume id")?;
        check_there(path, "volume path")?;
        let absent = || Status::not_found(format!("{volume} is not at {path}"));
        let device = self.attach.find(volume)?.ok_or_else(absent)?;
        let at = PathBuf::from(path);
        let mounts = self.mounts()?;
        let there = mounts.at(&at).ok_or_else(absent)?;
        if !there.is_of(&device)? {
            return Err(absent());
        }
        Ok((device, at, there.is_device()))
    }

    /// The space of a volume.
    pub fn stats(
        &self,
        asked: &v1::NodeGetVolumeStatsRequest,
    ) -> Result<v1::NodeGetVolumeStatsResponse, Status> {
        use v1::volume_usage::Unit;
        let (device, at, is_block) = self.in_use_at(&asked.volume_id, &asked.volume_path)?;
        let usage = |unit: Unit, total: u64, available: u64, used: u64| v1::VolumeUsage {
            unit: unit.into(),
            total: signed(total),
            available: signed(available),
            used: signed(used),
        };
        let usage = match is_block {
            true => vec![usage(Unit::Bytes, format::bytes_of(&device)?, 0, 0)],
            false => {
                let found = rustix::fs::statvfs(self.options.programs.view(&at))
                    .map_err(|error| io("read", &at)(error.into()))?;
                let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
                let used = bytes(found.f_blocks.saturating_sub(found.f_bfree));
                let files = found.f_files.saturating_sub(found.f_ffree);
                vec![
                    usage(Unit::Bytes, bytes(found.f_blocks), bytes(found.f_bavail), used),
                    usage(Unit::Inodes, found.f_files, found.f_favail, files),
                ]
            }
        };
        Ok(v1::NodeGetVolumeStatsResponse { usage })
    }

    /// Makes a device and its file system as long as the disk is in the server.
    pub fn expand(
        &self,
        asked: &v1::NodeExpandVolumeRequest,
    ) -> Result<v1::NodeExpandVolumeResponse, Status> {
        let (device, at, is_block) = self.in_use_at(&asked.volume_id, &asked.volume_path)?;
        let _turn = self.turns.take(&asked.volume_id)?;
        self.attach.refresh(&asked.volume_id)?;
        let bytes = format::bytes_of(&device)?;
        let required = asked.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        if signed(bytes) < required {
            return Err(Status::failed_precondition(format!(
                "the device of {} keeps the size of its session ({bytes} bytes) until the volume is staged again",
                asked.volume_id
            )));
        }
        if !is_block
            && let Content::Has(file_system) = format::content(&device)?
            && format::is_shorter(&device, file_system)?
        {
            self.grow(&device, &at, file_system)?;
        }
        Ok(v1::NodeExpandVolumeResponse { capacity_bytes: signed(bytes) })
    }
}

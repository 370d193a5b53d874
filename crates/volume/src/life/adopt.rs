//! Makes a volume out of an image whose blocks are already in their places: the last step of an
//! image restore, and the step that turns a dump into a device with a volume.
//!
//! Only the label area is written here, the superblock last. Until then the device holds no volume:
//! a restore that is cut leaves nothing that could be taken for one.

use cairn_base::{BLOCK_SIZE, SnapshotId, Timestamp};
use cairn_device::Device;
use cairn_format::layout::{SPACE_BLOCKS_MIN, SUPERBLOCK_A, SUPERBLOCK_B, space_start};
use cairn_format::{Cursor, LogTail, Role, Superblock, TableRef};

use crate::commit::superblock::write_slot;
use crate::commit::table::{LabelSpace, SnapshotTable};
use crate::error::VolumeError;
use crate::life::open::{FormatOptions, new_layout};
use crate::log::intent::zero_ring;
use crate::mirror::receive::ReceivedImage;
use crate::volume::Volume;

impl Volume {
    /// Bytes from the start of a fresh device to its block space of `blocks` blocks: vbn v is v
    /// blocks further.
    pub fn space_offset(blocks: u64) -> u64 {
        space_start(blocks) * BLOCK_SIZE as u64
    }

    /// Makes the blocks on `device`, each at its vbn from [`Volume::space_offset`] on, the volume
    /// that `image` describes: its active state is the content of the target. The device must hold
    /// no volume before.
    ///
    /// Blocks are not read here: the caller has put every block of the image in its place. A
    /// missing or wrong one does not have the checksum that its parent names, and is never served.
    ///
    /// # Errors
    /// [`VolumeError::Size`] when `options.blocks` is less than a snapshot has;
    /// [`VolumeError::NotEmpty`], [`VolumeError::TableFull`], the device's.
    pub fn adopt(
        device: &dyn Device,
        options: &FormatOptions,
        image: &ReceivedImage,
        now: Timestamp,
    ) -> Result<(), VolumeError> {
        let min = image.snapshots.iter().map(|entry| entry.root.blocks).max().unwrap_or(0);
        let min = min.max(SPACE_BLOCKS_MIN);
        let target = image.snapshots.iter().find(|entry| entry.id == image.target);
        let target = target.ok_or(VolumeError::NoSuchSnapshot(image.target))?;
        let layout = new_layout(device, options, min)?;
        zero_ring(device, layout.log_start, layout.log_blocks)?;
        let mut label = LabelSpace::new(&layout);
        let table = SnapshotTable::default().replaced_by(image.snapshots.clone(), options.id, &mut label)?;
        let mut writes = table.writes.operations(&label);
        device.run(&mut writes);
        writes.into_iter().try_for_each(|write| write.into_outcome())?;
        let newest = image.snapshots.iter().map(|entry| entry.id.0).max().unwrap_or(0);
        let superblock = Superblock {
            volume: options.id,
            role: options.role,
            sequence: 1,
            layout,
            external_log: None,
            log_tail: LogTail { position: 0, sequence: 1 },
            root: target.root,
            parent: target.id,
            next_snapshot: newest + 1,
            cursor: match options.role {
                Role::Normal => Cursor { snapshot: SnapshotId(0), received: Timestamp(0) },
                Role::Destination => Cursor { snapshot: target.id, received: now },
            },
            snapshots: table.table,
            redirects: TableRef::default(),
        };
        // Every block of the image and of the table before the superblock that reaches them.
        device.flush()?;
        for address in [SUPERBLOCK_A, SUPERBLOCK_B] {
            write_slot(device, &superblock, address)?;
            device.flush()?;
        }
        Ok(())
    }
}

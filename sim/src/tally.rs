//! The contents of runs, in numbers.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

/// A fault of the media, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A damaged block of the block space: data, nodes, inodes, maps.
    Rot,
    /// A damaged block in the label area that holds a table.
    RotInTable,
    /// A damaged superblock slot.
    RotInSlot,
    /// A damaged record of the intent log.
    RotInLog,
    /// A write is acknowledged and does not happen.
    LostWrite,
    /// A write is acknowledged and happens elsewhere.
    MisdirectedWrite,
    /// A stretch can't be read any more.
    ReadError,
    /// Nothing can be read for a while.
    PassingReadError,
    /// A write or a flush fails once.
    WriteError,
    /// All of them fail from some moment on.
    WriteErrorForGood,
    /// The file below is on a full file system, once.
    NoSpace,
    /// It stays full until the server restarts.
    NoSpaceForGood,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 12] = [
        Fault::Rot,
        Fault::RotInTable,
        Fault::RotInSlot,
        Fault::RotInLog,
        Fault::LostWrite,
        Fault::MisdirectedWrite,
        Fault::ReadError,
        Fault::PassingReadError,
        Fault::WriteError,
        Fault::WriteErrorForGood,
        Fault::NoSpace,
        Fault::NoSpaceForGood,
    ];

    fn name(self) -> &'static str {
        match self {
            Fault::Rot => "rot in the block space",
            Fault::RotInTable => "rot in a table",
            Fault::RotInSlot => "rot in a superblock slot",
            Fault::RotInLog => "rot in the log",
            Fault::LostWrite => "lost write",
            Fault::MisdirectedWrite => "misdirected write",
            Fault::ReadError => "read error for good",
            Fault::PassingReadError => "read error for a while",
            Fault::WriteError => "write or flush error",
            Fault::WriteErrorForGood => "write and flush errors for good",
            Fault::NoSpace => "host file system full for a moment",
            Fault::NoSpaceForGood => "host file system full",
        }
    }
}

/// A fault of the media of one side of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFault {
    /// A damaged block of data, of files or directories.
    RotInData,
    /// A node above data.
    RotInNode,
    /// A block of inodes.
    RotInInodes,
    /// A node above inodes.
    RotInInodeNode,
    /// A block of the active map.
    RotInMap,
    /// A node above the active map.
    RotInMapNode,
    /// Nothing can be read during an update, and all can be afterwards.
    PassingReadError,
    /// A write of an update is acknowledged and does not happen.
    LostWrite,
    /// A write of an update is acknowledged and happens elsewhere.
    MisdirectedWrite,
}

impl CopyFault {
    /// All of them.
    pub const ALL: [CopyFault; 9] = [
        CopyFault::RotInData,
        CopyFault::RotInNode,
        CopyFault::RotInInodes,
        CopyFault::RotInInodeNode,
        CopyFault::RotInMap,
        CopyFault::RotInMapNode,
        CopyFault::PassingReadError,
        CopyFault::LostWrite,
        CopyFault::MisdirectedWrite,
    ];

    fn name(self) -> &'static str {
        match self {
            CopyFault::RotInData => "rot in data of one copy",
            CopyFault::RotInNode => "rot in a node of one copy",
            CopyFault::RotInInodes => "rot in inodes of one copy",
            CopyFault::RotInInodeNode => "rot in a node of the inode file of one copy",
            CopyFault::RotInMap => "rot in the map of one copy",
            CopyFault::RotInMapNode => "rot in a node of the map of one copy",
            CopyFault::PassingReadError => "passing read error of one copy",
            CopyFault::LostWrite => "lost write of one copy",
            CopyFault::MisdirectedWrite => "misdirected write of one copy",
        }
    }
}

/// A side of a mirror that takes no writes for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoomFault {
    /// The file system of the source is full.
    SourceFull,
    /// Its writes fail.
    SourceFails,
    /// The file system of its log device is full.
    LogFull,
    /// The writes of its log device fail.
    LogFails,
    /// The file system of the destination is full.
    DestinationFull,
    /// Its writes fail.
    DestinationFails,
}

impl RoomFault {
    /// All of them.
    pub const ALL: [RoomFault; 6] = [
        RoomFault::SourceFull,
        RoomFault::SourceFails,
        RoomFault::LogFull,
        RoomFault::LogFails,
        RoomFault::DestinationFull,
        RoomFault::DestinationFails,
    ];

    fn name(self) -> &'static str {
        match self {
            RoomFault::SourceFull => "source on a full file system",
            RoomFault::SourceFails => "writes of a source that fail",
            RoomFault::LogFull => "log device of a source full",
            RoomFault::LogFails => "log device of a source that fails",
            RoomFault::DestinationFull => "destination on a full file system",
            RoomFault::DestinationFails => "writes of a destination that fail",
        }
    }

    /// It is the log device.
    pub fn is_of_log(self) -> bool {
        matches!(self, RoomFault::LogFull | RoomFault::LogFails)
    }

    /// It is the source, or its log device.
    pub fn is_at_source(self) -> bool {
        !matches!(self, RoomFault::DestinationFull | RoomFault::DestinationFails)
    }

    /// There is no room; otherwise writes fail.
    pub fn is_full(self) -> bool {
        matches!(self, RoomFault::SourceFull | RoomFault::LogFull | RoomFault::DestinationFull)
    }
}

/// The fate of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// No needed block was hit, or another copy served.
    Survived,
    /// Reads of the damaged blocks fail, the rest is served.
    Reported,
    /// The volume reports that it can't be opened, or takes no more writes.
    Refused,
}

/// Counts of one run, or of many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Runs.
    pub seeds: u64,
    /// Writes, trims and flushes of all devices, without those after a cut that was only tried.
    pub operations: u64,
    /// Messages between mirrors.
    pub messages: u64,
    /// Moments at which cuts were tried in a copy of the world.
    pub points: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Connections that broke, and messages that came twice, garbled or not at all.
    pub mishaps: u64,
    /// Refusals for lack of space.
    pub full: u64,
    /// Images that a lock or a clone kept away.
    pub refused: u64,
    /// The number of lies sent, and of those that led to another image.
    pub lies: [u64; 2],
    /// Images brought by a source that lies at other times.
    pub honest: u64,
    /// Locked snapshots at the end of lives with lies.
    pub locked: u64,
    /// Faults of the media by kind, and by fate.
    pub faults: [[u64; 3]; Fault::ALL.len()],
    /// The same of one side of a mirror.
    pub copy_faults: [[u64; 3]; CopyFault::ALL.len()],
    /// Sides of a mirror without room.
    pub room_faults: [[u64; 3]; RoomFault::ALL.len()],
}

impl Tally {
    /// Counts a fault.
    pub fn fault(&mut self, fault: Fault, fate: Fate) {
        self.faults[fault as usize][fate as usize] += 1;
    }

    /// Counts a fault of one side of a mirror.
    pub fn copy_fault(&mut self, fault: CopyFault, fate: Fate) {
        self.copy_faults[fault as usize][fate as usize] += 1;
    }

    /// Counts a side of a mirror without room.
    pub fn room_fault(&mut self, fault: RoomFault, fate: Fate) {
        self.room_faults[fault as usize][fate as usize] += 1;
    }

    /// With the cuts in each second of `time`.
    pub fn rate(&self, time: Duration) -> String {
        format!("{self}, {:.0} cuts/s", self.cuts as f64 / time.as_secs_f64().max(1e-3))
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.operations += other.operations;
        self.messages += other.messages;
        self.points += other.points;
        self.cuts += other.cuts;
        self.mishaps += other.mishaps;
        self.full += other.full;
        self.refused += other.refused;
        self.lies[0] += other.lies[0];
        self.lies[1] += other.lies[1];
        self.honest += other.honest;
        self.locked += other.locked;
        for (all, more) in self.copy_faults.iter_mut().flatten().zip(other.copy_faults.iter().flatten()) {
            *all += more;
        }
        for (all, more) in self.room_faults.iter_mut().flatten().zip(other.room_faults.iter().flatten()) {
            *all += more;
        }
        for (all, more) in self.faults.iter_mut().flatten().zip(other.faults.iter().flatten()) {
            *all += more;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} seeds, {} device operations, {} cuts ({} moments tried), {} messages, {} mishaps, {} refusals for want of space",
            self.seeds, self.operations, self.cuts, self.points, self.messages, self.mishaps, self.full
        )?;
        if self.refused > 0 {
            write!(f, ", {} images refused for a lock or a clone", self.refused)?;
        }
        if self.lies[0] > 0 {
            let [told, believed] = self.lies;
            let (honest, locked) = (self.honest, self.locked);
            write!(
                f,
                ", {told} lies, of {believed} of which an image came, {honest} true images, {locked} locked snapshots"
            )?;
        }
        let of_one = Fault::ALL.iter().map(|fault| fault.name()).zip(&self.faults);
        let of_copies = CopyFault::ALL.iter().map(|fault| fault.name()).zip(&self.copy_faults);
        let of_room = RoomFault::ALL.iter().map(|fault| fault.name()).zip(&self.room_faults);
        for (name, fates) in of_one.chain(of_copies).chain(of_room).filter(|(_, fates)| **fates != [0; 3]) {
            let [survived, reported, refused] = fates;
            let all = survived + reported + refused;
            write!(f, "\n    {all} × {name}: {survived} survived, {reported} reported, {refused} refused")?;
        }
        Ok(())
    }
}

//! Everything that a server refuses or fails, each with its kind and the step that comes next.
//!
//! A variant says what happened and why; [`ServerError::next`] says what to do. Both reach the user as they are.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cairn_base::{ByteSize, Interval, InvalidVolumeId};
use cairn_device::DeviceError;
use cairn_files::FilesError;
use cairn_history::HistoryError;
use cairn_volume::VolumeError;

use cairn_api::{ErrorBody, ErrorKind, ResumeError};

mod remedy;
mod roles;
pub use roles::RoleError;

/// Why a request, or the start of a server, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A name that cannot be one.
    #[error("`{name}` is no name for a {what}")]
    InvalidName {
        /// "volume", "LUN", ...
        what: &'static str,
        /// As given.
        name: String,
    },
    /// A number or a combination that makes no sense.
    #[error("{what} breaks a rule: {rule}")]
    Invalid {
        /// The field.
        what: &'static str,
        /// The rule that it breaks.
        rule: &'static str,
    },
    /// Nothing has that name.
    #[error("there is no {what} `{name}`")]
    NotFound {
        /// "volume", "LUN", ...
        what: &'static str,
        /// As given.
        name: String,
        /// The command that lists what there is.
        list: &'static str,
    },
    /// A command around a snapshot.
    #[error("the command {which} a snapshot of `{volume}` {how}")]
    Hook {
        /// The volume.
        volume: String,
        /// "before" or "after".
        which: &'static str,
        /// What became of it.
        how: String,
    },
    /// The name is in use.
    #[error("the {what} `{name}` exists")]
    Taken {
        /// "volume", "LUN", ...
        what: &'static str,
        /// As given.
        name: String,
    },
    /// Clients have it open.
    #[error("`{name}` is in use by {sessions} session(s)")]
    InUse {
        /// The export or the volume.
        name: String,
        /// How many.
        sessions: usize,
    },
    /// It is mounted.
    #[error("`{name}` is mounted on {}", directory.display())]
    Mounted {
        /// The volume or the snapshot.
        name: String,
        /// Where.
        directory: PathBuf,
    },
    /// A directory that a mount would hide the files of.
    #[error("{} is not empty: a mount would hide what is in it", directory.display())]
    MountNotEmpty {
        /// The directory.
        directory: PathBuf,
    },
    /// A mount without a directory, in which somebody works.
    #[error("a mount of `{name}` that was taken away from {} is still used by {users}", directory.display())]
    MountLeft {
        /// The volume or the snapshot.
        name: String,
        /// Where it was.
        directory: PathBuf,
        /// Who works in it.
        users: String,
    },
    /// A live tree has one mount, and only root shows it in a second place.
    #[error("`{name}` is mounted on {} already, and only a server that root runs can show it on another directory as well", directory.display())]
    MountedElsewhere {
        /// The volume.
        name: String,
        /// Where.
        directory: PathBuf,
    },
    /// Nothing was mounted or unmounted.
    #[error(transparent)]
    Mount(cairn_frontend_fuse::MountError),
    /// The files of a volume.
    #[error("the files of `{name}`: {source}")]
    Tree {
        /// The volume or the snapshot.
        name: String,
        /// The cause.
        source: cairn_files::TreeError,
    },
    /// It stays until it is released.
    #[error("`{name}` is held")]
    SnapshotHeld {
        /// The snapshot.
        name: String,
    },
    /// A mirror's next update begins at it.
    #[error("`{name}` is held for the mirror {mirror}, whose next update begins there")]
    HeldForMirror {
        /// The snapshot.
        name: String,
        /// Of this volume.
        volume: String,
        /// What `cairn mirror forget` takes.
        mirror: String,
    },
    /// No cron expression.
    #[error("`{text}` is no cron expression: {reason}")]
    Cron {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A transfer runs, or another one of the kind.
    #[error("`{name}` is busy: {by}")]
    Busy {
        /// The volume.
        name: String,
        /// With what.
        by: &'static str,
    },
    /// A disk has not finished what it began for sessions that were to end.
    #[error("{0}; nothing else was changed")]
    Unfinished(#[from] cairn_frontend_nbd::Unfinished),
    /// The mirror begins no updates.
    #[error("the mirror `{volume}` is paused")]
    Paused {
        /// The mirror.
        volume: String,
    },
    /// What is below a volume has no room.
    #[error("{volume} takes no writes: too little space is left on its file system ({place}, {free} free)")]
    HostFull {
        /// The volume.
        volume: String,
        /// Where the file system is.
        place: String,
        /// What it has left.
        free: cairn_base::ByteSize,
    },
    /// Something in the data directory belongs to somebody who is not the server's user.
    #[error("{} belongs to user {owner}, and the server runs as user {user}: it could have the server read and write any file", path.display())]
    ForeignState {
        /// The file or folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// The server's user.
        user: u32,
    },
    /// The data directory has no room for a socket.
    #[error("the file system of {} is full: the server can't make its socket", path.display())]
    NoRoomForSocket {
        /// The data directory.
        path: PathBuf,
    },
    /// A state file that could not be read is gone.
    #[error("{} is gone, and what it said is not known: it could not be read before", path.display())]
    StateGone {
        /// The file.
        path: PathBuf,
    },
    /// A state file that could not be read can be read again.
    #[error("{} can be read again, and is not taken in yet", path.display())]
    StateNotTaken {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the data directory.
    #[error("another server runs on {}", path.display())]
    DataDirBusy {
        /// The directory.
        path: PathBuf,
    },
    /// NBD cannot listen.
    #[error(transparent)]
    NbdListen(#[from] cairn_frontend_nbd::ListenError),
    /// iSCSI cannot listen.
    #[error(transparent)]
    IscsiListen(#[from] cairn_frontend_iscsi::ListenError),
    /// NBD cannot start.
    #[error(transparent)]
    NbdStart(#[from] cairn_frontend_nbd::StartError),
    /// The operating system refused a path.
    #[error("cannot {action} {}: {source}", path.display())]
    Path {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A state file is no such thing.
    #[error("{} is damaged: {source}", path.display())]
    DamagedState {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// What a state file says is not known, as it can't be read.
    #[error("{reason}")]
    StateUnread {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A state file that is not damaged was to be given up, or restored.
    #[error("there is no state file `{file}` here that can't be read")]
    StateKnown {
        /// As given.
        file: String,
    },
    /// What nothing could go on without.
    #[error("nothing goes on without {}", path.display())]
    StateNeeded {
        /// The file.
        path: PathBuf,
        /// What ends what it belongs to.
        ends: String,
    },
    /// A state file has no previous generation that can be read.
    #[error("there is no previous generation of {}", path.display())]
    NoPrevious {
        /// The file.
        path: PathBuf,
    },
    /// A state file of a newer (or unknown) version.
    #[error("{} has version {found}; this program reads version {supported}", path.display())]
    StateVersion {
        /// The file.
        path: PathBuf,
        /// In the file.
        found: u64,
        /// The newest that is read.
        supported: u64,
    },
    /// The configuration file is not one.
    #[error("{} is no configuration: {source}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What the parser said, with the line.
        source: Box<toml::de::Error>,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// As configured.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The path of a socket does not fit into a socket address.
    #[error("the path of the socket is too long ({} bytes): {}", path.as_os_str().len(), path.display())]
    SocketPath {
        /// The socket.
        path: PathBuf,
    },
    /// A device that a new volume should take holds something.
    #[error("{} is not empty", path.display())]
    DeviceNotEmpty {
        /// The device.
        path: PathBuf,
    },
    /// The devices do not hold a volume of that size.
    #[error("a volume of {} needs {} of device, and there are {}", ByteSize(*size), ByteSize(*need), ByteSize(*have))]
    DeviceTooSmall {
        /// Of the block space, bytes.
        size: u64,
        /// Bytes.
        need: u64,
        /// Bytes.
        have: u64,
        /// The last of them, of a volume that is there.
        last: Option<PathBuf>,
    },
    /// The server's own key can't be read.
    #[error("{}, the key of this server by which its peers know it, is damaged: there is no key and certificate in it", path.display())]
    DamagedIdentity {
        /// Where it is.
        path: PathBuf,
    },
    /// A device cannot be opened.
    #[error(transparent)]
    OpenDevice(#[from] cairn_device::OpenError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The volume refused or failed.
    #[error("volume `{volume}`: {source}")]
    Volume {
        /// Its name.
        volume: String,
        /// The cause.
        source: VolumeError,
    },
    /// A LUN belongs to an adopted device.
    #[error("the LUN `{lun}` belongs to the adopted device `{device}`, whose history would not know of it")]
    Adopted {
        /// VOLUME/LUN.
        lun: String,
        /// The device.
        device: String,
    },
    /// An adopted device that does not remember.
    #[error("device `{device}` has no history")]
    WithoutHistory {
        /// Its name.
        device: String,
    },
    /// A store is to be taken as it is, and is what it was.
    #[error("the store of the history of `{name}` is not older than it was: it is in service")]
    NotOlder {
        /// The device or volume.
        name: String,
    },
    /// A plan for what nobody has written to.
    #[error("not enough was written to `{name}` since the server began to plan from it")]
    NothingWritten {
        /// The volume, export or device.
        name: String,
    },
    /// A recording could not begin.
    #[error("`{export}` is not recorded: {source}")]
    Recording {
        /// The export.
        export: String,
        /// The cause.
        source: cairn_trace::TraceError,
    },
    /// The history of an adopted device refused or failed.
    #[error("the history of `{device}`: {source}")]
    History {
        /// Its name.
        device: String,
        /// The cause.
        source: HistoryError,
    },
    /// An adopted device could not be opened when the server started.
    #[error("device `{device}` is not open: {reason}")]
    DeviceUnavailable {
        /// Its name.
        device: String,
        /// Of what kind the reason is.
        kind: ErrorKind,
        /// Why.
        reason: String,
        /// What to do.
        next: String,
    },
    /// The LUN layer refused or failed.
    #[error("`{name}`: {source}")]
    Files {
        /// VOLUME/LUN, or the volume.
        name: String,
        /// The cause.
        source: FilesError,
    },
    /// A volume of the directory could not be opened when the server started.
    #[error("volume `{volume}` is not open: {reason}")]
    VolumeUnavailable {
        /// Its name.
        volume: String,
        /// Of what kind the reason is.
        kind: ErrorKind,
        /// Why.
        reason: String,
        /// What to do.
        next: String,
    },
    /// A device of a volume that is not open.
    #[error("{} belongs to volume `{volume}`, which is not open", path.display())]
    DeviceClaimed {
        /// The device.
        path: PathBuf,
        /// The volume.
        volume: String,
    },
    /// A file or a disk of an adopted device that is not open.
    #[error("{} belongs to the adopted device `{device}`, which is not open", path.display())]
    ClaimedByDevice {
        /// The file or the disk.
        path: PathBuf,
        /// The device.
        device: String,
    },
    /// The device of a volume's intent log cannot be opened.
    #[error("the intent log of `{volume}` is on {}, which cannot be opened: {source}", path.display())]
    LogUnavailable {
        /// The volume.
        volume: String,
        /// Its log device.
        path: PathBuf,
        /// The cause.
        source: cairn_device::OpenError,
    },
    /// The store of the history under a volume cannot be opened.
    #[error("the history under `{volume}` is in {}, which cannot be opened: {source}", path.display())]
    HistoryUnavailable {
        /// The volume.
        volume: String,
        /// Its store.
        path: PathBuf,
        /// The cause.
        source: cairn_device::OpenError,
    },
    /// A clone was taken for a view, or a view for a clone.
    #[error("`{device}@{view}` is a {kind}")]
    OtherKind {
        /// The device.
        device: String,
        /// The second part of its name.
        view: String,
        /// "view" or "clone", as in the command.
        kind: &'static str,
    },
    /// Instants of a device are exported.
    #[error("`{device}` has views or clones: {instants}")]
    Shown {
        /// The device.
        device: String,
        /// The second parts of their names.
        instants: String,
    },
    /// What a volume with a history under it, or without one, does not do.
    #[error("`{volume}`: {why}")]
    OverHistory {
        /// The volume.
        volume: String,
        /// Of what kind that is.
        kind: ErrorKind,
        /// Why.
        why: &'static str,
        /// What to do.
        next: &'static str,
    },
    /// A log was to be thrown away that can be replayed.
    #[error("the intent log of `{volume}` is whole, and the volume is open: nothing is lost")]
    LogIsThere {
        /// The volume.
        volume: String,
    },
    /// A mirror's destination takes no changes of its own.
    #[error("`{volume}` is the destination of a mirror and takes no changes of its own")]
    IsDestination {
        /// Its name.
        volume: String,
    },
    /// The mirrors of a group have no snapshot of it in common.
    #[error("the volumes of group `{group}` have no snapshot of it in common")]
    GroupApart {
        /// Its name.
        group: String,
    },
    /// The mirrors of a group show one instant, and have none in common.
    #[error(
        "`{volume}` shows nothing: the mirrors of group `{group}` show one instant, and have no snapshot of the group in common"
    )]
    GroupShowsNothing {
        /// The volume.
        volume: String,
        /// The group.
        group: String,
    },
    /// A volume of a group that is shown together can't become another state alone.
    #[error("`{volume}` shows one instant together with the other volumes of group `{group}`")]
    InGroup {
        /// The volume.
        volume: String,
        /// The group.
        group: String,
    },
    /// Two groups would decide what a volume shows.
    #[error("a volume of group `{group}` shows one instant with those of group `{other}` already")]
    GroupsShare {
        /// The one that was asked for.
        group: String,
        /// The one that is there.
        other: String,
    },
    /// A failover of a group was cut off.
    #[error("the failover or reverse of group `{group}` is not over")]
    GroupUnfinished {
        /// Its name.
        group: String,
    },
    /// A group takes writes already.
    #[error("the volumes of group `{group}` were failed over, or took over, and take writes")]
    GroupFailedOver {
        /// Its name.
        group: String,
    },
    /// Several mirrors of a volume were failed over, and each has been written to.
    #[error("several mirrors of `{volume}` were failed over: {}", mirrors.iter().map(|(name, address)| format!("{name} at {address}")).collect::<Vec<_>>().join(", "))]
    SeveralDeparted {
        /// The volume.
        volume: String,
        /// What each is called, and where it is.
        mirrors: Vec<(String, String)>,
    },
    /// It follows nobody, and nobody has taken its place as far as it has heard.
    #[error("`{volume}` is no mirror, and no mirror of it has said that it was failed over")]
    NotDeparted {
        /// The volume.
        volume: String,
    },
    /// A mirror was asked for, and the volume is none.
    #[error("`{volume}` is no mirror")]
    NotAMirror {
        /// Its name.
        volume: String,
    },
    /// Over TCP, what only whoever is on this machine may ask for.
    #[error("{what}, which is taken on the control socket only")]
    LocalOnly {
        /// Why.
        what: &'static str,
    },
    /// What a clone is made of is not there, or not open.
    #[error("`{clone}` is a clone of {base}, which is not there or not open")]
    CloneBaseGone {
        /// The clone.
        clone: String,
        /// The snapshot.
        base: String,
    },
    /// A volume of which there are clones.
    #[error("`{clone}` is a clone of a snapshot of `{volume}`")]
    HasClone {
        /// The volume.
        volume: String,
        /// The clone.
        clone: String,
    },
    /// A mirror's volume is not deleted by itself.
    #[error("`{volume}` is a mirror and follows its source")]
    FollowsSource {
        /// Its name.
        volume: String,
    },
    /// A mirror provisions a volume of its own.
    #[error("the destination is not empty: volume `{volume}` exists here")]
    DestinationTaken {
        /// Its name.
        volume: String,
    },
    /// Its first image would be open to everybody.
    #[error("the source can't say who may use the LUNs of `{volume}`, so nothing of it is shown here")]
    AccessUnknown {
        /// The mirror.
        volume: String,
    },
    /// The source's volume of that name is not the one that was mirrored.
    #[error("the source has another volume under the name that `{volume}` mirrors")]
    OtherVolume {
        /// The mirror.
        volume: String,
    },
    /// It is to follow a mirror that has no image as new as its own.
    #[error("the mirror at {address} is behind what `{volume}` shows, and has nothing for it yet")]
    IsBehind {
        /// The mirror that was to follow.
        volume: String,
        /// The server with the other one.
        address: String,
    },
    /// Nothing has arrived yet.
    #[error("no image of `{volume}` has arrived yet")]
    NoImage {
        /// The mirror.
        volume: String,
    },
    /// The system gave no thread.
    #[error("cannot start a thread for {what}: {source}")]
    Thread {
        /// What for.
        what: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The mirror was failed over: it no longer follows its source.
    #[error("`{volume}` was failed over and no longer follows its source")]
    FailedOver {
        /// Its name.
        volume: String,
    },
    /// A role or a lock forbids it.
    #[error(transparent)]
    Role(#[from] RoleError),
    /// Not a token of this program.
    #[error("this is no invitation token")]
    InvalidToken,
    /// A token that is past its time.
    #[error("the token has expired")]
    TokenExpired,
    /// A token that another destination has used.
    #[error("the token was used before, by another destination")]
    TokenUsed,
    /// The source does not know the token: it was revoked, or its identity was replaced.
    #[error("the source does not know this token")]
    TokenUnknown,
    /// The token was given for another volume.
    #[error("this peer may not mirror volume `{volume}`")]
    VolumeNotAllowed {
        /// The volume asked for.
        volume: String,
    },
    /// The certificate is not pinned (any more).
    #[error("the source does not accept this server's certificate")]
    PeerNotPinned,
    /// The source is not the one in the token.
    #[error("the server at {address} does not have the certificate that the token pins")]
    WrongSource {
        /// Where.
        address: String,
    },
    /// No connection.
    #[error("the source at {address} cannot be reached: {source}")]
    Unreachable {
        /// Where.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A connection of a destination that broke before it was admitted.
    #[error("the connection of the peer at {address} broke: {source}")]
    PeerGone {
        /// Who.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// A connection that stands, and nothing comes, or nothing is taken.
    #[error("the {peer} at {address} has neither sent nor taken anything for {}: it was given up", Interval(*patience))]
    Silent {
        /// "source" or "destination".
        peer: &'static str,
        /// Where.
        address: String,
        /// For how long.
        patience: Duration,
    },
    /// The other end speaks another version.
    #[error("the other end speaks version {theirs} of the peer protocol, this server version {ours}")]
    PeerVersion {
        /// Theirs.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The other end said something that has no place here.
    #[error("the peer at {address} broke the protocol")]
    PeerProtocol {
        /// Who.
        address: String,
    },
    /// What the source refused, in its own words.
    #[error("the source at {address} refused: {}", body.message)]
    Refused {
        /// Who.
        address: String,
        /// What it said.
        body: Box<ErrorBody>,
    },
    /// The transfer failed.
    #[error("the transfer of `{volume}` failed: {source}")]
    Mirror {
        /// Its name.
        volume: String,
        /// The cause.
        source: Box<cairn_mirror::MirrorError>,
    },
    /// An image dump can't be written, read, put together or restored.
    #[error("{source}")]
    Dump {
        /// The cause.
        source: Box<cairn_stream::DumpError>,
    },
    /// There is nothing that a dump of this level could be made against.
    #[error("no image dump of `{volume}` of a lower level than {level} was made")]
    NoLowerDump {
        /// The volume.
        volume: String,
        /// The level asked for.
        level: u8,
    },
    /// There is no date from which on a dump of this level has what changed.
    #[error("no dump of `{name}` of a lower level than {level} was made")]
    NoEarlierDump {
        /// The volume, with the path.
        name: String,
        /// The level asked for.
        level: u8,
    },
    /// What a BSD dump was made of was given up by a rollback.
    #[error(
        "`{name}` was rolled back to what was before its dump of level {level}: dates do not say what changed since"
    )]
    DumpGivenUp {
        /// The volume, with the path.
        name: String,
        /// The level of that dump.
        level: u8,
    },
    /// A dump of a level above 0 is asked for of what is older than the dump that it stands on.
    #[error(
        "`{snapshot}` is older than what the dump of level {level} was made of, on which this one would stand"
    )]
    DumpIsOlder {
        /// What is to be dumped, with its snapshot.
        snapshot: String,
        /// The level of that dump.
        level: u8,
    },
    /// Where a BSD dump goes to takes no more.
    #[error("the dump can't be written: {source}")]
    DumpOutput {
        /// The cause.
        source: io::Error,
    },
    /// The inodes of what is dumped.
    #[error("what is to be dumped can't be read: {source}")]
    DumpSource {
        /// The cause.
        source: io::Error,
    },
    /// An image dump or a restore can't begin, or can't be resumed.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// Its parts are not all there.
    #[error("the image dump of `{volume}` is not whole yet")]
    DumpNotWhole {
        /// The volume.
        volume: String,
    },
    /// What an unfinished dump was made of is not as it was.
    #[error("`{volume}@{snapshot}`, which the unfinished image dump has, is not there any more")]
    DumpSourceGone {
        /// The volume.
        volume: String,
        /// The snapshot.
        snapshot: String,
    },
    /// A dump into files did not come to its end.
    #[error("{source}; what there is of the image dump of `{volume}` stays")]
    DumpCut {
        /// The volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// The snapshot of the last dump of a lower level is gone.
    #[error(
        "`{volume}@{snapshot}`, the snapshot of its last image dump of level {level}, is not there any more"
    )]
    DumpBaseGone {
        /// The volume.
        volume: String,
        /// The level of that dump.
        level: u8,
        /// Its snapshot.
        snapshot: String,
    },
    /// A restore was to go on with other dumps.
    #[error("the unfinished image restore of `{volume}` is not of these dumps")]
    RestoreOfOthers {
        /// The new volume.
        volume: String,
        /// The files that it was begun with.
        files: Vec<String>,
    },
    /// A restore was to go on, on a device that is not as it was left.
    #[error("{} does not hold what was restored into `{volume}`", path.display())]
    RestoreDeviceChanged {
        /// The device.
        path: PathBuf,
        /// The new volume.
        volume: String,
    },
    /// A restore did not come to its end.
    #[error("{source}; what there is of the image restore of `{volume}` stays")]
    RestoreCut {
        /// The new volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// What is written down of a restore that was cut can't be read.
    #[error("the image restore of `{volume}` can't go on: {source}")]
    RestoreUnread {
        /// The new volume.
        volume: String,
        /// Why.
        source: Box<ServerError>,
    },
    /// What was restored is not sound, although no record was damaged: the volume was damaged when it was dumped.
    #[error("what was dumped into `{volume}` was damaged already: {finding}")]
    RestoredDamaged {
        /// The new volume.
        volume: String,
        /// The first finding.
        finding: String,
    },
    /// No address to put into a token.
    #[error("this server has no address that a peer could reach: it listens on {listening}")]
    NoAddress {
        /// As configured.
        listening: String,
    },
    /// TLS could not be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The bearer token is missing or wrong.
    #[error("the request carries no valid token")]
    Unauthorized,
    /// What only this side has needs a decision.
    #[error(
        "{bytes} bytes that were written to `{volume}` are not at the other side{}: following it would give them up",
        match snapshots.len() { 0 => String::new(), _ => format!(", nor are its snapshots {}", snapshots.join(", ")) }
    )]
    Undecided {
        /// Here.
        volume: String,
        /// Blocks that only this side has.
        bytes: u64,
        /// Snapshots that only this side has.
        snapshots: Vec<String>,
    },
    /// A side that was to follow the other one has nothing in common with it.
    #[error("`{volume}` can't follow the other side by what both have: {source}")]
    NothingInCommon {
        /// Here.
        volume: String,
        /// The price of comparing.
        source: Box<cairn_mirror::MirrorError>,
    },
    /// What was known of a mirror's source was given up.
    #[error("the source of `{volume}` is not known any more")]
    SourceForgotten {
        /// The mirror.
        volume: String,
    },
    /// The other side of a mirror did not say where it is reached.
    #[error("the other side has not said where mirrors reach its server")]
    Unlocated,
    /// No such path in the API.
    #[error("no such path in the API: {path}")]
    NoSuchPath {
        /// As asked.
        path: String,
    },
    /// The body is not what the API describes.
    #[error("the request is not what the API describes: {reason}")]
    BadRequest {
        /// What the parser said.
        reason: String,
    },
    /// The server ends.
    #[error("the server is ending")]
    Ending,
    /// Someone ended it, or the server does.
    #[error("it was ended before it was through: what it did not find says nothing")]
    Cancelled,
    /// A part of the server has panicked: a bug.
    #[error("a part of the server failed unexpectedly: this is a bug")]
    Bug,
}

impl From<cairn_stream::DumpError> for ServerError {
    fn from(source: cairn_stream::DumpError) -> Self {
        ServerError::Dump { source: Box::new(source) }
    }
}

impl From<InvalidVolumeId> for ServerError {
    fn from(_: InvalidVolumeId) -> Self {
        ServerError::Invalid { what: "the volume id", rule: "it is 32 hexadecimal digits" }
    }
}

impl ServerError {
    /// A closure for `map_err` that names the path.
    pub(crate) fn path<'a>(
        action: &'static str,
        path: &'a std::path::Path,
    ) -> impl FnOnce(io::Error) -> ServerError + 'a {
        move |source| ServerError::Path { action, path: path.to_owned(), source }
    }

    /// A closure for `map_err` that names the volume.
    pub(crate) fn volume(name: &str) -> impl Fn(VolumeError) -> ServerError + '_ {
        move |source| match source {
            VolumeError::WrongRole(cairn_format::Role::Destination) => {
                ServerError::IsDestination { volume: name.to_owned() }
            }
            source => ServerError::Volume { volume: name.to_owned(), source },
        }
    }

    /// A closure for `map_err` that names the device.
    pub(crate) fn history(name: &str) -> impl Fn(HistoryError) -> ServerError + '_ {
        move |source| ServerError::History { device: name.to_owned(), source }
    }

    /// A closure for `map_err` that names the LUN.
    pub(crate) fn files(name: &str) -> impl Fn(FilesError) -> ServerError + '_ {
        move |source| ServerError::Files { name: name.to_owned(), source }
    }

    /// A closure for `map_err` that names whose files these are.
    pub(crate) fn tree(name: &str) -> impl Fn(cairn_files::TreeError) -> ServerError + '_ {
        move |source| ServerError::Tree { name: name.to_owned(), source }
    }

    /// What reaches the client.
    pub fn body(&self) -> ErrorBody {
        if let ServerError::Refused { body, .. } = self {
            return ErrorBody { error: body.error, message: self.to_string(), next: body.next.clone() };
        }
        ErrorBody { error: self.kind(), message: self.to_string(), next: self.next() }
    }
}

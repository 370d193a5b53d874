//! The server: its parts, how they start and end, and what it looks like at a glance.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_api as api;
use cairn_api::{Address, tcp_uri, unix_uri};
use cairn_base::Clock;
use cairn_device::SystemClock;
use cairn_frontend_iscsi::{
    IscsiServer, Listener as Portal, ServerOptions as IscsiOptions, SessionInfo as IscsiSession,
};
use cairn_frontend_nbd::{Address as NbdAddress, Listener, NbdServer, ServerOptions, SessionInfo};
use cairn_frontend_session::{Activity, Rate, Windows};

use crate::access::Access;
use crate::budgets::Budgets;
use crate::changed::LastAnswer;
use crate::config::{Config, check_reachable};
use crate::damaged::{self, Unknown};
use crate::data_dir::{DataDir, guard};
use crate::devices::Devices;
use crate::drills::Drills;
use crate::error::ServerError;
use crate::exports::{ExportTable, FrozenNames, luns_of};
use crate::followers::{Followers, crowded};
use crate::groups::Groups;
use crate::handover::Handover;
use crate::http;
use crate::identity::Identity;
use crate::images::Dumping;
use crate::jobs::Jobs;
use crate::memory::GivingBack;
use crate::mirrors::{Mirrors, Surroundings};
use crate::mounts::Mounts;
use crate::names::{self, ExportName};
use crate::notify;
use crate::peers::Peers;
use crate::plans::Plans;
use crate::recordings::Recordings;
use crate::schedules::Runner;
use crate::source::Source;
use crate::targets::{TargetTable, present_of, target_name};
use crate::tls;
use crate::transfer;
use crate::volumes::Volumes;
use crate::watchdog::Watchdog;

/// How long sessions get to close their connections, before what waits in them for a device is let go.
const CLOSING: Duration = Duration::from_millis(100);
/// How long what programs have written to mounts waits for room in a history when the server ends.
const MOUNTS_PATIENCE: Duration = Duration::from_secs(2);
/// How long jobs get to end when the server does.
const JOB_PATIENCE: Duration = Duration::from_secs(5);

/// All parts of a running server.
pub(crate) struct Server {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) devices: Arc<Devices>,
    pub(crate) recordings: Arc<Recordings>,
    pub(crate) plans: Arc<Plans>,
    pub(crate) mirrors: Arc<Mirrors>,
    pub(crate) source: Arc<cairn_mirror::Source>,
    pub(crate) followers: Arc<Followers>,
    pub(crate) handover: Arc<Handover>,
    pub(crate) dumping: Arc<Dumping>,
    pub(crate) drills: Arc<Drills>,
    pub(crate) mounts: Arc<Mounts>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) changed: LastAnswer,
    nbd: NbdServer,
    iscsi: IscsiServer,
    /// Where initiators are told to come.
    iscsi_portals: Vec<String>,
    pub(crate) access: Arc<Access>,
    /// DIR/nbd.sock.
    nbd_socket: PathBuf,
    http_addresses: Vec<String>,
    /// What the mirror listener got; none when off.
    mirror_address: Option<String>,
    advertise: Option<String>,
    started: Duration,
    data: DataDir,
    /// State files that could not be read, and were not taken in or given up since.
    pub(crate) unknown: Unknown,
}

/// Runs a server until SIGTERM or SIGINT; `ready` is called once it serves.
pub fn run(config: Config, ready: impl FnOnce(&api::Status)) -> Result<(), ServerError> {
    guard::set_umask();
    let budgets = Budgets::of_this_process();
    let data = DataDir::open(&config.data)?;
    let here = data.path().to_owned();
    damaged::refuse_newer(&here)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(ServerError::path("start the runtime of", &here))?;
    // Signals are taken from here on, so that one during the start ends the server in order as well.
    let signals = runtime.block_on(async { Signals::new() });
    let mut signals = signals.map_err(ServerError::path("take signals for", &here))?;

    // The ports first: it is known at once whether the server can start, before any volume is opened.
    let (control, control_path) = data.listen_control()?;
    let (handover, handover_path) = data.listen_handover()?;
    let http = match &config.http {
        Address::Tcp(address) => Some((listen(address)?, data.http_token()?)),
        _ => None,
    };
    let mirror = match &config.mirror {
        Address::Tcp(address) => Some(listen(address)?),
        _ => None,
    };
    let nbd_socket = data.nbd_socket()?;
    let mut nbd = vec![data.listen_nbd(&nbd_socket)?];
    for address in &config.nbd {
        nbd.extend(match address {
            Address::Off => None,
            Address::Tcp(address) => Some(Listener::bind(&NbdAddress::Tcp(address.clone()))?),
            Address::Unix(path) => {
                let listener = Listener::bind(&NbdAddress::Unix(path.clone()))?;
                // A socket that its owner has put somewhere is for those to whom the owner's umask gives it.
                let mode = Permissions::from_mode(0o777 & !guard::umask_at_start());
                fs::set_permissions(path, mode).map_err(ServerError::path("set the mode of", path))?;
                Some(listener)
            }
        });
    }

    let portals = config.iscsi.iter().map(|address| Portal::bind(address));
    let portals = portals.collect::<Result<Vec<_>, _>>()?;

    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let identity = Arc::new(Identity::open(data.path())?);
    let peers = Arc::new(Peers::open(data.path())?);
    let volumes = Arc::new(Volumes::open(data.volumes(), config.cache, clock.clone())?);
    let devices = Arc::new(Devices::open(data.devices(), clock.clone(), volumes.clone())?);
    volumes.also_ask(&devices);
    let jobs = Arc::new(Jobs::new(clock.clone()));
    let groups = Arc::new(Groups::open(data.path(), volumes.clone(), clock.clone())?);
    let (followers, sessions) = Followers::open(data.path())?;
    let (followers, sessions) = (Arc::new(followers), Arc::new(sessions));
    let access = Arc::new(Access::open(data.path())?);
    access.join(&devices.on_luns())?;
    let mirrors = Mirrors::open(Surroundings {
        volumes: volumes.clone(),
        identity: identity.clone(),
        clock: clock.clone(),
        jobs: jobs.clone(),
        peers: peers.clone(),
        groups: groups.clone(),
        source: sessions.clone(),
        access: access.clone(),
        devices: devices.clone(),
        address: mirrors_reach(config.advertise.as_deref(), mirror.as_ref()),
        patience: config.mirror_patience,
    })?;
    let mirrors = Arc::new(mirrors);
    // What clients have on its way is bounded over all of them.
    let windows = Arc::<Windows>::default();
    let options = ServerOptions {
        tls: Some(tls::nbd_server(&identity)?),
        tls_required: config.nbd_tls_required,
        max_sessions: budgets.sessions,
        max_handshakes: budgets.handshakes,
        windows: windows.clone(),
    };
    let recordings = Arc::new(Recordings::new(clock.clone()));
    let plans = Arc::new(Plans::new(clock.clone()));
    let frozen = Arc::<FrozenNames>::default();
    let exports = || ExportTable {
        frozen: frozen.clone(),
        volumes: volumes.clone(),
        groups: groups.clone(),
        devices: devices.clone(),
        access: access.clone(),
        recordings: recordings.clone(),
        plans: plans.clone(),
    };
    let nbd = NbdServer::start(nbd, Arc::new(exports()), options)?;
    let targets = TargetTable { exports: exports(), fingerprint: identity.fingerprint.to_string() };
    let advertised = config.iscsi_advertise.clone();
    let options = IscsiOptions {
        advertise: config.iscsi_advertise,
        max_sessions: budgets.sessions,
        max_handshakes: budgets.handshakes,
        windows,
        ..IscsiOptions::default()
    };
    let iscsi = IscsiServer::start(portals, Arc::new(targets), options)
        .map_err(|source| ServerError::Thread { what: "iSCSI", source })?;
    let portals = iscsi.addresses().iter().map(|address| names::from_elsewhere(address));
    let iscsi_portals = match advertised {
        Some(portal) if !iscsi.addresses().is_empty() => vec![portal],
        _ => portals.collect(),
    };
    let mut http_addresses = vec![format!("unix:{}", control_path.display())];
    http_addresses.extend(http.as_ref().map(|(listener, _)| local(listener)));
    let mirror_address = mirror.as_ref().map(local);
    let drills = Arc::new(Drills::open(volumes.clone(), clock.clone())?);
    let mounts = Mounts::open(data.path(), volumes.clone(), groups.clone())?;
    let server = Arc::new(Server {
        drills,
        mounts,
        groups,
        changed: LastAnswer::default(),
        jobs,
        started: clock.monotonic(),
        clock,
        identity,
        peers,
        volumes,
        devices,
        recordings,
        plans,
        mirrors,
        source: sessions,
        followers,
        handover: Handover::start(handover)?,
        dumping: Arc::default(),
        nbd,
        iscsi,
        iscsi_portals,
        access,
        nbd_socket,
        http_addresses,
        mirror_address,
        advertise: config.advertise,
        unknown: Unknown::of(data.path()),
        data,
    });
    // Not the server itself: it would never end.
    let (of_volumes, of_disks) = (Arc::downgrade(&server), Arc::downgrade(&server));
    let close_volume = move |volume: &str| {
        of_volumes.upgrade().map_or(0, |server| {
            let sessions = server.end_sessions(|export| export.volume == volume && export.snapshot.is_none());
            sessions + server.mounts.close_live(volume)
        })
    };
    let close_disk = move |export: &str| {
        // Settings that the source has changed hold from here on, whatever the disk does.
        of_disks.upgrade().map_or(0, |server| server.close_disk(export).unwrap_or(0))
    };
    server.mirrors.close_with(Box::new(close_volume), Box::new(close_disk));
    let mounts = Arc::downgrade(&server.mounts);
    server.mirrors.follow_with(move |volume| {
        if let Some(mounts) = mounts.upgrade() {
            mounts.follow(|of| of == volume);
        }
    });
    // Before that a peer could take a volume over whose sessions nobody ends.
    let source = mirror.map(|listener| {
        let (peers, volumes, followers) =
            (server.peers.clone(), server.volumes.clone(), server.followers.clone());
        let (clock, sessions, mirrors) =
            (server.clock.clone(), server.source.clone(), server.mirrors.clone());
        let (identity, patience) = (&server.identity, config.mirror_patience);
        Source::start(
            listener, identity, peers, volumes, clock, sessions, patience, followers, mirrors, budgets,
        )
    });
    let source = source.transpose()?;
    if let Some(source) = source.as_ref().filter(|_| config.mirror_learns) {
        server.mirrors.open_with(Box::new(source.opener()));
    }
    server.clear_left_dumps();
    let schedule = server.mirrors.start_schedule()?;
    let snapshots = Runner::start(server.clone())?;
    let drills = server.start_drills()?;
    let watch = server.mounts.watch()?;
    let giving_back = GivingBack::start()?;

    server.data.keep_reserve();
    ready(&server.status());
    notify::tell("READY=1");
    let watchdog = Watchdog::start(control_path.clone(), server.nbd_socket.clone(), server.volumes.clone())?;
    tracing::info!(data = %server.data.path().display(), "serving");
    let outcome = runtime.block_on(http::serve(server.clone(), control, http, budgets, async move {
        let signal = signals.next().await;
        tracing::info!(signal, "ending");
        notify::tell("STOPPING=1");
    }));
    // From here on the manager waits for the end, and for no beats.
    drop(watchdog);

    server.volumes.end_hooks();
    server.mirrors.end();
    server.drills.end();
    server.jobs.cancel_all();
    if let Some(source) = source {
        source.end();
    }
    drop((schedule, snapshots, drills));
    drop((watch, giving_back));
    std::thread::scope(|scope| {
        // What programs have written comes first, unless it waits for room that may never come: then it is let go with all else that does.
        let mounts = scope.spawn(|| server.mounts.end());
        let mut waited = Duration::ZERO;
        while !mounts.is_finished() && waited < MOUNTS_PATIENCE {
            std::thread::sleep(CLOSING);
            waited += if server.volumes.waits_for_room() { CLOSING } else { Duration::ZERO };
        }
        scope.spawn(|| server.iscsi.stop());
        scope.spawn(|| server.nbd.stop());
        // Their connections are closed by now: no client is told of a write that waited for room in vain.
        std::thread::sleep(CLOSING);
        server.devices.end_waits();
        server.volumes.end_waits();
    });
    server.recordings.end();
    let patience = Instant::now() + JOB_PATIENCE;
    while server.jobs.any_running() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.devices.end();
    server.volumes.end();
    let _ = std::fs::remove_file(&control_path);
    let _ = std::fs::remove_file(&handover_path);
    outcome.map_err(ServerError::path("answer on", &control_path))
}

fn listen(address: &str) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address).map_err(|source| ServerError::Listen { address: address.to_owned(), source })
}

/// The address that mirrors use: the one that is told, or the port at whatever name the other side knows this host by.
fn mirrors_reach(advertise: Option<&str>, listener: Option<&TcpListener>) -> String {
    match (advertise, listener.and_then(|listener| listener.local_addr().ok())) {
        (_, None) => String::new(),
        (Some(address), _) => address.to_owned(),
        (None, Some(address)) if address.ip().is_unspecified() => format!(":{}", address.port()),
        (None, Some(address)) => address.to_string(),
    }
}

fn local(listener: &TcpListener) -> String {
    listener.local_addr().map(|address| address.to_string()).unwrap_or_default()
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

impl Server {
    /// The server at a glance.
    pub(crate) fn status(&self) -> api::Status {
        let (followers, leftovers) = self.followers();
        let mut problems = self.volumes.problems();
        problems.extend(self.mirrors.problems());
        problems.extend(self.drills.problems());
        problems.extend(self.group_problems());
        problems.extend(self.devices.problems());
        problems.extend(self.mounts.problems());
        let parted = |follower: &api::Follower| {
            let are_of_it =
                |other: &&api::Follower| other.volume == follower.volume && other.departed.is_some();
            follower.parted(followers.iter().filter(are_of_it).count() > 1)
        };
        problems.extend(followers.iter().filter_map(parted));
        let now_ms = self.clock.now().0 / 1_000_000;
        problems.extend(followers.iter().filter_map(|follower| follower.unheard(now_ms)));
        problems.extend(crowded(&followers, &leftovers));
        problems.extend(self.schedule_problems());
        problems.extend(self.state_problems());
        problems.extend(self.access_problems());
        let exports = self.exports();
        problems.extend(self.target_problems(&exports));
        problems.extend(followers.iter().filter(|follower| follower.over_rpo).map(|follower| api::Problem {
            subject: follower.volume.clone(),
            message: "a mirror of it is further behind than its owner wants".to_owned(),
            next: "see `cairn mirror status` at the destination".to_owned(),
        }));
        api::Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data: self.data.path().display().to_string(),
            pid: std::process::id(),
            uptime_ms: self.clock.monotonic().saturating_sub(self.started).as_millis() as u64,
            memory_bytes: resident_bytes().unwrap_or(0),
            cache_bytes: self.volumes.cache_bytes(),
            consistency_points: self
                .volumes
                .all()
                .iter()
                .map(|open| open.volume.status().consistency_points)
                .sum(),
            fingerprint: self.identity.fingerprint.to_string(),
            http: self.http_addresses.clone(),
            mirror: self.mirror_address.clone(),
            mirror_further: self.mirrors.opened().iter().map(ToString::to_string).collect(),
            nbd: self.nbd.addresses().iter().map(ToString::to_string).collect(),
            iscsi: self.iscsi.addresses().to_vec(),
            volumes: self.volumes.list(),
            devices: self.list_devices(),
            exports,
            mirrors: self.list_mirrors(),
            drills: self.drills.list(),
            governors: self.governors(),
            followers,
            leftovers,
            problems,
        }
    }

    /// The data directory, absolute.
    pub(crate) fn data_dir(&self) -> &std::path::Path {
        self.data.path()
    }

    /// The data directory, as others name it.
    pub(crate) fn data_path(&self) -> String {
        let path = self.data.path();
        std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
    }

    /// The LUNs, and whatever else is open.
    pub(crate) fn exports(&self) -> Vec<api::Export> {
        let sessions = self.nbd.sessions();
        let initiators = self.iscsi.sessions();
        let of = |name: &str| -> Vec<api::Session> {
            let nbd = sessions.iter().filter(|session| session.export == name).map(show_session);
            let iscsi = initiators.iter().filter(|session| session.export.as_deref() == Some(name));
            nbd.chain(iscsi.map(show_initiator)).collect()
        };
        let (of_nbd, of_iscsi) = (self.nbd.totals(), self.iscsi.totals());
        let totals = |name: &str| {
            let mut totals = of_nbd.get(name).copied().unwrap_or_default();
            totals += of_iscsi.get(name).copied().unwrap_or_default();
            api::ExportTotals {
                requests: totals.requests,
                read_bytes: totals.read_bytes,
                written_bytes: totals.written_bytes,
            }
        };
        let mut exports = Vec::new();
        for open in self.volumes.all() {
            // What nobody can connect to at the moment is listed all the same.
            let shown = luns_of(&self.groups, &open);
            let shows_nothing = shown.is_err();
            let (luns, takes_writes) = shown.unwrap_or((open.luns.readable().unwrap_or_default(), false));
            for lun in luns {
                let name = format!("{}/{}", open.name, lun.name);
                let adopter = self.devices.adopter_of(&name);
                exports.push(api::Export {
                    closed: shows_nothing || adopter.is_some_and(|device| self.devices.get(&device).is_err()),
                    read_only: !takes_writes
                        || self.access.offer(&name).read_only
                        || self.devices.is_history(&name),
                    target: self.target(&name),
                    access: self.access.show(&name),
                    size_bytes: lun.bytes,
                    uris: self.uris(&name),
                    sessions: of(&name),
                    totals: totals(&name),
                    name,
                });
            }
        }
        for (name, size_bytes, read_only) in self.devices.sizes() {
            exports.push(api::Export {
                closed: false,
                read_only: read_only || self.access.offer(&self.settings_of(&name)).read_only,
                target: self.target(&name),
                access: self.access.show(&self.settings_of(&name)),
                size_bytes,
                uris: self.uris(&name),
                sessions: of(&name),
                totals: totals(&name),
                name,
            });
        }
        let mut others: Vec<&str> = sessions.iter().map(|session| session.export.as_str()).collect();
        others.extend(initiators.iter().filter_map(|session| session.export.as_deref()));
        others.sort_unstable();
        others.dedup();
        for name in others {
            let listed = exports.iter().any(|export| export.name == name);
            let Some(parsed) = ExportName::parse(name).filter(|_| !listed) else { continue };
            exports.push(api::Export {
                name: name.to_owned(),
                read_only: true,
                closed: false,
                target: self.target(name),
                access: self.access.show(&present_of(name)),
                size_bytes: self.snapshot_lun_bytes(&parsed).unwrap_or(0),
                uris: self.uris(name),
                sessions: of(name),
                totals: totals(name),
            });
        }
        exports
    }

    fn snapshot_lun_bytes(&self, name: &ExportName<'_>) -> Option<u64> {
        let open = self.volumes.get(name.volume).ok()?;
        let snapshots = open.volume.snapshots();
        let snapshot = snapshots.iter().find(|snapshot| Some(snapshot.name.as_str()) == name.snapshot)?;
        let image = open.volume.image(Some(snapshot.id)).ok()?;
        open.luns.find_in(&image, name.lun).ok().map(|lun| lun.bytes)
    }

    /// Where clients find an export, the socket in the data directory first.
    pub(crate) fn uris(&self, export: &str) -> Vec<String> {
        let mut uris = vec![unix_uri(&self.nbd_socket, export)];
        for address in self.nbd.addresses() {
            match address {
                NbdAddress::Tcp(address) => {
                    uris.push(tcp_uri(&names::from_elsewhere(address), export));
                }
                NbdAddress::Unix(path) if *path != self.nbd_socket => {
                    uris.push(unix_uri(path, export));
                }
                NbdAddress::Unix(_) => {}
            }
        }
        uris
    }

    /// How initiators reach an export.
    pub(crate) fn target(&self, export: &str) -> api::Target {
        api::Target { name: target_name(export), portals: self.iscsi_portals.clone() }
    }

    /// Refuses a disk whose target would have the name of another one's, as names with dots can have it: who logs in to one of them would write to the other.
    pub(crate) fn refuse_second_target(&self, export: &str) -> Result<(), ServerError> {
        let name = target_name(export);
        let is_taken = self.exports().iter().any(|known| known.name != export && known.target.name == name);
        if is_taken { Err(ServerError::Taken { what: "iSCSI target", name }) } else { Ok(()) }
    }

    /// The name under which the settings of an export stand.
    fn settings_of(&self, export: &str) -> String {
        self.devices.disk_of(&present_of(export))
    }

    /// Changes who may use an export, and how: `VOLUME/LUN` or an adopted device. Sessions that are there end, as what they were told no longer holds.
    pub(crate) fn set_access(
        &self,
        name: &str,
        request: &api::SetAccess,
    ) -> Result<api::Export, ServerError> {
        if name.contains('@') {
            return Err(ServerError::Invalid {
                what: "the name",
                rule: "settings are of a LUN or of an adopted device: they hold for its snapshots, views and clones as well",
            });
        }
        let bytes = match ExportName::parse(name) {
            Some(parsed) => {
                let open = self.volumes.get(parsed.volume)?;
                open.luns.find(parsed.lun).map_err(ServerError::files(name))?.bytes
            }
            None => {
                let sizes = self.devices.sizes();
                match sizes.iter().find(|(known, ..)| known == name) {
                    Some((_, bytes, _)) => *bytes,
                    None => self.devices.get(name).map(|_| 0)?,
                }
            }
        };
        let disk = self.devices.disk_of(name);
        if request.block_bytes.is_some_and(|bytes| bytes != 512 && bytes != 4096) {
            return Err(ServerError::Invalid { what: "the block size", rule: "it is 512 or 4096" });
        }
        let block_bytes = request.block_bytes.unwrap_or(self.access.show(&disk).block_bytes);
        if !bytes.is_multiple_of(u64::from(block_bytes.max(1))) {
            return Err(ServerError::Invalid {
                what: "the block size",
                rule: "the size of the disk is a multiple of it",
            });
        }
        let before = self.access.set(&disk, request)?;
        let closed = match self.close_disk(&disk) {
            Ok(closed) => closed,
            Err(unfinished) => {
                self.access.put_back(&disk, before)?;
                return Err(unfinished);
            }
        };
        tracing::info!(export = name, closed, "changed who may use an export");
        self.exports().into_iter().find(|export| export.name == name).ok_or(ServerError::NotFound {
            what: "export",
            name: name.to_owned(),
            list: "cairn export list",
        })
    }

    /// Ends the sessions with a disk, of its present or past, whose settings stand under this name; how many there were.
    fn close_disk(&self, disk: &str) -> Result<usize, ServerError> {
        let mut open: Vec<String> = self.exports().into_iter().map(|export| export.name).collect();
        open.retain(|export| self.settings_of(export) == disk);
        self.close_all(&open)
    }

    /// Exports that nobody can log in to for want of a secret.
    fn access_problems(&self) -> Vec<api::Problem> {
        if self.iscsi_portals.is_empty() {
            return Vec::new();
        }
        let problem = |(export, name): (String, String)| api::Problem {
            message: format!(
                "nobody can log in to it over iSCSI: at the source of the mirror only who knows the secret of `{name}` can, and secrets do not come along"
            ),
            next: format!(
                "`cairn export set {export} --chap-file FILE` with that secret or another one, best before a failover; or `--no-chap`, and it needs none here"
            ),
            subject: export,
        };
        self.access.without_secret().into_iter().map(problem).collect()
    }

    /// Disks that nobody can log in to, as another one's target has the same name.
    fn target_problems(&self, exports: &[api::Export]) -> Vec<api::Problem> {
        let mut disks: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        for export in exports.iter().filter(|export| !export.name.contains('@')) {
            disks.entry(&export.target.name).or_default().insert(self.devices.disk_of(&export.name));
        }
        let problem = |(target, disks): (&str, BTreeSet<String>)| {
            let first = disks.first().filter(|_| disks.len() > 1 && !self.iscsi_portals.is_empty())?.clone();
            let all = disks.into_iter().collect::<Vec<_>>().join(", ");
            Some(api::Problem {
                subject: first,
                message: format!("{all} have the same iSCSI target {target}: nobody can log in to any of them"),
                next: "delete one of them, or bring its volume here under another name; over NBD each has its own"
                    .to_owned(),
            })
        };
        disks.into_iter().filter_map(problem).collect()
    }

    pub(crate) fn sessions_of(&self, concerned: impl Fn(&ExportName<'_>) -> bool) -> Vec<String> {
        let name = |session: SessionInfo| session.export;
        let mine = |name: &String| ExportName::parse(name).is_some_and(|parsed| concerned(&parsed));
        let nbd = self.nbd.sessions().into_iter().map(name);
        let iscsi = self.iscsi.sessions().into_iter().filter_map(|session| session.export);
        nbd.chain(iscsi).filter(mine).collect()
    }

    /// How many sessions an export has.
    pub(crate) fn sessions_named(&self, name: &str) -> usize {
        let nbd = self.nbd.sessions().into_iter().filter(|session| session.export == name).count();
        let initiators = self.iscsi.sessions();
        nbd + initiators.iter().filter(|session| session.export.as_deref() == Some(name)).count()
    }

    /// Ends the sessions of an export; the count of them. Nothing of them can happen any more when it returns.
    ///
    /// # Errors
    /// [`ServerError::Unfinished`]: the caller changes nothing.
    pub(crate) fn close_named(&self, name: &str) -> Result<usize, ServerError> {
        let (nbd, iscsi) = (self.nbd.close_export(name), self.iscsi.close_export(name));
        Ok(nbd? + iscsi?)
    }

    /// The same of several; all are ended, also where one fails.
    fn close_all(&self, names: &[String]) -> Result<usize, ServerError> {
        let outcomes: Vec<_> = names.iter().map(|name| self.close_named(name)).collect();
        outcomes.into_iter().sum()
    }

    /// True when a client has one of these exports open.
    pub(crate) fn has_sessions(&self, concerned: impl Fn(&ExportName<'_>) -> bool) -> bool {
        !self.sessions_of(concerned).is_empty()
    }

    /// Refuses what would pull a disk from under its clients.
    pub(crate) fn refuse_if_in_use(
        &self,
        name: &str,
        concerned: impl Fn(&ExportName<'_>) -> bool,
    ) -> Result<(), ServerError> {
        match self.sessions_of(concerned).len() {
            0 => Ok(()),
            sessions => Err(ServerError::InUse { name: name.to_owned(), sessions }),
        }
    }

    /// Ends the sessions of some exports; the count of them. Nothing of them can happen any more when it returns.
    ///
    /// # Errors
    /// [`ServerError::Unfinished`]: the caller changes nothing.
    pub(crate) fn close_sessions(
        &self,
        concerned: impl Fn(&ExportName<'_>) -> bool,
    ) -> Result<usize, ServerError> {
        let mut names = self.sessions_of(concerned);
        names.sort_unstable();
        names.dedup();
        self.close_all(&names)
    }

    /// The same where what the sessions used takes no more writes from them in any case: LUNs of a volume that was closed, went back, or has become a destination.
    pub(crate) fn end_sessions(&self, concerned: impl Fn(&ExportName<'_>) -> bool) -> usize {
        self.close_sessions(concerned).unwrap_or_else(|unfinished| {
            tracing::warn!(%unfinished, "sessions that are ended still wait for their disk");
            0
        })
    }

    pub(crate) fn list_peers(&self) -> Vec<api::Peer> {
        self.peers.list(&*self.clock)
    }

    /// Ends the access of a peer, and lets go of what was kept for its mirrors.
    pub(crate) fn revoke_peer(&self, id: &str) -> Result<(), ServerError> {
        let Some(gone) = self.peers.revoke(id)? else { return Ok(()) };
        let name = transfer::peer_digits(gone);
        let mut kept = Ok(());
        for open in &self.volumes.all() {
            if self.peers.allows(gone, &open.name, Some(open.volume.id())).is_ok() {
                continue;
            }
            let let_go = || {
                let failed = ServerError::volume(&open.name);
                let mirrors = self.mirrors_of(open).map_err(&failed)?;
                let mut own = mirrors.iter().filter(|mirror| mirror.peer() == name).peekable();
                if own.peek().is_some() {
                    // It would wait with what all mirrors need, and the others with it.
                    open.refuse_if_floor_leaves_no_room()?;
                }
                own.try_for_each(|mirror| self.source.forget(&open.volume, &mirror.name).map_err(&failed))
            };
            // What is kept in one volume is no reason to keep it in another. It is listed, with how it is let go.
            kept = kept.and(let_go());
        }
        self.followers.keep(&self.source);
        kept
    }

    pub(crate) fn invite(&self, request: &api::Invite) -> Result<api::Invitation, ServerError> {
        if let Some(volume) = &request.volume {
            self.volumes.get(volume)?;
        }
        let listening = self
            .mirror_address
            .clone()
            .ok_or_else(|| ServerError::NoAddress { listening: "nothing (--mirror off)".to_owned() })?;
        let address = match request.advertise.clone().or_else(|| self.advertise.clone()) {
            Some(advertise) => {
                check_reachable(&advertise)?;
                advertise
            }
            None if listening.starts_with("0.0.0.0:") || listening.starts_with("[::]:") => {
                return Err(ServerError::NoAddress { listening });
            }
            None => listening,
        };
        let expiry = request.expires_ms.map(Duration::from_millis);
        self.peers.invite(&*self.clock, self.identity.fingerprint, address, request.volume.clone(), expiry)
    }
}

/// Memory that this process has now.
fn resident_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let resident: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(resident * rustix::param::page_size() as u64)
}

fn show_session(session: &SessionInfo) -> api::Session {
    api::Session {
        id: session.id,
        peer: session.peer.clone(),
        requests: session.totals.requests,
        read_bytes: session.totals.read_bytes,
        written_bytes: session.totals.written_bytes,
        activity: activity(session.activity),
        initiator: None,
        parameters: None,
    }
}

fn show_initiator(session: &IscsiSession) -> api::Session {
    let agreed = &session.operational;
    api::Session {
        id: session.id,
        peer: session.peer.clone(),
        requests: session.totals.requests,
        read_bytes: session.totals.read_bytes,
        written_bytes: session.totals.written_bytes,
        activity: activity(session.activity),
        initiator: Some(session.initiator.clone()),
        parameters: Some(api::IscsiParameters {
            header_digest: agreed.header_digest,
            data_digest: agreed.data_digest,
            max_recv_data_segment_length: agreed.send_segment,
            max_burst_length: agreed.max_burst,
            first_burst_length: agreed.first_burst,
            initial_r2t: agreed.initial_r2t,
            immediate_data: agreed.immediate_data,
        }),
    }
}

fn activity(activity: Activity) -> api::Activity {
    let Activity { window, read, write, other } = activity;
    let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
    api::Activity { window_ms, read: rate(read), write: rate(write), other: rate(other) }
}

fn rate(rate: Rate) -> api::Rate {
    let us = |latency: Duration| latency.as_nanos() as f64 / 1e3;
    api::Rate {
        per_second: (rate.per_second * 10.0).round() / 10.0,
        bytes_per_second: rate.bytes_per_second.round() as u64,
        p50_us: rate.p50.map(us),
        p99_us: rate.p99.map(us),
    }
}

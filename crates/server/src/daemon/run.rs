//! How a server starts, serves and ends.

use std::fs;
use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_api::{self as api, Address};
use cairn_base::Clock;
use cairn_device::SystemClock;
use cairn_frontend_iscsi::{IscsiServer, Listener as Portal, ServerOptions as IscsiOptions};
use cairn_frontend_nbd::{Address as NbdAddress, Listener, NbdServer, ServerOptions};
use cairn_frontend_nfs::{Listener as NfsListener, NfsServer, ServerOptions as NfsOptions};
use cairn_frontend_session::Windows;

use crate::actors::audit::Audit;
use crate::actors::oidc::Oidc;
use crate::actors::tokens::Tokens;
use crate::browse::Browsing;
use crate::buckets::Buckets;
use crate::certificates::{Certificates, Watching};
use crate::daemon::budgets::Budgets;
use crate::daemon::config::Config;
use crate::daemon::damaged::Unknown;
use crate::daemon::data_dir::{DataDir, guard};
use crate::daemon::error::DaemonError;
use crate::daemon::home::Home;
use crate::daemon::live::Live;
use crate::daemon::memory::GivingBack;
use crate::daemon::server::Server;
use crate::daemon::watchdog::Watchdog;
use crate::daemon::{damaged, notify};
use crate::devices::Devices;
use crate::dumps::folders::DumpFolders;
use crate::dumps::handover::Handover;
use crate::error::ServerError;
use crate::exports::access::Access;
use crate::exports::changed::LastAnswer;
use crate::exports::mounts::{Mounts, Watch};
use crate::exports::nfs::NfsTable;
use crate::exports::nfs::locks::LockFile;
use crate::exports::plans::Plans;
use crate::exports::recordings::Recordings;
use crate::exports::targets::TargetTable;
use crate::exports::{ExportTable, FrozenNames};
use crate::fleet::Fleet;
use crate::groups::Groups;
use crate::mirrors::bucket::{self, BucketMirrors};
use crate::mirrors::drills::{DrillSchedule, Drills};
use crate::mirrors::followers::Followers;
use crate::mirrors::serving::Source;
use crate::mirrors::{Mirrors, Schedule, Surroundings};
use crate::notify::Notify;
use crate::notify::watch::Watcher;
use crate::peers::Peers;
use crate::peers::identity::Identity;
use crate::schedules::runner::Runner;
use crate::volumes::Volumes;
use crate::work::jobs::Jobs;
use crate::{http, names};

/// Time for sessions to close their connections, before their requests that wait for a device are
/// cancelled.
const CLOSING: Duration = Duration::from_millis(100);

/// Time that writes of programs to mounts wait for room in a history when the server ends.
const MOUNTS_PATIENCE: Duration = Duration::from_secs(2);

/// How long jobs get to end when the server does.
const JOB_PATIENCE: Duration = Duration::from_secs(5);

/// Runs a server until SIGTERM or SIGINT; `ready` is called once it serves.
pub fn run(config: Config, ready: impl FnOnce(&api::Status)) -> Result<(), ServerError> {
    guard::set_umask();
    config.refuse_in_the_clear()?;
    let budgets = Budgets::of_this_process();
    let data = DataDir::open(&config.data)?;
    let here = data.path().to_owned();
    damaged::refuse_newer(&here)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(ServerError::path("start the runtime of", &here))?;
    // Signals are taken from here on, so that one during the start ends the server in order as
    // well.
    let signals = runtime.block_on(async { Signals::new() });
    let mut signals = signals.map_err(ServerError::path("take signals for", &here))?;

    let Listeners { control, handover, http, mirror, nbd_socket, nbd, portals, nfs } =
        Listeners::open(&config, &data)?;
    let (control, control_path) = control;
    let (handover, handover_path) = handover;
    let rooms = Rooms::open(&config, &data, mirror.as_ref())?;
    if http.is_some() && rooms.tokens.wants_first() {
        rooms.tokens.set_first(&data.http_token()?);
    }
    let clients = Clients::let_in(&config, budgets, &rooms, nbd, portals)?;
    let nfs_exports = NfsTable::open(data.path(), rooms.volumes.clone(), rooms.groups.clone())?;
    let mut http_addresses = vec![format!("unix:{}", control_path.display())];
    http_addresses.extend(http.as_ref().map(local));
    let mirror_address = mirror.as_ref().map(local);
    let Rooms { clock, identity, peers, buckets, volumes, devices, jobs, groups, .. } = rooms;
    let Rooms { followers, sessions, access, mirrors, tokens, audit, certificates, .. } = rooms;
    let http = match http {
        Some(listener) if config.tls => Some((listener, Some(certificates.of_http()?))),
        plain => plain.map(|listener| (listener, None)),
    };
    let Clients { nbd, iscsi, iscsi_portals, recordings, plans, windows } = clients;
    // Once mounts are made: until then no client has their files.
    let mounts = Mounts::open(data.path(), volumes.clone(), groups.clone())?;
    let options = NfsOptions {
        max_sessions: budgets.sessions,
        max_handshakes: budgets.handshakes,
        windows,
        lock_record: Arc::new(LockFile::new(data.path())),
        ..NfsOptions::default()
    };
    let nfs = NfsServer::start(nfs, nfs_exports.clone(), options)
        .map_err(|source| ServerError::Thread { what: "NFS", source })?;
    let server = Arc::new(Server {
        bucket_mirrors: BucketMirrors::open(volumes.clone(), buckets.clone(), clock.clone(), jobs.clone()),
        drills: Arc::new(Drills::open(volumes.clone(), clock.clone())?),
        mounts,
        nfs,
        nfs_exports,
        buckets,
        tokens,
        oidc: Oidc::open(data.path(), clock.clone()),
        audit,
        certificates,
        notify: Arc::new(Notify::open(data.path(), clock.clone())),
        fleet: Fleet::open(data.path(), clock.clone()),
        home: Home::default(),
        groups,
        changed: LastAnswer::default(),
        browsing: Browsing::default(),
        dump_folders: DumpFolders::new(config.dumps.clone()),
        live: Live::default(),
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
        advertise: config.advertise.clone(),
        unknown: Unknown::of(data.path()),
        data,
    });
    let background = Background::start(&server, &config, budgets, mirror)?;

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
    end(&server, background);
    let _ = std::fs::remove_file(&control_path);
    let _ = std::fs::remove_file(&handover_path);
    outcome.map_err(ServerError::path("answer on", &control_path))
}

/// Where the server listens. The ports come first: so a failure to start is known before any volume
/// is opened.
struct Listeners {
    control: (UnixListener, PathBuf),
    handover: (UnixListener, PathBuf),
    http: Option<TcpListener>,
    mirror: Option<TcpListener>,
    nbd_socket: PathBuf,
    nbd: Vec<Listener>,
    portals: Vec<Portal>,
    nfs: Vec<NfsListener>,
}

impl Listeners {
    fn open(config: &Config, data: &DataDir) -> Result<Self, ServerError> {
        let control = data.listen_control()?;
        let handover = data.listen_handover()?;
        let http = match &config.http {
            Address::Tcp(address) => Some(listen(address)?),
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
                    // The owner's umask determines access to a socket at a path of the owner's
                    // choice.
                    let mode = Permissions::from_mode(0o777 & !guard::umask_at_start());
                    fs::set_permissions(path, mode).map_err(ServerError::path("set the mode of", path))?;
                    Some(listener)
                }
            });
        }
        let portals = config.iscsi.iter().map(|address| Portal::bind(address));
        let portals = portals.collect::<Result<Vec<_>, _>>()?;
        let nfs = config.nfs.iter().map(|address| NfsListener::bind(address)).collect::<Result<_, _>>()?;
        Ok(Self { control, handover, http, mirror, nbd_socket, nbd, portals, nfs })
    }
}

/// The parts that are opened before clients are admitted.
struct Rooms {
    clock: Arc<dyn Clock>,
    identity: Arc<Identity>,
    peers: Arc<Peers>,
    buckets: Arc<Buckets>,
    volumes: Arc<Volumes>,
    devices: Arc<Devices>,
    jobs: Arc<Jobs>,
    groups: Arc<Groups>,
    followers: Arc<Followers>,
    sessions: Arc<cairn_mirror::Source>,
    access: Arc<Access>,
    mirrors: Arc<Mirrors>,
    tokens: Arc<Tokens>,
    audit: Arc<Audit>,
    certificates: Arc<Certificates>,
}

impl Rooms {
    fn open(config: &Config, data: &DataDir, mirror: Option<&TcpListener>) -> Result<Self, ServerError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let tokens = Arc::new(Tokens::open(data.path(), clock.clone()));
        let audit = Arc::new(Audit::open(data.path(), clock.clone(), config.audit_syslog));
        let certificates = Certificates::open(
            data.path(),
            clock.clone(),
            config.tls_files.clone(),
            config.tls_names.clone(),
        )?;
        let identity = Arc::new(Identity::open(data.path())?);
        let peers = Arc::new(Peers::open(data.path())?);
        let buckets = Arc::new(Buckets::open(data.path(), clock.clone()));
        let volumes = Volumes::open(data.volumes(), config.cache, clock.clone(), Some(buckets.clone()))?;
        let volumes = Arc::new(volumes);
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
            address: mirrors_reach(config.advertise.as_deref(), mirror),
            patience: config.mirror_patience,
        })?;
        let mirrors = Arc::new(mirrors);
        Ok(Self {
            clock,
            identity,
            peers,
            buckets,
            volumes,
            devices,
            jobs,
            groups,
            followers,
            sessions,
            access,
            mirrors,
            tokens,
            audit,
            certificates,
        })
    }
}

/// The servers that clients connect to, and the records of client activity.
struct Clients {
    nbd: NbdServer,
    iscsi: IscsiServer,
    /// The portals that discovery reports to initiators.
    iscsi_portals: Vec<String>,
    recordings: Arc<Recordings>,
    plans: Arc<Plans>,
    windows: Arc<Windows>,
}

impl Clients {
    fn let_in(
        config: &Config,
        budgets: Budgets,
        rooms: &Rooms,
        nbd: Vec<Listener>,
        portals: Vec<Portal>,
    ) -> Result<Self, ServerError> {
        // The requests in flight are bounded over all clients.
        let windows = Arc::<Windows>::default();
        let options = ServerOptions {
            tls: Some(rooms.certificates.of_nbd()?),
            tls_required: config.nbd_tls_required,
            max_sessions: budgets.sessions,
            max_handshakes: budgets.handshakes,
            windows: windows.clone(),
        };
        let recordings = Arc::new(Recordings::new(rooms.clock.clone()));
        let plans = Arc::new(Plans::new(rooms.clock.clone()));
        let frozen = Arc::<FrozenNames>::default();
        let exports = || ExportTable {
            frozen: frozen.clone(),
            volumes: rooms.volumes.clone(),
            groups: rooms.groups.clone(),
            devices: rooms.devices.clone(),
            access: rooms.access.clone(),
            recordings: recordings.clone(),
            plans: plans.clone(),
            certificates: rooms.certificates.clone(),
            audit: rooms.audit.clone(),
        };
        let nbd = NbdServer::start(nbd, Arc::new(exports()), options)?;
        let targets = TargetTable { exports: exports(), fingerprint: rooms.identity.fingerprint.to_string() };
        let options = IscsiOptions {
            advertise: config.iscsi_advertise.clone(),
            max_sessions: budgets.sessions,
            max_handshakes: budgets.handshakes,
            windows: windows.clone(),
            ..IscsiOptions::default()
        };
        let iscsi = IscsiServer::start(portals, Arc::new(targets), options)
            .map_err(|source| ServerError::Thread { what: "iSCSI", source })?;
        let portals = iscsi.addresses().iter().map(|address| names::from_elsewhere(address));
        let iscsi_portals = match &config.iscsi_advertise {
            Some(portal) if !iscsi.addresses().is_empty() => vec![portal.clone()],
            _ => portals.collect(),
        };
        Ok(Self { nbd, iscsi, iscsi_portals, recordings, plans, windows })
    }
}

/// Background work, until the server ends.
struct Background {
    source: Option<Source>,
    schedule: Schedule,
    bucket_mirrors: bucket::Schedule,
    snapshots: Runner,
    drills: DrillSchedule,
    watch: Watch,
    giving_back: GivingBack,
    certificates: Watching,
    notifications: Watcher,
}

impl Background {
    fn start(
        server: &Arc<Server>,
        config: &Config,
        budgets: Budgets,
        mirror: Option<TcpListener>,
    ) -> Result<Self, ServerError> {
        connect(server);
        // Earlier, a peer could take over a volume before its sessions can be closed.
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
        Ok(Self {
            source,
            schedule: server.mirrors.start_schedule()?,
            bucket_mirrors: server.bucket_mirrors.start_schedule()?,
            snapshots: Runner::start(server.clone())?,
            drills: server.start_drills()?,
            watch: server.mounts.watch()?,
            giving_back: GivingBack::start()?,
            certificates: server.certificates.watch()?,
            notifications: Watcher::start(server)?,
        })
    }

    fn end(self) {
        if let Some(source) = self.source {
            source.end();
        }
        drop((self.schedule, self.bucket_mirrors, self.snapshots, self.drills));
        drop((self.watch, self.giving_back, self.certificates, self.notifications));
    }
}

/// Lets mirrors end the sessions of clients, and move mounts on.
fn connect(server: &Arc<Server>) {
    // Not the server itself: it would never end.
    let (of_volumes, of_disks) = (Arc::downgrade(server), Arc::downgrade(server));
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
}

/// Stops a server that serves no HTTP client any more.
fn end(server: &Server, background: Background) {
    server.volumes.end_hooks();
    server.mirrors.end();
    server.bucket_mirrors.end();
    server.drills.end();
    server.jobs.cancel_all();
    background.end();
    std::thread::scope(|scope| {
        // The writes of programs to mounts come first, unless they wait for room that may never
        // come: then they are cancelled with all other such requests.
        let mounts = scope.spawn(|| server.mounts.end());
        let mut waited = Duration::ZERO;
        while !mounts.is_finished() && waited < MOUNTS_PATIENCE {
            std::thread::sleep(CLOSING);
            waited += if server.volumes.waits_for_room() { CLOSING } else { Duration::ZERO };
        }
        scope.spawn(|| server.iscsi.stop());
        scope.spawn(|| server.nbd.stop());
        scope.spawn(|| server.nfs.stop());
        // Their connections are closed by now: no client gets an error for a write that waited for
        // room in vain.
        std::thread::sleep(CLOSING);
        server.devices.end_waits();
        server.volumes.end_waits();
    });
    server.nfs_exports.end();
    server.recordings.end();
    let patience = Instant::now() + JOB_PATIENCE;
    while server.jobs.any_running() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(10));
    }
    server.devices.end();
    server.volumes.end();
}

fn listen(address: &str) -> Result<TcpListener, ServerError> {
    TcpListener::bind(address)
        .map_err(|source| ServerError::Daemon(DaemonError::Listen { address: address.to_owned(), source }))
}

/// The address that mirrors use: the advertised one, or the port at the name under which the other
/// side knows this host.
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

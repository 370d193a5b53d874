//! The entries of this server in the port mapper of its machine (rpcbind), if there is one.
//!
//! Clients need none of them: the command that mounts an export names the port. The kernel of a
//! Linux client finds the lock manager by the port mapper alone. The server looks again at times,
//! as a port mapper may start later or restart.
//!
//! A server on loopback addresses alone has no entries: the port mapper would send clients of the
//! network to it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use cairn_proto_nfs::nlm::{NLM_PROGRAM, NLM_VERSION};
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NSM_VERSION, NsmCall};
use cairn_proto_nfs::portmap::{self, Binding, Mapping, PortmapCall};
use cairn_proto_nfs::rpc::{self, Incoming, MOUNT_PROGRAM, NFS_PROGRAM, Refusal};
use parking_lot::{Condvar, Mutex};

use crate::limits::{DATAGRAM_BYTES_MAX, DATAGRAM_PAUSE, REGISTER_EVERY};
use crate::locks::Locks;
use crate::outgoing::{Over, call_own_portmapper};

/// The state of the entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registered {
    /// None are wanted: the server listens on loopback addresses alone, or nowhere.
    Off,
    /// It was not tried yet.
    Pending,
    /// There is no port mapper.
    NoPortMapper,
    /// Clients find all programs.
    Yes,
    /// Clients do not find these programs here.
    Without(Vec<&'static str>),
}

/// A program with an entry.
struct Entry {
    name: &'static str,
    program: u32,
    version: u32,
    over: Over,
}

const ENTRIES: [Entry; 5] = [
    Entry { name: "nfs", program: NFS_PROGRAM, version: rpc::VERSION, over: Over::Tcp },
    Entry { name: "mountd", program: MOUNT_PROGRAM, version: rpc::VERSION, over: Over::Tcp },
    Entry { name: "nlockmgr", program: NLM_PROGRAM, version: NLM_VERSION, over: Over::Tcp },
    Entry { name: "status", program: NSM_PROGRAM, version: NSM_VERSION, over: Over::Tcp },
    // Linux sends its message about a restart as a datagram.
    Entry { name: "status over UDP", program: NSM_PROGRAM, version: NSM_VERSION, over: Over::Udp },
];

struct Shared {
    /// The addresses of the server that clients of the network reach.
    addresses: Vec<SocketAddr>,
    /// The port mapper.
    mapper: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    registered: Registered,
    /// Entries that were made, by the place of the program and of the address.
    made: Vec<(usize, usize)>,
    is_stopping: bool,
}

/// The entries; they are removed when this is dropped.
pub(crate) struct Registration {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Registration {
    pub(crate) fn start(
        addresses: Vec<SocketAddr>,
        mapper_port: u16,
        locks: &Arc<Locks>,
    ) -> io::Result<Self> {
        let addresses: Vec<SocketAddr> =
            addresses.into_iter().filter(|address| !address.ip().is_loopback()).collect();
        let first = if addresses.is_empty() { Registered::Off } else { Registered::Pending };
        let shared = Arc::new(Shared {
            mapper: SocketAddr::new(Ipv4Addr::LOCALHOST.into(), mapper_port),
            state: Mutex::new(State { registered: first, made: Vec::new(), is_stopping: false }),
            changed: Condvar::new(),
            addresses,
        });
        let mut threads = Vec::new();
        if !shared.addresses.is_empty() {
            let own = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name("nfs-register".to_owned());
            threads.push(builder.spawn(move || own.keep())?);
        }
        for address in &shared.addresses {
            match UdpSocket::bind(address) {
                Ok(socket) => {
                    let (own, locks) = (Arc::clone(&shared), Arc::clone(locks));
                    let builder = std::thread::Builder::new().name("nfs-datagrams".to_owned());
                    threads.push(builder.spawn(move || own.take_datagrams(&socket, &locks))?);
                }
                Err(error) => {
                    tracing::info!(%address, %error, "no datagrams are received for NFS; a client that restarts keeps its locks until it takes new ones");
                }
            }
        }
        Ok(Self { shared, threads })
    }

    pub(crate) fn state(&self) -> Registered {
        self.shared.state.lock().registered.clone()
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread for the port mapper had panicked");
            }
        }
        self.shared.remove();
    }
}

impl Shared {
    fn keep(&self) {
        loop {
            let (registered, made) = self.register();
            let mut state = self.state.lock();
            state.made = made;
            if state.registered != registered {
                match &registered {
                    Registered::Yes => {
                        tracing::info!("NFS clients find this server by the port mapper (rpcbind)");
                    }
                    Registered::Without(names) => {
                        let names = names.join(", ");
                        tracing::warn!(
                            names,
                            "other programs are registered with the port mapper (rpcbind) in place of this server"
                        );
                    }
                    Registered::NoPortMapper => {
                        tracing::info!(
                            "there is no port mapper (rpcbind); NFS clients name the port, and mount with `nolock`"
                        );
                    }
                    Registered::Off | Registered::Pending => {}
                }
                state.registered = registered;
            }
            if !state.is_stopping {
                self.changed.wait_for(&mut state, REGISTER_EVERY);
            }
            if state.is_stopping {
                return;
            }
        }
    }

    /// Makes all entries that are not there.
    fn register(&self) -> (Registered, Vec<(usize, usize)>) {
        let (mut made, mut missing) = (Vec::new(), Vec::new());
        for (number, entry) in ENTRIES.iter().enumerate() {
            let mut is_found = false;
            for (place, address) in self.addresses.iter().enumerate() {
                match self.make(entry, *address) {
                    Ok(true) => {
                        made.push((number, place));
                        is_found = true;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::debug!(%error, "the port mapper does not answer");
                        return (Registered::NoPortMapper, made);
                    }
                }
            }
            if !is_found {
                missing.push(entry.name);
            }
        }
        (if missing.is_empty() { Registered::Yes } else { Registered::Without(missing) }, made)
    }

    fn ask(&self, call: &PortmapCall<'_>) -> io::Result<u32> {
        let results = call_own_portmapper(self.mapper, call)?;
        portmap::parse_number(&results).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// True if the entry is there.
    fn make(&self, entry: &Entry, address: SocketAddr) -> io::Result<bool> {
        let with = Made::new(entry, address);
        let known = self.ask(&with.port())?;
        if known == u32::from(address.port()) {
            return Ok(true);
        }
        if self.ask(&with.set())? != 0 {
            return Ok(true);
        }
        // An entry of a server that has been killed, maybe this one.
        let is_left =
            entry.over == Over::Tcp && u16::try_from(known).is_ok_and(|port| port > 0 && is_closed(port));
        Ok(is_left && self.ask(&with.unset())? != 0 && self.ask(&with.set())? != 0)
    }

    fn remove(&self) {
        let made = std::mem::take(&mut self.state.lock().made);
        for (number, place) in made {
            let (Some(entry), Some(address)) = (ENTRIES.get(number), self.addresses.get(place)) else {
                continue;
            };
            let with = Made::new(entry, *address);
            // Not one that another server has made since.
            if self.ask(&with.port()).is_ok_and(|port| port == u32::from(address.port())) {
                _ = self.ask(&with.unset());
            }
        }
    }

    /// Takes messages of clients that have restarted.
    fn take_datagrams(&self, socket: &UdpSocket, locks: &Locks) {
        if socket.set_read_timeout(Some(DATAGRAM_PAUSE)).is_err() {
            return;
        }
        let mut bytes = vec![0; DATAGRAM_BYTES_MAX];
        while !self.state.lock().is_stopping {
            match socket.recv_from(&mut bytes) {
                Ok((count, from)) => {
                    let message = bytes.get(..count).unwrap_or_default();
                    if let Some(reply) = answer_datagram(message, from.ip().to_canonical(), locks) {
                        _ = socket.send_to(&reply, from);
                    }
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}

/// The reply is no longer than the request, so that this server cannot be used to flood others.
fn answer_datagram(message: &[u8], from: IpAddr, locks: &Locks) -> Option<Vec<u8>> {
    let Ok(Incoming::Call(call)) = rpc::parse(message) else { return None };
    let mut reply = Vec::new();
    let refusal = match (call.program, call.version) {
        (NSM_PROGRAM, NSM_VERSION) => match NsmCall::parse(call.procedure, call.arguments) {
            Some(Ok(notice)) => {
                if let NsmCall::Notify(restarted) = notice
                    && let Ok(name) = std::str::from_utf8(restarted.name.0)
                {
                    locks.restarted(from, name, restarted.state);
                }
                rpc::write_accepted(call.xid, &mut reply);
                return Some(reply);
            }
            Some(Err(_)) => Refusal::BadArguments,
            None => Refusal::NoProcedure,
        },
        (NSM_PROGRAM, _) => Refusal::ProgramVersion(NSM_VERSION),
        _ => Refusal::NoProgram,
    };
    rpc::write_refusal(call.xid, refusal, &mut reply);
    Some(reply)
}

fn is_closed(port: u16) -> bool {
    matches!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

/// An entry for one address: IPv4 by version 2 of the port mapper, IPv6 by version 4.
struct Made<'a> {
    entry: &'a Entry,
    address: SocketAddr,
    text: String,
}

impl<'a> Made<'a> {
    fn new(entry: &'a Entry, address: SocketAddr) -> Self {
        let [high, low] = address.port().to_be_bytes();
        Self { entry, address, text: format!("{}.{high}.{low}", address.ip()) }
    }

    /// An address of both kinds is known as one of IPv4: all clients can use that.
    fn is_plain(&self) -> bool {
        self.address.is_ipv4() || self.address.ip().is_unspecified()
    }

    fn mapping(&self) -> Mapping {
        let protocol = if self.entry.over == Over::Tcp { portmap::TCP } else { portmap::UDP };
        let Entry { program, version, .. } = *self.entry;
        Mapping { program, version, protocol, port: u32::from(self.address.port()) }
    }

    fn binding(&self) -> Binding<'_> {
        let network = if self.entry.over == Over::Tcp { "tcp6" } else { "udp6" };
        let Entry { program, version, .. } = *self.entry;
        Binding { program, version, network, address: &self.text, owner: "cairn" }
    }

    fn port(&self) -> PortmapCall<'_> {
        PortmapCall::GetPort(self.mapping())
    }

    fn set(&self) -> PortmapCall<'_> {
        if self.is_plain() {
            PortmapCall::Set(self.mapping())
        } else {
            PortmapCall::SetBinding(self.binding())
        }
    }

    fn unset(&self) -> PortmapCall<'_> {
        match self.is_plain() {
            true => PortmapCall::Unset(self.mapping()),
            false => PortmapCall::UnsetBinding(self.binding()),
        }
    }
}

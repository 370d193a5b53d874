//! Calls of this server to others: to clients with locks, and to a port mapper.
//!
//! A call takes some seconds at most. A client knows the server by its address, so calls to it come
//! from the address that it uses.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Instant;

use cairn_proto_nfs::portmap::{self, Binding, Mapping, PORTMAP_PROGRAM, PortmapCall};
use cairn_proto_nfs::record::{Front, begin, finish, front};
use cairn_proto_nfs::rpc::{self, Credential, RpcCall};
use ring::rand::{SecureRandom, SystemRandom};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::limits::{CALL_PATIENCE, CALL_REPLY_BYTES_MAX, OWN_PORTS};

/// A program of another machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub(crate) number: u32,
    pub(crate) version: u32,
}

/// The kind of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Over {
    Tcp,
    Udp,
    /// TCP from a port of root, if possible.
    OwnTcp,
}

/// Another machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    /// Our address.
    pub(crate) from: IpAddr,
    pub(crate) portmap_port: u16,
}

fn invalid<E>(_: E) -> io::Error {
    io::ErrorKind::InvalidData.into()
}

impl Peer {
    /// Calls a program, whose port the machine's port mapper knows.
    pub(crate) fn call(&self, program: Program, procedure: u32, arguments: &[u8]) -> io::Result<Vec<u8>> {
        let to = |port| SocketAddr::new(self.address, port);
        let found = match self.port(program, Over::Tcp) {
            Ok(port) => (Over::Tcp, to(port)),
            Err(_) => (Over::Udp, to(self.port(program, Over::Udp)?)),
        };
        call(found.0, found.1, Some(self.from), program, procedure, arguments)
    }

    fn port(&self, program: Program, over: Over) -> io::Result<u16> {
        let asked = match (self.address, over) {
            (IpAddr::V4(_), over) => {
                let protocol = if over == Over::Tcp { portmap::TCP } else { portmap::UDP };
                let Program { number, version } = program;
                PortmapCall::GetPort(Mapping { program: number, version, protocol, port: 0 })
            }
            (IpAddr::V6(_), over) => PortmapCall::GetAddress(Binding {
                program: program.number,
                version: program.version,
                network: if over == Over::Tcp { "tcp6" } else { "udp6" },
                address: "",
                owner: "",
            }),
        };
        let to = SocketAddr::new(self.address, self.portmap_port);
        let ask = |over| call_portmapper(over, to, Some(self.from), &asked);
        let results = ask(over).or_else(|_| ask(if over == Over::Tcp { Over::Udp } else { Over::Tcp }))?;
        let port = match &asked {
            PortmapCall::GetAddress(_) => portmap::parse_address(&results).map_err(invalid)?,
            _ => portmap::parse_number(&results).map_err(invalid)?,
        };
        match u16::try_from(port) {
            Ok(port) if port > 0 => Ok(port),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// Calls the port mapper of this machine, from a port that only root can use if this is root: so
/// the entries are root's, and no other user can remove them.
pub(crate) fn call_own_portmapper(to: SocketAddr, asked: &PortmapCall<'_>) -> io::Result<Vec<u8>> {
    let mut arguments = Vec::new();
    asked.write(&mut arguments);
    let program = Program { number: PORTMAP_PROGRAM, version: asked.version() };
    call(Over::OwnTcp, to, Some(to.ip()), program, asked.procedure(), &arguments)
}

/// Calls a port mapper.
pub(crate) fn call_portmapper(
    over: Over,
    to: SocketAddr,
    from: Option<IpAddr>,
    asked: &PortmapCall<'_>,
) -> io::Result<Vec<u8>> {
    let mut arguments = Vec::new();
    asked.write(&mut arguments);
    let program = Program { number: PORTMAP_PROGRAM, version: asked.version() };
    call(over, to, from, program, asked.procedure(), &arguments)
}

/// Calls a program at an address. Returns the results.
fn call(
    over: Over,
    to: SocketAddr,
    from: Option<IpAddr>,
    program: Program,
    procedure: u32,
    arguments: &[u8],
) -> io::Result<Vec<u8>> {
    let mut xid = [0; 4];
    SystemRandom::new().fill(&mut xid).map_err(invalid)?;
    let xid = u32::from_be_bytes(xid);
    let credential = Credential::Sys { uid: 0, gid: 0, groups: Vec::new() };
    let Program { number, version } = program;
    let head = RpcCall { xid, program: number, version, procedure, credential, arguments };
    let mut message = Vec::new();
    let start = begin(&mut message);
    rpc::write_call(&head, &mut message);
    finish(&mut message, start, 0);
    let results = |record: &[u8]| match rpc::parse_reply(record) {
        Ok(reply) if reply.xid == xid => Some(reply.results.map(<[u8]>::to_vec)),
        _ => None,
    };
    let found = match over {
        Over::Tcp | Over::OwnTcp => {
            let record = over_tcp(to, from, over == Over::OwnTcp, &message)?;
            results(&record)
        }
        Over::Udp => over_udp(to, from, message.get(start + 4..).unwrap_or_default(), results)?,
    };
    found.flatten().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn over_tcp(to: SocketAddr, from: Option<IpAddr>, is_own: bool, message: &[u8]) -> io::Result<Vec<u8>> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // It is the limit of a connect as well.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CALL_PATIENCE))?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(CALL_PATIENCE))?;
    if let Some(from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
        let bind = |port| rustix::net::bind(&socket, &SocketAddr::new(from, port)).is_ok();
        let is_bound = is_own && OWN_PORTS.rev().any(bind);
        // An address that this machine has lost meanwhile can't be used.
        _ = is_bound || bind(0);
    }
    rustix::net::connect(&socket, &to)?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(message)?;
    let (mut received, deadline) = (Vec::new(), Instant::now() + 2 * CALL_PATIENCE);
    while Instant::now() < deadline {
        match front(&received, CALL_REPLY_BYTES_MAX).map_err(invalid)? {
            Front::Record(record, _) => return Ok(record.into_owned()),
            Front::More(_) => {
                let mut piece = [0; 2048];
                let count = stream.read(&mut piece)?;
                if count == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                received.extend_from_slice(piece.get(..count).unwrap_or_default());
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn over_udp<T>(
    to: SocketAddr,
    from: Option<IpAddr>,
    message: &[u8],
    results: impl Fn(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let from = from.filter(|from| from.is_ipv4() == to.is_ipv4()).unwrap_or(any);
    let socket = UdpSocket::bind((from, 0)).or_else(|_| UdpSocket::bind((any, 0)))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(CALL_PATIENCE))?;
    // Once: the caller has to know whether a call may have arrived before.
    socket.send(message)?;
    let mut reply = vec![0; CALL_REPLY_BYTES_MAX];
    let count = socket.recv(&mut reply)?;
    Ok(results(reply.get(..count).unwrap_or_default()))
}

//! A client's machine: a port mapper, a lock manager and a status monitor on one port.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cairn_proto_nfs::nlm::*;
use cairn_proto_nfs::nsm::{NSM_PROGRAM, NsmCall};
use cairn_proto_nfs::portmap::{self, PORTMAP_PROGRAM, PortmapCall};
use cairn_proto_nfs::record::{Front, begin, finish, front};
use cairn_proto_nfs::rpc::{self, Incoming};

/// A call that the machine got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    /// Process, first byte and length.
    Granted(u32, u64, u64),
    /// The results of a message.
    Result(u32, LockStatus),
    TestResult(Result<LockStatus, u32>),
    /// Its state.
    Restarted(u32),
}

pub struct Machine {
    pub port: u16,
    calls: Receiver<Got>,
    /// The answer to GRANTED; `None`: none at all.
    pub answer: Arc<Mutex<Option<LockStatus>>>,
    ended: Arc<AtomicBool>,
}

impl Machine {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (sender, calls) = channel();
        let answer = Arc::new(Mutex::new(Some(LockStatus::Granted)));
        let ended = Arc::new(AtomicBool::new(false));
        let (own, over) = (Arc::clone(&answer), Arc::clone(&ended));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                serve(stream.unwrap(), port, &sender, &own);
            }
        });
        Self { port, calls, answer, ended }
    }

    /// The next call.
    pub fn next(&self) -> Got {
        self.calls.recv_timeout(Duration::from_secs(60)).expect("a call comes")
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = std::net::TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn serve(
    mut stream: std::net::TcpStream,
    port: u16,
    calls: &Sender<Got>,
    answer: &Mutex<Option<LockStatus>>,
) {
    let mut received = Vec::new();
    loop {
        let (record, used) = match front(&received, 1 << 20).unwrap() {
            Front::Record(record, used) => (record.into_owned(), used),
            Front::More(_) => {
                let mut piece = [0; 4096];
                match stream.read(&mut piece) {
                    Ok(0) | Err(_) => return,
                    Ok(count) => received.extend_from_slice(&piece[..count]),
                }
                continue;
            }
        };
        received.drain(..used);
        let Ok(Incoming::Call(call)) = rpc::parse(&record) else { panic!("a call") };
        let mut reply = Vec::new();
        let start = begin(&mut reply);
        rpc::write_accepted(call.xid, &mut reply);
        match call.program {
            PORTMAP_PROGRAM => {
                let asked = portmap::parse_call(call.version, call.procedure, call.arguments).unwrap();
                let PortmapCall::GetPort(asked) = asked else { panic!("{asked:?}") };
                let port = if asked.protocol == portmap::TCP { u32::from(port) } else { 0 };
                reply.extend(port.to_be_bytes());
            }
            NLM_PROGRAM => match NlmCall::parse(call.procedure, call.arguments).unwrap().unwrap() {
                NlmCall::Ask(Ask::Granted(granted)) => {
                    let LockOf { process, offset, length, .. } = granted.lock;
                    let status = *answer.lock().unwrap();
                    let _ = calls.send(Got::Granted(process, offset, length));
                    let Some(status) = status else { return };
                    let cookie = granted.cookie.0.to_vec();
                    NlmReply::Answered(Answered { cookie, status }).write(&mut reply);
                }
                NlmCall::Result(number, answered) => {
                    let _ = calls.send(Got::Result(number, answered.status));
                }
                NlmCall::TestResult(tested) => {
                    let _ = calls.send(Got::TestResult(tested.outcome.map_err(|holder| holder.process)));
                }
                other => panic!("{other:?}"),
            },
            NSM_PROGRAM => match NsmCall::parse(call.procedure, call.arguments).unwrap().unwrap() {
                NsmCall::Notify(restarted) => {
                    assert_eq!(restarted.name.0, b"127.0.0.1");
                    let _ = calls.send(Got::Restarted(restarted.state));
                }
                NsmCall::Null => {}
            },
            other => panic!("program {other}"),
        }
        finish(&mut reply, start, 0);
        if stream.write_all(&reply).is_err() {
            return;
        }
    }
}

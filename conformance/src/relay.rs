//! A TCP relay whose two directions can be stopped or cut: a network, or a peer, that has stalled.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::Result;
use parking_lot::{Condvar, Mutex};

/// The state of a direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Free,
    /// After this many more bytes nothing passes.
    StopsAfter(usize),
    /// After this many more bytes both directions end.
    CutAfter(usize),
    Over,
}

/// One direction.
pub(crate) struct Valve {
    flow: Mutex<(Flow, bool)>,
    changed: Condvar,
}

impl Valve {
    fn new() -> Self {
        Self { flow: Mutex::new((Flow::Free, false)), changed: Condvar::new() }
    }

    fn set(&self, flow: Flow) {
        *self.flow.lock() = (flow, false);
        self.changed.notify_all();
    }

    /// Everything passes.
    pub(crate) fn open(&self) {
        self.set(Flow::Free);
    }

    /// After `bytes` more, nothing passes, and the sender notices only that its buffers stay full.
    pub(crate) fn stop_after(&self, bytes: usize) {
        self.set(Flow::StopsAfter(bytes));
    }

    /// After `bytes` more, the connection ends.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.set(Flow::CutAfter(bytes));
    }

    /// True when bytes wait that do not pass.
    pub(crate) fn holds_back(&self) -> bool {
        self.flow.lock().1
    }

    /// How many of `wanted` bytes may pass now; waits while none may. Nothing when the connection
    /// is to end.
    fn pass(&self, wanted: usize) -> Option<usize> {
        let mut flow = self.flow.lock();
        loop {
            match &mut flow.0 {
                Flow::Free => return Some(wanted),
                Flow::StopsAfter(left) | Flow::CutAfter(left) if *left > 0 => {
                    let count = wanted.min(*left);
                    *left -= count;
                    return Some(count);
                }
                Flow::CutAfter(_) | Flow::Over => return None,
                Flow::StopsAfter(_) => {
                    flow.1 = true;
                    self.changed.wait(&mut flow);
                }
            }
        }
    }
}

/// The relay. Its connections end when it is dropped.
pub(crate) struct Relay {
    /// HOST:PORT to connect to.
    pub(crate) address: String,
    /// From the connecting side to the target.
    pub(crate) forth: Arc<Valve>,
    /// From the target to the connecting side.
    pub(crate) back: Arc<Valve>,
}

impl Relay {
    /// A relay to `target`.
    pub(crate) fn to(target: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let (forth, back) = (Arc::new(Valve::new()), Arc::new(Valve::new()));
        let relay = Self { address, forth: forth.clone(), back: back.clone() };
        let target = target.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if forth.flow.lock().0 == Flow::Over {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(&target)) else { continue };
                let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else {
                    continue;
                };
                let (forth, back) = (forth.clone(), back.clone());
                std::thread::spawn(move || carry(client, server, &forth));
                std::thread::spawn(move || carry(server_too, client_too, &back));
            }
        });
        Ok(relay)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.forth.set(Flow::Over);
        self.back.set(Flow::Over);
        // Wakes the thread that takes connections.
        let _ = TcpStream::connect(&self.address);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, valve: &Valve) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut sent = 0;
        while sent < count {
            let Some(may) = valve.pass(count - sent) else {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            };
            if to.write_all(&buffer[sent..sent + may]).is_err() {
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
            sent += may;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

//! A connection between two servers: bytes in order, as from a socket, until a fault at one of its
//! messages.
//!
//! A message is one unit that a side sends: a frame of the protocol, or a header or payload of the
//! stream. The promises do not depend on any of these arriving, arriving once, or arriving
//! unchanged.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;

use cairn_base::Rng;
use cairn_device::FaultDevice;
use parking_lot::Mutex;

use crate::tasks;

/// A fault of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// The connection breaks before it, and messages in flight are lost too.
    BrokenBefore,
    /// It arrives, and then the connection breaks.
    BrokenAfter,
    /// The connection breaks in the middle of it.
    Torn,
    /// It arrives twice.
    Twice,
    /// A byte of it is another one.
    Garbled,
    /// It does not arrive, and the connection stays.
    Lost,
}

impl Mishap {
    /// All of them.
    pub const ALL: [Mishap; 6] = [
        Mishap::BrokenBefore,
        Mishap::BrokenAfter,
        Mishap::Torn,
        Mishap::Twice,
        Mishap::Garbled,
        Mishap::Lost,
    ];
}

struct Shared {
    /// The messages in flight to each side.
    queues: [VecDeque<u8>; 2],
    /// A side has hung up.
    closed: [bool; 2],
    broken: bool,
    messages: u64,
    mishap: Option<(u64, Mishap)>,
    rng: Rng,
}

/// A connection, seen by the code that breaks it.
#[derive(Clone)]
pub struct Link(Arc<Mutex<Shared>>);

/// One side's end.
pub struct End {
    link: Link,
    number: usize,
    /// A server without power sends nothing more.
    device: Arc<FaultDevice>,
}

impl Link {
    /// A connection between the servers of two devices, with a mishap at one message if so wished.
    pub fn new(devices: [&Arc<FaultDevice>; 2], mishap: Option<(u64, Mishap)>, rng: Rng) -> (Link, [End; 2]) {
        let shared = Shared {
            queues: Default::default(),
            closed: [false; 2],
            broken: false,
            messages: 0,
            mishap,
            rng,
        };
        let link = Link(Arc::new(Mutex::new(shared)));
        let end = |number: usize| End { link: link.clone(), number, device: devices[number].clone() };
        let ends = [end(0), end(1)];
        (link, ends)
    }

    /// Breaks it, as a time-out does. False when it was broken before.
    pub fn break_off(&self) -> bool {
        let mut shared = self.0.lock();
        let news = !shared.broken;
        shared.broken = true;
        news
    }

    /// A side hangs up, though it keeps its end.
    pub fn hang_up(&self, number: usize) {
        self.0.lock().closed[number] = true;
    }

    /// Messages so far, both ways.
    pub fn messages(&self) -> u64 {
        self.0.lock().messages
    }
}

impl Shared {
    fn send(&mut self, from: usize, bytes: &[u8]) {
        let number = self.messages;
        self.messages += 1;
        let to = &mut self.queues[1 - from];
        match self.mishap.filter(|(at, _)| *at == number).map(|(_, mishap)| mishap) {
            None => to.extend(bytes),
            Some(Mishap::BrokenBefore) => {
                self.broken = true;
                to.clear();
            }
            Some(Mishap::BrokenAfter) => {
                to.extend(bytes);
                self.broken = true;
            }
            Some(Mishap::Torn) => {
                let part = self.rng.below(bytes.len() as u64) as usize;
                to.extend(&bytes[..part]);
                self.broken = true;
            }
            Some(Mishap::Twice) => {
                to.extend(bytes);
                to.extend(bytes);
            }
            Some(Mishap::Garbled) => {
                let at = self.rng.below(bytes.len() as u64) as usize;
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 1 + self.rng.below(255) as u8;
                to.extend(bytes);
            }
            Some(Mishap::Lost) => {}
        }
    }
}

fn reset() -> io::Error {
    io::Error::from(ErrorKind::ConnectionReset)
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.device.is_off() {
                return Err(reset());
            }
            {
                let mut shared = self.link.0.lock();
                let queue = &mut shared.queues[self.number];
                if !queue.is_empty() || buffer.is_empty() {
                    let count = queue.len().min(buffer.len());
                    for (to, from) in buffer.iter_mut().zip(queue.drain(..count)) {
                        *to = from;
                    }
                    return Ok(count);
                }
                if shared.closed[1 - self.number] {
                    return Ok(0);
                }
                if shared.broken {
                    return Err(reset());
                }
            }
            tasks::wait();
        }
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        {
            let mut shared = self.link.0.lock();
            if self.device.is_off() || shared.broken || shared.closed[1 - self.number] {
                return Err(reset());
            }
            if !bytes.is_empty() {
                shared.send(self.number, bytes);
            }
        }
        tasks::switch();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.link.0.lock().closed[self.number] = true;
    }
}

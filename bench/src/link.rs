//! A high-latency link between two servers: a relay with a delay and a bandwidth, in which a
//! connection has at most a window in flight.
//!
//! It takes the bytes that TCP brings and passes them on half a round trip later, in the order in
//! which the link could have carried them. A byte counts against its connection's window until a
//! whole round trip is over, as it would until it was acknowledged. Nothing is lost, so the link is
//! reliable, with a high latency.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::Result;

/// The properties of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// There and back.
    pub(crate) round_trip: Duration,
    /// Bits a second, in each direction, of all connections together.
    pub(crate) bits: f64,
    /// Bytes in flight of each connection in each direction.
    pub(crate) window: usize,
}

/// A running relay; it ends with the program.
pub(crate) struct Link {
    /// Where to connect.
    pub(crate) address: SocketAddr,
}

/// When the link is free again, in one direction.
type Free = Arc<Mutex<Instant>>;

/// Bytes of one connection that are in flight.
#[derive(Default)]
struct Way {
    bytes: Mutex<usize>,
    fewer: Condvar,
}

impl Link {
    /// A relay to `target`.
    pub(crate) fn start(target: SocketAddr, shape: Shape) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (there, back): (Free, Free) =
            (Arc::new(Mutex::new(Instant::now())), Arc::new(Mutex::new(Instant::now())));
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // A connection takes a round trip to be there.
                let (there, back) = (there.clone(), back.clone());
                std::thread::spawn(move || {
                    std::thread::sleep(shape.round_trip);
                    let Ok(far) = TcpStream::connect(target) else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let (Ok(near2), Ok(far2)) = (near.try_clone(), far.try_clone()) else { return };
                    std::thread::spawn(move || carry(near2, far2, shape, &there));
                    carry(far, near, shape, &back);
                });
            }
        });
        Ok(Self { address })
    }
}

/// One direction of one connection.
fn carry(mut from: TcpStream, mut to: TcpStream, shape: Shape, free: &Free) {
    let way = Arc::new(Way::default());
    let (deliver, deliveries) = channel::<(Instant, Vec<u8>)>();
    let (acknowledge, acknowledgements) = channel::<(Instant, usize)>();
    let arrived = way.clone();
    std::thread::spawn(move || {
        for (at, bytes) in deliveries {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
            let _ = acknowledge.send((Instant::now() + shape.round_trip / 2, bytes.len()));
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    std::thread::spawn(move || {
        for (at, count) in acknowledgements {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            *arrived.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) -= count;
            arrived.fewer.notify_one();
        }
        // No one receives it any more: further sends must not wait for ever.
        *arrived.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = 0;
        arrived.fewer.notify_one();
    });
    let mut buffer = vec![0; 64 << 10];
    loop {
        {
            let mut bytes = way.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            while *bytes + buffer.len() > shape.window {
                bytes = way.fewer.wait(bytes).unwrap_or_else(std::sync::PoisonError::into_inner);
            }
        }
        let count = match from.read(&mut buffer) {
            Ok(count) if count > 0 => count,
            _ => return,
        };
        *way.bytes.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += count;
        let leaves = {
            let mut free = free.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *free = (*free).max(Instant::now()) + Duration::from_secs_f64(count as f64 * 8.0 / shape.bits);
            *free
        };
        if deliver.send((leaves + shape.round_trip / 2, buffer[..count].to_vec())).is_err() {
            return;
        }
    }
}

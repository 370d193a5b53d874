//! Schedules of threads that share a pool, explored:
//! `cargo test -p cairn-device --features shuttle --lib schedules`.

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cairn_base::explored::{self, explore};
use shuttle::thread;

use super::*;

/// Schedules of each kind of scheduler.
const SCHEDULES: usize = 300;

/// A pool of the scenario's own.
struct Explored(explored::Mutex<Pool>);

impl Shared for Explored {
    fn with<R>(&self, work: impl FnOnce(&mut Pool) -> R) -> R {
        work(&mut self.0.lock())
    }
}

/// Threads take single blocks and runs, and return those that another one took: no block has two
/// holders, and when all have ended the pool has all again.
#[test]
fn block_is_had_by_one_thread_and_none_is_lost_in_any_schedule() {
    explore(SCHEDULES, || {
        let pool = Arc::new(Explored(explored::Mutex::new(Pool::new())));
        let held = Arc::new(explored::Mutex::new(BTreeSet::new()));
        let passed = Arc::new(explored::Mutex::new(Vec::new()));
        let threads: Vec<_> = (0..3u32)
            .map(|which| {
                let (pool, held, passed) = (pool.clone(), held.clone(), passed.clone());
                thread::spawn(move || {
                    // A failure must not give its blocks to the pool of the program.
                    let mut local = ManuallyDrop::new(Local::new());
                    for round in 0..3 {
                        let mut taken: Vec<&'static Header> = Vec::new();
                        for _ in 0..[130, 40, 260][which as usize] {
                            taken.push(local.take(&*pool));
                        }
                        for _ in 0..40 {
                            taken.push(local.take_of_run(&*pool));
                        }
                        let mut now = held.lock();
                        assert!(
                            taken.iter().all(|header| now.insert(header.number)),
                            "it is somebody else's"
                        );
                        drop(now);
                        passed.lock().append(&mut taken);
                        // The returned blocks are mostly those that others took.
                        let back = if round == 0 && which == 0 {
                            Vec::new()
                        } else {
                            std::mem::take(&mut *passed.lock())
                        };
                        let mut now = held.lock();
                        assert!(
                            back.iter().all(|header| now.remove(&header.number)),
                            "it is given back once"
                        );
                        drop(now);
                        back.into_iter().for_each(|header| local.give_back(header, &*pool));
                    }
                    local.end(&*pool);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        let left = std::mem::take(&mut *passed.lock());
        pool.with(|pool| {
            pool.put(left.into_iter());
            assert_eq!(pool.free, pool.chunks.len() * CHUNK_BLOCKS);
            assert_eq!(pool.whole.len(), pool.chunks.len(), "all come together again");
        });
    });
}

//! Logical units as sessions share them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cairn_device::{Device, Gate};
use cairn_frontend_session::limits::CLOSE_PATIENCE;
use cairn_proto_iscsi::scsi::{Description, Geometry, LogicalUnit, Nexus, TargetPort, nexus_name};

use crate::limits::TASK_PATIENCE;
use crate::locks::{Mutex, MutexGuard, RwLock};
use crate::targets::Export;

/// The unit of a target, or of several that are names of one disk. It stays for the server's life,
/// as reservations outlive sessions.
///
/// Locks are taken in the order `keeping`, `exclusive`, `state`, `sessions`; no thread holds
/// `exclusive` of more than one unit. `state` and `sessions` are never held while a thread waits.
/// `exclusive` is held while the device writes, and a read that is followed by a write waits for
/// it. `keeping` is held while reservations are saved, and only changes of reservations wait for
/// it. A thread that aborts tasks waits for no lock, as a write may wait for room in the device
/// under it: it withdraws commands that have not begun, and waits for the others.
pub(crate) struct Unit {
    pub(crate) state: Mutex<LogicalUnit>,
    /// Held shared by writes, and alone by commands that read and then write.
    pub(crate) exclusive: RwLock<()>,
    /// Held from the request to change reservations to its end, so that the last saved state is the
    /// valid one.
    pub(crate) keeping: Mutex<()>,
    sessions: Mutex<Vec<(Nexus, String, Arc<Gate>)>>,
}

/// All units, by [their names](Export::unit).
#[derive(Default)]
pub(crate) struct Units {
    units: Mutex<HashMap<String, Arc<Unit>>>,
    next: AtomicU64,
}

/// A session's place at a unit, until this is dropped.
pub(crate) struct Attached {
    pub(crate) unit: Arc<Unit>,
    pub(crate) nexus: Nexus,
}

/// Aborted tasks, some of which may still run.
#[must_use = "what has begun has to be waited for"]
pub(crate) struct Ended(Vec<Arc<Gate>>);

impl Ended {
    /// Waits until none of the tasks writes any more, so that the caller's own writes are the last
    /// ones; false when that takes too long. Not to be called with any of the locks but `keeping`.
    pub(crate) fn wait(&self) -> bool {
        let deadline = Instant::now() + TASK_PATIENCE;
        self.0.iter().all(|gate| gate.wait(deadline))
    }

    /// The same for one that can't be refused any more.
    pub(crate) fn wait_long(&self) -> bool {
        let deadline = Instant::now() + CLOSE_PATIENCE;
        self.0.iter().all(|gate| gate.wait(deadline))
    }
}

/// The present size of the device, as SCSI counts it.
pub(crate) fn geometry(export: &Export) -> Geometry {
    let device = export.device.geometry();
    let block_bytes = export.block_bytes.max(device.alignment);
    let read_only = export.read_only || device.read_only;
    Geometry {
        block_bytes,
        blocks: device.length / u64::from(block_bytes),
        physical_bytes: block_bytes.max(4096),
        read_only,
        thin: device.trims && !read_only,
        atomic_bytes: if read_only { 0 } else { export.device.atomic_bytes_max() },
    }
}

impl Units {
    /// The unit of a target, for a session of the initiator port `port`.
    pub(crate) fn attach(&self, target: String, export: &Export, port: &str, gate: &Arc<Gate>) -> Attached {
        let nexus = Nexus(self.next.fetch_add(1, Ordering::Relaxed));
        let unit = self.of(export);
        let name = nexus_name(port, export.port);
        unit.sessions.lock().push((nexus, name.clone(), Arc::clone(gate)));
        let mut state = unit.state.lock();
        state.set_ports(export.ports);
        state.set_removable(export.removable);
        state.set_write_cache(export.write_cache);
        state.set_geometry(geometry(export));
        state.attach(nexus, name, TargetPort { target, number: export.port });
        drop(state);
        Attached { unit, nexus }
    }

    /// The unit of an export, also before the first login.
    pub(crate) fn of(&self, export: &Export) -> Arc<Unit> {
        let mut units = self.units.lock();
        let new = || {
            let description = Description {
                name: export.unit.clone(),
                id: export.id,
                ports: export.ports,
                removable: export.removable,
                write_cache: export.write_cache,
            };
            let state = LogicalUnit::new(description, geometry(export), export.reservations.clone());
            Arc::new(Unit {
                state: Mutex::new(state),
                exclusive: RwLock::new(()),
                keeping: Mutex::new(()),
                sessions: Mutex::default(),
            })
        };
        let unit = units.entry(export.unit.clone()).or_insert_with(new);
        if unit.state.lock().description().id != export.id {
            // Another LUN of the same name: the old one was deleted.
            *unit = new();
        }
        Arc::clone(unit)
    }
}

impl Unit {
    /// Resets it: all tasks of all sessions end. False when commands that some have begun do not
    /// end in time.
    pub(crate) fn reset(&self) -> bool {
        let ended = {
            let mut state = self.state.lock();
            let ended = self.abort(&state, |_, _| true);
            state.reset();
            ended
        };
        ended.wait()
    }

    /// Ends all tasks of all sessions on behalf of one of them. False when commands that some have
    /// begun do not end in time.
    pub(crate) fn clear(&self, by: Nexus) -> bool {
        let ended = {
            let mut state = self.state.lock();
            let ended = self.abort(&state, |_, _| true);
            state.clear(by);
            ended
        };
        ended.wait()
    }

    /// Aborts tasks of sessions; they notice before they read another PDU. In one step with the
    /// notice to their initiators, hence with the `state`: otherwise some commands in between would
    /// end after the unit attention, without an answer, and some not at all.
    pub(crate) fn abort(
        &self,
        _state: &MutexGuard<'_, LogicalUnit>,
        concerned: impl Fn(Nexus, &str) -> bool,
    ) -> Ended {
        let sessions = self.sessions.lock();
        let concerned = sessions.iter().filter(|(nexus, port, _)| concerned(*nexus, port));
        Ended(
            concerned
                .map(|(_, _, gate)| {
                    gate.withdraw_all();
                    Arc::clone(gate)
                })
                .collect(),
        )
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.unit.sessions.lock().retain(|(nexus, ..)| *nexus != self.nexus);
        self.unit.state.lock().detach(self.nexus);
    }
}

/// The stretches of a device from `offset` on, joined: bytes, and whether they are mapped.
pub(crate) fn stretches(
    device: &dyn Device,
    offset: u64,
    length: u64,
    limit: usize,
) -> Result<Vec<(u64, bool)>, cairn_device::DeviceError> {
    let mut joined: Vec<(u64, bool)> = Vec::new();
    for extent in device.extents(offset, length, limit)? {
        match joined.last_mut() {
            Some((bytes, mapped)) if *mapped != extent.hole => *bytes += extent.length,
            _ => joined.push((extent.length, !extent.hole)),
        }
    }
    Ok(joined)
}

//! Ordered commands (SAM-5, section 8.6.3): each begins when all that came before it are done, and
//! nothing that comes after it begins before it is done.
//!
//! Immediate reads and writes wait by themselves, see `waits_for_others` of the session. This file
//! is about commands whose data is still to come, on the same connection: the session cannot wait
//! for them without reading the later PDUs.

use cairn_frontend_session::Payload;
use cairn_proto_iscsi::{Attribute, CommandRequest};

use crate::round::Round;
use crate::session::Session;
use crate::task::{Task, Work};

impl Session {
    /// Whether a command that came may not begin yet.
    pub(crate) fn must_wait(&self, request: &CommandRequest) -> bool {
        let waits = match request.attribute {
            Attribute::Simple => self.ordered.is_some() || !self.held.is_empty(),
            Attribute::Ordered => self.ordered.is_some() || !self.tasks.is_empty(),
            Attribute::HeadOfQueue => false,
        };
        // A command in the device is not done.
        let waits = waits || self.is_attended && request.attribute != Attribute::Simple;
        waits && self.place.is_some()
    }

    /// Forgets the ordered command once it is answered. To be asked before its tag can be used
    /// again.
    pub(crate) fn forget_ordered(&mut self) {
        self.ordered = self.ordered.filter(|tag| self.protocol.has_task(*tag));
    }

    /// Begins a command that came, or that waited long enough.
    pub(crate) fn begin_command(&mut self, request: &CommandRequest, round: &mut Round) -> u32 {
        if request.attribute == Attribute::Ordered {
            self.ordered = Some(request.tag);
        }
        self.command(request, round)
    }

    /// Keeps a command for later. Returns how many bytes of the PDU's own data are kept with it; no
    /// more comes than may come unasked.
    pub(crate) fn hold(&mut self, request: CommandRequest) -> u32 {
        let unasked = self.protocol.operational().first_burst.max(request.immediate);
        let most = if request.writes { request.expected.min(unasked) } else { 0 };
        self.protocol.begin(request.tag, most);
        let payload = (most > 0).then(|| Payload::new(0, most));
        self.tasks.insert(request.tag, Task::held(request, self.received, payload));
        self.held.push_back(request.tag);
        request.immediate.min(most)
    }

    /// Begins commands that have waited long enough.
    pub(crate) fn begin_held(&mut self, round: &mut Round) {
        loop {
            self.forget_ordered();
            // Some may have been aborted.
            let tasks = &self.tasks;
            self.held.retain(|tag| tasks.contains_key(tag));
            let Some(tag) = self.held.front().copied() else { return };
            let is_ordered = self.tasks[&tag].request.attribute == Attribute::Ordered;
            let busy = self.tasks.len() > self.held.len() || !self.reads.is_empty() || !round.is_empty();
            // The rest of a PDU must not go to another payload than its beginning.
            let comes = self.incoming.as_ref().is_some_and(|incoming| incoming.header.tag() == tag);
            if self.ordered.is_some() || (is_ordered && busy) || comes || round.is_full(self.window_bytes) {
                return;
            }
            self.held.pop_front();
            let Some(Task { mut request, payload, .. }) = self.release(tag) else { return };
            let kept = payload.map(|mut payload| {
                payload.cut();
                payload.finish()
            });
            let kept = kept.unwrap_or_default();
            // Unsolicited data after it is treated as its immediate data.
            request.immediate = kept.len() as u32;
            self.begin_command(&request, round);
            if let Some(task) = self.tasks.get_mut(&tag) {
                kept.iter().for_each(|segment| task.fill(segment.bytes()));
            }
            self.advance(tag, round);
        }
    }

    /// True for a task that has not begun.
    pub(crate) fn is_held(&self, tag: u32) -> bool {
        self.tasks.get(&tag).is_some_and(|task| matches!(task.work, Work::Held))
    }
}

//! One operation of a batch, and its outcome.

use crate::{DeviceError, Pass, Segments, Ticket};

/// The request. Offsets and lengths are bytes.
#[derive(Debug, Clone)]
pub enum Request {
    /// Read into the operation's data.
    Read {
        /// Where.
        offset: u64,
        /// How much.
        length: u32,
    },
    /// Write the data.
    Write {
        /// Where.
        offset: u64,
        /// The data.
        data: Segments,
        /// It is durable when it completes.
        fua: bool,
    },
    /// Make durable all operations that completed earlier, or precede it in the batch.
    Flush,
    /// The bytes are no longer needed; they read as anything, in Cairn's own layers as zeroes.
    Trim {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// It is durable when it completes.
        fua: bool,
    },
    /// The bytes read as zeroes.
    WriteZeroes {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
        /// Space may be freed.
        may_trim: bool,
        /// It is durable when it completes.
        fua: bool,
    },
    /// Bring the bytes into memory; advice only.
    Prefetch {
        /// Where.
        offset: u64,
        /// How much.
        length: u64,
    },
}

/// A request and its outcome.
#[derive(Debug)]
pub struct Operation {
    request: Request,
    outcome: Option<Result<Segments, DeviceError>>,
    ticket: Option<Ticket>,
    /// While a change with a ticket is in progress.
    pass: Option<Pass>,
}

impl Operation {
    /// An operation that is still to be done.
    pub fn new(request: Request) -> Self {
        Self { request, outcome: None, ticket: None, pass: None }
    }

    /// A pending read.
    pub fn read(offset: u64, length: u32) -> Self {
        Self::new(Request::Read { offset, length })
    }

    /// A pending write without FUA.
    pub fn write(offset: u64, data: Segments) -> Self {
        Self::new(Request::Write { offset, data, fua: false })
    }

    /// A pending flush.
    pub fn flush() -> Self {
        Self::new(Request::Flush)
    }

    /// A pending trim without FUA.
    pub fn trim(offset: u64, length: u64) -> Self {
        Self::new(Request::Trim { offset, length, fua: false })
    }

    /// The operation of a command that can be withdrawn.
    pub fn of(self, ticket: Ticket) -> Self {
        Self { ticket: Some(ticket), ..self }
    }

    /// Makes it one of a command that can be withdrawn.
    pub fn give(&mut self, ticket: Ticket) {
        self.ticket = Some(ticket);
    }

    /// The ticket to withdraw it by.
    pub fn ticket(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }

    /// Declares that nothing of it has happened: a device calls it before it waits. See
    /// [`Gate`](crate::Gate).
    pub fn park(&mut self) {
        self.pass = None;
        if let Some(ticket) = &mut self.ticket {
            ticket.park();
        }
    }

    /// Begins a change that waited; true when it may continue. A withdrawn one has failed.
    pub fn resume(&mut self) -> bool {
        self.start(Ticket::begin_late)
    }

    /// The same for a change that was parked and may not have had to wait.
    pub fn begin(&mut self) -> bool {
        self.start(Ticket::begin_with)
    }

    fn start(&mut self, begin: impl Fn(Option<&Ticket>) -> Result<Option<Pass>, DeviceError>) -> bool {
        if self.pass.is_some() || !self.request.is_mutation() {
            return true;
        }
        match begin(self.ticket.as_ref()) {
            Ok(pass) => {
                self.pass = pass;
                true
            }
            Err(withdrawn) => {
                self.finish(Err(withdrawn));
                false
            }
        }
    }

    /// Declares that all its bytes are present. It changes nothing any more, though it may not be
    /// durable yet.
    pub fn settle(&mut self) {
        self.pass = None;
    }

    /// Whether it waits in vain.
    pub fn is_withdrawn(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_withdrawn)
    }

    /// The request.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// True for a flush.
    pub fn is_flush(&self) -> bool {
        matches!(self.request, Request::Flush)
    }

    /// True until an outcome is recorded.
    pub fn is_pending(&self) -> bool {
        self.outcome.is_none()
    }

    /// Records success of anything but a read.
    pub fn succeed(&mut self) {
        self.finish(Ok(Segments::default()));
    }

    /// Records the outcome; `Ok` holds the bytes of a read and is empty for other requests.
    pub fn finish(&mut self, outcome: Result<Segments, DeviceError>) {
        debug_assert!(self.is_pending(), "an operation has one outcome");
        self.outcome = Some(outcome);
        self.pass = None;
    }

    /// The outcome, once there is one.
    pub fn outcome(&self) -> Option<&Result<Segments, DeviceError>> {
        self.outcome.as_ref()
    }

    /// The bytes of a read. The operation must have been run.
    pub fn into_data(self) -> Result<Segments, DeviceError> {
        self.outcome.expect("a device records an outcome for every operation that it runs")
    }

    /// Success or failure. The operation must have been run.
    pub fn into_outcome(self) -> Result<(), DeviceError> {
        self.into_data().map(drop)
    }
}

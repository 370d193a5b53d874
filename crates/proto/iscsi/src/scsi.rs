//! SCSI on top of iSCSI: the commands that a logical unit of Cairn supports, and their answers
//! (SPC-4, SBC-3).
//!
//! A [`LogicalUnit`] takes commands and either answers them or returns the operation on the medium
//! ([`Medium`]), which a front end, the owner of the device, carries out. [`Sense`] has the one
//! table of errors.

mod bytes;
mod command;
mod copy;
mod inquiry;
mod mode;
mod reservation;
mod sense;
mod unit;

pub use command::{Access, Command, Compare, Medium, decode};
pub use copy::{CopyList, CopySegment, CopyTarget};
pub use inquiry::{Description, Geometry, TargetPort};
pub use reservation::{Registration, ReservationState, nexus_name};
pub use sense::{Failure, Sense};
pub use unit::{Answer, Change, LogicalUnit, Nexus, Outcome, Plan, Status};

pub(crate) use bytes::Fields;

//! SCSI behind iSCSI: what a logical unit of Cairn understands and answers (SPC-4, SBC-3).
//!
//! A [`LogicalUnit`] takes commands and either answers them or says what is to be done with the
//! medium ([`Medium`]); doing it is left to a front end, who has the device. [`Sense`] has the one
//! table of what can go wrong.

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

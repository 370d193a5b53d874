//! Notifications: which messages about problems go out, and how each kind of target takes them.
//!
//! A [`Desk`] decides for one target. It is a value that serialises: its owner saves it after each
//! change and delivers the head of its queue, so that each message arrives at least once, whatever
//! kills the owner. [`send`] delivers a message to a [`Target`], and [`Pace`] says when a failed
//! delivery is tried again. Nothing here starts a thread or reads a clock for a decision: times and
//! randomness come in as parameters. Commands are run by the owner, as it runs others.

mod deliver;
mod desk;
mod message;
mod pace;
mod policy;
mod problem;
mod secret;
mod shapes;
mod target;

pub use deliver::{Failure, Fault, client_tls, ping, reason_of, send};
pub use desk::Desk;
pub use message::{Event, EventKind, Message, Origin};
pub use pace::{Pace, Sleep};
pub use policy::{InvalidPolicy, Policy, Quiet};
pub use problem::{Problem, Severity, stable};
pub use secret::Secret;
pub use shapes::{Shape, body, signature};
pub use target::{InvalidTarget, Mail, MailTls, Ping, Program, Target, Web};

//! Two volumes in memory and a socket pair between them.

mod bundle;
mod cascade;
mod clocks;
mod continuous;
mod copies;
mod harness;
mod hostile;
mod places;
mod resume;
mod roles;
mod since;
mod transfers;

//! The simulator: whole lives of volumes and mirrors on one thread, with a clock and devices of its
//! own, from one seed.
//!
//! A seed gives the sizes, the actions and the faults. After every power cut the volume is opened,
//! checked and compared with a plain model (`model`). The same seed gives the same run, to the last
//! observation: a failure is replayed by its seed.
//!
//! A side of a mirror may also lie (`pair::liars`): it has every key and makes every checksum
//! right. The content kept by the other side must stay unchanged.

mod actions;
mod content;
mod cuts;
mod faults;
mod files;
mod forks;
mod history;
mod images;
mod link;
mod media;
mod model;
mod owners;
mod pair;
mod recovery;
mod round;
mod runs;
mod tally;
mod tasks;
mod timeline;
mod waist;
mod world;

pub use runs::{Kind, Outcome, run};
pub use tally::Tally;
pub use timeline::{HEAD, LEGEND, Timeline};

#[cfg(test)]
mod tests;

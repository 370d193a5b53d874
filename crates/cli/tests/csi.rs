//! `cairn csi` against a real server: csi-sanity whole, fencing of nodes, calls that are cut off at
//! each step, changed blocks, and file systems on real devices.

#[path = "csi/bad_input.rs"]
mod bad_input;
#[path = "csi/cuts.rs"]
mod cuts;
#[path = "csi/driver.rs"]
mod driver;
#[path = "csi/fencing.rs"]
mod fencing;
#[path = "csi/files.rs"]
mod files;
#[path = "csi/ranges.rs"]
mod ranges;
mod running;
#[path = "csi/sanity.rs"]
mod sanity;

//! The Container Storage Interface, version 1.13: its messages, and a trait for each of its
//! services. No socket, no clock, no code of our own.
//!
//! [`v1`] is generated from `csi.proto`, which is the file of the specification without a change.
//! After a new version of that file, run `just csi-proto` and commit both. The generator is a
//! package of its own beside the workspace, so that a build of Cairn compiles no compiler of
//! Protocol Buffers. A test compares the digest of `csi.proto` with the one in the generated file.

/// The messages and services of the package `csi.v1`, under the names of the specification.
#[allow(
    missing_docs,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated; csi.proto has the documentation"
)]
#[path = "../generated/csi.v1.rs"]
#[rustfmt::skip]
pub mod v1;

#[cfg(test)]
mod tests;

//! Tests of the protocol.

//! Bytes of a hostile other side.

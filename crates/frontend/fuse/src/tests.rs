//! Tests of the front end: the kernel itself is the other side.

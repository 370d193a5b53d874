//! The entry of libFuzzer: the name of the program chooses the target.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| cairn_fuzz::run(env!("CARGO_BIN_NAME"), data));

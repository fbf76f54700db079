//! Records of the journal.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pool::testing::fuzz::records(input));

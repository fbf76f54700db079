//! The reader of PDUs.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::target::testing::fuzz::reader(input));

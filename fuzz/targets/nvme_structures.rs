//! Structures read from bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::target::testing::fuzz::structures(input));

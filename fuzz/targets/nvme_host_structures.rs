//! Structures that a host reads from bytes.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::initiator::testing::structures(input));

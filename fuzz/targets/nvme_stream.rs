//! Any bytes on a fresh connection of the target.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| nvme::target::testing::fuzz::stream(input));

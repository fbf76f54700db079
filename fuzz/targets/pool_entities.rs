//! Records of replicas and snapshots, with their labels and wrapped keys.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pool::testing::fuzz::entities(input));

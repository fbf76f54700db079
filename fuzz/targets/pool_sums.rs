//! A page of sums.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| pool::testing::fuzz::sums(input));

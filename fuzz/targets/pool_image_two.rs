//! The same on two disks.

#![no_main]

use std::sync::LazyLock;

use pool::testing::{Image, fuzz};

static SAMPLE: LazyLock<Image> = LazyLock::new(|| fuzz::sample(2).expect("a pool"));

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::image(&SAMPLE, input);
});

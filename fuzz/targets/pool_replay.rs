//! Groups of records behind the checkpoint of a pool.

#![no_main]

use std::sync::LazyLock;

use pool::testing::{Image, fuzz};

static SAMPLE: LazyLock<Image> = LazyLock::new(|| fuzz::sample(1).expect("a pool"));

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::replay(&SAMPLE, input);
});

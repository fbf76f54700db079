//! Sections of a checkpoint: the list of replicas, used clusters, maps.

#![no_main]

use std::sync::LazyLock;

use pool::testing::{Image, fuzz};

static SAMPLE: LazyLock<Image> = LazyLock::new(|| fuzz::sample(1).expect("a pool"));

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    fuzz::checkpoint(&SAMPLE, input);
});

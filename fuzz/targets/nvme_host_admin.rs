//! Any answers of a controller to the admin queue of a host.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    nvme::initiator::testing::admin(input);
});

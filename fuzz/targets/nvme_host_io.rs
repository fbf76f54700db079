//! Any bytes from a controller to an I/O queue of a host.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    nvme::initiator::testing::io(input);
});

//! What benchmarks compare us with.

pub mod ping_pong;

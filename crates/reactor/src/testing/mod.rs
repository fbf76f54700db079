//! What stands in for the kernel in simulations, and what benchmarks compare us with.

pub mod ping_pong;
pub mod simulation;

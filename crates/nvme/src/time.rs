//! Moments, given by the caller.

pub use block::Instant;

//! Tests of the crate through its public interface.

// Marked as tests, although all of this binary is: helpers in them may then unwrap.
#[cfg(test)]
mod pair;
#[cfg(test)]
mod target;

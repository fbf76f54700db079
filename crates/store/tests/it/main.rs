//! Integration tests of the store.

mod conformance;
mod generated;

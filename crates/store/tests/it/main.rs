//! Integration tests of the store.

mod client;
mod conformance;
mod embedded;
mod generated;

//! Integration tests of the store.

mod generated;

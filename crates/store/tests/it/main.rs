//! Integration tests of the store.
#![cfg(test)]

mod client;
mod conformance;
mod embedded;
mod gateway;
mod generated;

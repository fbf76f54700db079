//! Tests of the driver as its callers see it: over a socket, with a control plane in memory.
#![cfg(test)]

mod driver;
mod generated;
mod groups;
mod node;
mod snapshots;
mod volumes;

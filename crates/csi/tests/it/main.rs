//! Tests of the driver as its callers see it: over a socket, with a control plane in memory.
#![cfg(test)]

mod driver;
mod examples;
mod generated;
mod groups;
mod liveness;
mod node;
mod sequences;
mod snapshots;
mod volumes;

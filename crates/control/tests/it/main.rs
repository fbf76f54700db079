//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod contents;
mod faults;
mod health;
mod leading;
mod recover;
mod remembered;
mod rollback;
mod safety;
mod seeds;
mod volumes;
mod watches;
mod world;

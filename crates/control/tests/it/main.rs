//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod brake;
mod contents;
mod faults;
mod health;
mod leading;
mod quarantine;
mod recover;
mod remembered;
mod rollback;
mod safety;
mod seeds;
mod volumes;
mod watches;
mod world;

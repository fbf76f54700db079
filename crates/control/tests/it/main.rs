//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod faults;
mod health;
mod leading;
mod recover;
mod remembered;
mod safety;
mod seeds;
mod volumes;
mod watches;
mod world;

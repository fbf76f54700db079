//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod faults;
mod health;
mod leading;
mod seeds;
mod volumes;
mod world;

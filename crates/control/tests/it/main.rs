//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod health;
mod volumes;
mod world;

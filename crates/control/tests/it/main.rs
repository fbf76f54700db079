//! The control plane over real HTTP, with its store in memory or gone.
#![cfg(test)]

mod health;

//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod brake;
mod contents;
mod dead_ends;
mod faults;
mod health;
mod hosts;
mod leading;
mod losses;
mod quarantine;
mod recover;
mod remembered;
mod rollback;
mod safety;
mod seeds;
mod unreadable;
mod volumes;
mod watches;
mod world;

//! The control plane: over HTTP, and in a simulated cluster.

#![cfg(test)]

mod brake;
mod contents;
mod dead_ends;
mod failovers;
mod faults;
mod health;
mod hosts;
mod leader;
mod losses;
mod names;
mod operator;
mod quarantine;
mod recover;
mod rollback;
mod safety;
mod scale;
mod scrub_record;
mod seeds;
mod unreadable;
mod volumes;
mod webhooks;
mod world;

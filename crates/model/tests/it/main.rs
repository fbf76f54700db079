//! The model as its users see it: JSON files, machines, refusals.
#![cfg(test)]

mod envelope;
mod golden;
mod machines;
mod object;
mod replica_set;
mod sample;
mod strict;
mod topology;
mod validation;

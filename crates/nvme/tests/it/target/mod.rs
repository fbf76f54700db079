//! The target machine, seen by a host that speaks bytes.

mod admin;
mod auth;
mod corpus;
mod discovery;
mod durability;
mod fence;
mod fused;
mod host;
mod io;
mod life;
mod malformed;
mod reservation;
mod reservation_model;
mod setup;
mod single_association;
mod split;

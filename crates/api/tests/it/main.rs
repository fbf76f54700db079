//! The contracts over loopback: a node in memory behind the real server, and the real client.
#![cfg(test)]

mod document;
mod events;
mod fake;
mod refusals;
mod rest;
mod routes;
mod schema;
mod security;
mod server;

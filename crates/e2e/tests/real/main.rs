//! The lane `real`: whole programs, a real etcd, real files.
#![cfg(test)]

mod attach;
mod bench;
mod control;
mod csi;
mod engine;
mod nouns;
mod nvme;
mod pool;
mod rest;
mod secure;
mod store;
mod up;

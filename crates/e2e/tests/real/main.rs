//! The lane `real`: whole programs, a real etcd, real files.
#![cfg(test)]

mod control;
mod engine;
mod nvme;
mod pool;
mod rest;
mod store;
mod up;

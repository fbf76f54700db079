//! The lane `real`: whole programs, a real etcd, real files.
#![cfg(test)]

mod nvme;
mod store;
mod up;

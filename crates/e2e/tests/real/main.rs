//! The lane `real`: whole programs, a real etcd, real files.
#![cfg(test)]

mod store;
mod up;

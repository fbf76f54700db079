//! The lane `real`: whole programs, a real etcd, real files.

mod nvme;
mod store;
mod up;

//! The lane `real`: whole programs, a real etcd, real files.

mod store;
mod up;

//! The store: the same questions to the embedded server and to etcd.

mod bad_input;
mod conformance;
mod crash;
mod disk;
mod etcdctl;
mod kubernetes;
mod linear;
mod transfer;

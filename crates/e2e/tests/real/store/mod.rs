//! The store: the same questions to the embedded server and to etcd.

mod conformance;

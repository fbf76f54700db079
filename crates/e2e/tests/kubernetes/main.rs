//! The lane `kubernetes`: a cluster of several nodes on this machine, with our image and chart.
//!
//! API server, controller manager, scheduler, kubelets, proxies and sidecars are the real programs,
//! which `cargo xtask test kubernetes` builds once and keeps in its cache. Each node is a set of
//! namespaces with a containerd of its own. What a scenario claims is checked from inside its pods.
//!
//! Needs root. The directory of a cluster that failed is kept, with the logs of all its programs.

#![expect(clippy::print_stderr, reason = "a run of minutes says how far it is")]

mod authority;
mod cluster;
mod data;
mod machine;
mod node;
mod wait;

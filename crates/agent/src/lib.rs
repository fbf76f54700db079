//! Hosts: volumes as block devices of this machine.
//!
//! - [`attach`]: what it takes to attach a volume here, and to detach it, step by step.
//! - [`worker`]: the process that serves one volume to the kernel, by our own initiator.
//! - [`supervisor`]: the process that keeps the kernel's descriptor while workers come and go.
//! - [`record`]: what is known of attached volumes, for whoever comes next.
//! - [`registration`]: shows the control plane that this host is there.
//! - [`path_watch`]: tells the control plane which paths there are, and which are lost.
//! - [`kernel_paths`]: the kernel's paths follow targets that move.
//! - [`preflight`]: whether this machine can attach volumes, and what helps.
//!
//! Invariants:
//! - What is written on a volume and acknowledged is never lost by the end of any process here.
//! - The loss of a target is a stall for its host, not an I/O error, up to the hold limit.
//! - What was begun and cannot be finished is undone.
//!
//! Deliberately not here: the protocol (`nvme`), the kernel's interfaces (`linux`), where targets
//! are placed (`planner`). `docs/design/0006-hosts.md` says how these fit together.

pub mod attach;
pub mod follow;
pub mod kernel_paths;
pub mod path_watch;
pub mod preflight;
pub mod record;
pub mod registration;
pub mod requests;
pub mod supervisor;
pub mod worker;

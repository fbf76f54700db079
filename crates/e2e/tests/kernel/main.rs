//! The lane `kernel`: a stock Linux in a virtual machine, as host of our target and as target of
//! our initiator.
//!
//! A check of [`checks`] runs as `holdfast::…` against our target on this machine, and the cheap
//! ones also as `reference::…` against the kernel's own target inside the guest. With the variable
//! `HOLDFAST_REFERENCE` set, the former use the kernel's target too. A check that fails with both
//! is wrong itself, or the machine is.
//!
//! The tests share one machine, one test at a time. After a failure the machine is thrown away and
//! the next test boots another.

mod checks;
mod engine;
mod harness;
mod host;
mod initiator;
mod lab;
mod mirrored;
mod multipath;
mod nvmet;
mod pair;
mod shared;

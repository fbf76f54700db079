//! The wire protocol, generated from `proto/*.proto`.
//!
//! The generated files are committed; the test `generated_code_is_current` says whether they are
//! current, and with `HOLDFAST_BLESS=1` in its environment writes them anew.

/// The Container Storage Interface.
#[expect(
    unused_qualifications,
    clippy::pedantic,
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "proto/csi.v1.rs"]
pub mod csi_v1;
/// Registration of a plugin with its kubelet.
#[expect(
    unused_qualifications,
    clippy::pedantic,
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod pluginregistration;

pub use csi_v1::*;

//! The wire protocol, generated from `proto/*.proto`.
//!
//! The generated files are committed; the test `generated_code_is_current` says whether they are
//! current, and with `HOLDFAST_BLESS=1` in its environment writes them anew.

/// Permissions.
#[expect(clippy::pedantic, reason = "generated")]
#[rustfmt::skip]
pub mod authpb;
/// Requests, answers and services.
#[expect(
    unused_qualifications,
    clippy::pedantic,
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod etcdserverpb;
/// Keys, values and events.
#[rustfmt::skip]
pub mod mvccpb;
/// Elections.
#[expect(
    unused_qualifications,
    clippy::pedantic,
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod v3electionpb;
/// Locks.
#[expect(
    unused_qualifications,
    clippy::pedantic,
    clippy::as_conversions,
    clippy::clone_on_ref_ptr,
    reason = "generated"
)]
#[rustfmt::skip]
pub mod v3lockpb;

/// All of the protocol as data, for what translates it to JSON.
pub(crate) const DESCRIPTORS: &[u8] = include_bytes!("proto/descriptors.bin");

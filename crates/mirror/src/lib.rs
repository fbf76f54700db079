//! The mirrored volume: fan-out, child states, dirty maps, rebuild, fencing.
//!
//! A [`Mirror`] is the volume of one target. It has one owner, who hands it host commands, orders
//! and what happened, and carries out the effects it asks for. It never holds a byte of data: it
//! names I/Os and buffers by number. `docs/design/0002-mirror.md` draws the paths.
//!
//! | to | use |
//! |---|---|
//! | open a volume whose epoch was taken | [`Mirror::open`] with an [`OpenParams`] |
//! | hand in a host's command | [`Mirror::submit`], ends with [`Effect::Done`] |
//! | read a local copy without it | [`Mirror::try_bypass`], [`Mirror::bypass_done`] |
//! | hand in such a read that failed | [`Mirror::bypass_failed`] |
//! | change something | [`Mirror::request`], ends with [`Effect::Answer`] |
//! | keep the reservations of hosts | [`Mirror::keep_reservations`], ends with [`Effect::Answer`] |
//! | say what happened | [`Mirror::apply`] |
//! | do what it asks | [`Mirror::poll`] until it says nothing more |
//! | let time pass | [`Mirror::tick`] at [`Mirror::timeout`] |
//!
//! Invariants (each is written again where it is kept):
//! - **W1** A write is acknowledged only when every copy that the store, a label or a proposal
//!   under way calls in sync has completed it.
//! - **W2** Commands that share a block run one after the other, in the order they came; a copy of
//!   a rebuild is such a command. So all copies see overlapping writes in one order.
//! - **W3** A region is durably marked on every child that takes writes, among them all that
//!   anybody may call in sync, before the first write in it is sent to any.
//! - **R1** A read is answered by a copy in sync, and only while every copy that is recorded in
//!   sync has proved within the lease, or since the read came, that this target owns the volume.
//! - **R2** Blocks of a region in doubt are not read before all copies in sync are equal there.
//! - **U1** A block without a proven checksum is believed only when every copy recorded in sync was
//!   asked and none could prove it, and never one whose checksum is wrong.
//! - **F1** A flush is sent only when no region is in doubt.
//! - **L1** A label is written only after the store took the record that it repeats; a newer one
//!   shows that the store went back.
//! - **L2** A copy in sync shows no older note than others know it to have had, or was rolled back.
//! - **S1** The last copy in sync is never recorded stale.
//! - **S2** Nothing is recorded after the store or a replica said that somebody newer owns it.
//! - **D1** Whatever a stale copy may lack lies in its map or in a durable mark.
//! - **D2** A region leaves that map only after it was copied and the copy was flushed.
//! - **H1** Reservations of hosts are answered only when the note of every copy that anybody may
//!   call in sync has them, so every later owner finds what was acknowledged.
//!
//! Deliberately not here: connections, reservations on replicas, pools, the store (the owner of the
//! mirror carries these out), taking the epoch, choosing replicas, moving bytes.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod api;
mod attachment;
mod commands;
mod config;
mod context;
mod departure;
mod intent_log;
mod lane;
mod mirror;
mod rebuilder;
mod replicas;
mod replication;
mod report;
mod requests;
mod reservation;
mod resize;
mod service;

mod shutdown;
mod snapshot;
#[cfg(test)]
#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    reason = "tests count in small numbers"
)]
mod tests;
mod token_bucket;

pub use api::{
    Answer, AttachFault, Attempt, Buffer, CommandId, Effect, Event, MirrorRequest, OpenParams,
    RebuildCommand, ReplicaInfo, RequestId, Session, StoreFault, UnreadableBlocks,
};
pub use config::{LONGEST_LEASE, MirrorConfig, ReadLease};
pub use mirror::Mirror;
pub use rebuilder::Checked;
pub use reservation::Readiness;

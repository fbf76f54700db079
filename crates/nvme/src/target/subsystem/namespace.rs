//! A namespace as hosts see it.

use block::{Blocks, Geometry};
use zerocopy::FromZeros;

use super::reservation::Reservations;
use crate::wire::{IdNamespace, IdNamespaceIndependent, LbaFormat, U16, U32, U64, U128};

/// Identity of a namespace: the same on every path, different from every other one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    /// UUID; all zero for none.
    pub uuid: [u8; 16],
    /// Globally unique identifier; all zero for none.
    pub nguid: [u8; 16],
    /// Extended unique identifier; all zero for none.
    pub eui64: [u8; 8],
}

/// What the owner says of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// Identity.
    pub ids: NamespaceIds,
    /// Size and block size.
    pub geometry: Geometry,
    /// ANA group, from 1.
    pub ana_group: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Completed writes need a flush to be durable.
    pub write_cache: bool,
    /// Other engines may send messages about it: it is a replica.
    pub takes_messages: bool,
    /// Reservations from before a restart.
    pub reservations: Reservations,
    /// Where they are kept.
    pub reservation_home: ReservationHome,
}

/// Where the reservations of a namespace are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservationHome {
    /// With the device: they are known when the namespace is added, and survive a restart if hosts
    /// ask for that.
    #[default]
    Device,
    /// With a volume that another node may serve next. They are known when the volume opens
    /// ([`Subsystem::restore_reservations`](super::Subsystem::restore_reservations)), and every
    /// state is kept, whether hosts ask for that or not.
    Volume {
        /// How many can be kept.
        max_registrants: usize,
    },
}

/// Whether commands on a namespace can be carried out.
///
/// ```text
///   Opening ◄──► Unavailable
///      └─────┬────────┘
///            ▼ restored
///          Ready ──► Unavailable, for good
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// They are.
    Ready,
    /// Its reservations are not known yet: commands wait.
    Opening,
    /// Its volume did not open in time, or is served elsewhere: commands fail, and hosts try
    /// another path.
    Unavailable,
}

/// Counters of a namespace, for the health log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    pub(in crate::target) config: NamespaceConfig,
    pub(in crate::target) traffic: Traffic,
    /// Number of the newest reservation state.
    pub(in crate::target) version: u64,
    /// Number of the newest reservation state that needs no more persisting.
    pub(in crate::target) settled: u64,
    /// Number of the newest reservation state that could not be persisted.
    pub(in crate::target) failed: u64,
    pub(in crate::target) readiness: Readiness,
    pub(in crate::target) ownership: Ownership,
}

/// Proofs that a volume is still owned here, numbered as they are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::target) struct Ownership {
    /// The newest that was asked for.
    pub(in crate::target) asked: u64,
    /// The newest that was given.
    pub(in crate::target) proved: u64,
    /// The newest that could not be given.
    pub(in crate::target) failed: u64,
}

impl Namespace {
    pub(super) fn new(config: NamespaceConfig) -> Namespace {
        let traffic = Traffic::default();
        let readiness = match config.reservation_home {
            ReservationHome::Device => Readiness::Ready,
            ReservationHome::Volume { .. } => Readiness::Opening,
        };
        let ownership = Ownership::default();
        Namespace { config, traffic, version: 0, settled: 0, failed: 0, readiness, ownership }
    }

    /// What the owner said.
    pub fn config(&self) -> &NamespaceConfig {
        &self.config
    }

    /// Its reservations.
    pub fn reservations(&self) -> &Reservations {
        &self.config.reservations
    }

    /// Whether every state of its reservations is kept, and how many registrants there may be.
    pub(super) fn reservation_limits(&self) -> (bool, usize) {
        match self.config.reservation_home {
            ReservationHome::Device => (false, super::MAX_REGISTRANTS),
            ReservationHome::Volume { max_registrants } => (true, max_registrants),
        }
    }

    /// Its counters.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Identify Namespace.
    pub(in crate::target) fn identify(&self) -> IdNamespace {
        let blocks = self.config.geometry.blocks().0;
        let block_size = self.config.geometry.block_size();
        let mut id = IdNamespace::new_zeroed();
        id.nsze = U64::new(blocks);
        id.ncap = U64::new(blocks);
        id.nuse = U64::new(blocks);
        id.nsfeat = NSFEAT_THIN | NSFEAT_OPTPERF;
        id.nmic = SHARED;
        id.rescap = RESCAP_ALL;
        id.dlfeat = DLFEAT_ZEROS | DLFEAT_DEAC;
        id.nvmcap = U128::new(u128::from(self.config.geometry.bytes().0));
        // Pools write 4 KiB at a time, whatever the block of the namespace.
        let preferred = U16::new(preferred_blocks(block_size.bytes()));
        id.npwg = preferred;
        id.npwa = preferred;
        id.npdg = preferred;
        id.npda = preferred;
        id.anagrpid = U32::new(self.config.ana_group);
        id.nsattr = u8::from(self.config.read_only);
        id.nguid = self.config.ids.nguid;
        id.eui64 = self.config.ids.eui64;
        if let Some(format) = id.lbaf.first_mut() {
            *format = LbaFormat { ms: U16::ZERO, lbads: block_size.shift(), rp: 0 };
        }
        id
    }

    /// Identify Namespace, independent of command sets.
    pub(in crate::target) fn identify_independent(&self) -> IdNamespaceIndependent {
        let mut id = IdNamespaceIndependent::new_zeroed();
        id.nsfeat = if self.config.write_cache { 0 } else { NSFEAT_NO_CACHE };
        id.nmic = SHARED;
        id.rescap = RESCAP_ALL;
        id.anagrpid = U32::new(self.config.ana_group);
        id.nsattr = u8::from(self.config.read_only);
        id.nstat = READY;
        id
    }

    /// Counts a command.
    #[inline]
    pub(in crate::target) fn count(&mut self, is_write: bool, blocks: Blocks) {
        let bytes = blocks.0 << self.config.geometry.block_size().shift();
        let Traffic { reads, writes, read_bytes, written_bytes } = &mut self.traffic;
        let (commands, moved) =
            if is_write { (writes, written_bytes) } else { (reads, read_bytes) };
        *commands = commands.wrapping_add(1);
        *moved = moved.wrapping_add(bytes);
    }
}

/// Space is given on first write.
const NSFEAT_THIN: u8 = 1;
/// The preferred sizes are filled in.
const NSFEAT_OPTPERF: u8 = 1 << 4;
/// Independent structure: no volatile write cache.
const NSFEAT_NO_CACHE: u8 = 1 << 5;
/// Several controllers may have it.
const SHARED: u8 = 1;
/// Persistence, all six types, IEKEY as of version 1.3.
const RESCAP_ALL: u8 = 0xFF;
/// Deallocated blocks read as zeros.
const DLFEAT_ZEROS: u8 = 1;
/// Write Zeroes may deallocate.
const DLFEAT_DEAC: u8 = 1 << 3;
/// Ready for commands.
const READY: u8 = 1;

/// 4 KiB in blocks, minus one.
fn preferred_blocks(block: u32) -> u16 {
    u16::try_from((4096 / block).max(1) - 1).unwrap_or(0)
}

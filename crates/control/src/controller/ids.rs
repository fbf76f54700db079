//! Ids of new things, from a seed.

use model::{FailoverId, PublicationId, RebuildId, ReplicaId, StoreId, TargetId, ValidationError};
use uuid::Uuid;

/// A source of ids: never the same twice, given that the seed is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn new(seed: u64) -> Ids {
        Ids(seed)
    }

    pub(crate) fn uuid(&mut self) -> Uuid {
        let bits = (u128::from(self.next()) << 64) | u128::from(self.next());
        uuid::Builder::from_random_bytes(bits.to_be_bytes()).into_uuid()
    }

    pub(crate) fn replica(&mut self) -> Result<ReplicaId, ValidationError> {
        ReplicaId::new(self.uuid())
    }

    pub(crate) fn target(&mut self) -> Result<TargetId, ValidationError> {
        TargetId::new(self.uuid())
    }

    pub(crate) fn failover(&mut self) -> Result<FailoverId, ValidationError> {
        FailoverId::new(self.uuid())
    }

    pub(crate) fn publication(&mut self) -> Result<PublicationId, ValidationError> {
        PublicationId::new(self.uuid())
    }

    pub(crate) fn rebuild(&mut self) -> Result<RebuildId, ValidationError> {
        RebuildId::new(self.uuid())
    }

    pub(crate) fn store(&mut self) -> Result<StoreId, ValidationError> {
        StoreId::new(self.uuid())
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

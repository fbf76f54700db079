//! How far a store has come: a number that only grows, kept in the store and by every engine.
//!
//! The control plane raises it when it begins to lead and whenever the copies in sync of a volume
//! have changed, and tells engines, which keep it on disk. A store whose number is lower than one
//! that an engine was told was put back to an earlier state.

use serde::{Deserialize, Serialize};

use crate::StoreId;
use crate::envelope::Versioned;

/// A moment in the life of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreMark {
    /// Which store: another one begins anew.
    pub store: StoreId,
    /// How far it had come.
    pub number: u64,
}

impl StoreMark {
    /// Whether this is a later moment of the same store.
    pub fn is_after(self, other: StoreMark) -> bool {
        self.store == other.store && self.number > other.number
    }
}

impl Versioned for StoreMark {
    const KIND: &'static str = "storeMark";
    const VERSION: u32 = 1;
}

/// What a store keeps of that about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoreSequence {
    /// How far it has come.
    pub mark: StoreMark,
    /// Whether it was put back to an earlier state, and volumes may not have been compared with
    /// all of their copies since.
    pub went_back: bool,
}

impl StoreSequence {
    /// The name of the one record of this kind.
    pub const ID: &'static str = "cluster";
}

impl Versioned for StoreSequence {
    const KIND: &'static str = "storeSequence";
    const VERSION: u32 = 1;
}

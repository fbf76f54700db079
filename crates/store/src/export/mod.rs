//! All keys of a store to a file, and back into any store.
//!
//! Invariants:
//! - The file holds the keys as they were at one revision, in the order of their creation; keys
//!   created by one transaction in their own order. Nothing in it depends on revisions, leases or
//!   the server, so an export of an import is the same file, byte for byte.
//! - An import writes nothing before the whole file was read and found sound.
//! - Values are streamed; of the whole store only the keys are held in memory, to sort them.
//!
//! Keys that hang on a lease are left out: they say that some process is alive, of a process that
//! talks to the old store. In the new one they would be a lie, and without their lease one that
//! never ends. Their owners write them again when they come.
//!
//! Format: `docs/format/store-export.md`.

mod dump;
mod format;
mod load;

pub use dump::{ExportError, export, export_keys};
pub use format::{FormatError, verify};
pub use load::{ImportError, Onto, import};

/// How far a long work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Keys done.
    pub done: u64,
    /// Keys in all.
    pub total: u64,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Keys written.
    pub keys: u64,
    /// Keys left out because they hang on a lease.
    pub leased: u64,
}

#[cfg(test)]
mod tests;

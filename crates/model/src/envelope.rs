//! Records as they lie in the store and on disks: the content with its kind and its version.
//!
//! ```json
//! {"kind": "volume", "version": 1, "record": {…}}
//! ```
//!
//! Records are read strictly. A reader that skipped a field it does not know would drop it at its
//! next write; so a field nobody older may drop is written only when it is used, and an older
//! reader refuses such a record with a sentence that names it. A change that is not such an
//! addition takes a new version and a conversion here, in a module named after the old version.

use alloc::format;
use alloc::string::{String, ToString};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::{Resource, Spec};

/// Something that is stored.
pub trait Versioned: Serialize + DeserializeOwned {
    /// Its name in the record.
    const KIND: &'static str;
    /// The version that is written.
    const VERSION: u32;
}

impl<S: Spec> Versioned for Resource<S> {
    const KIND: &'static str = S::KIND;
    const VERSION: u32 = 1;
}

/// Why a record could not be read. Nothing may be written in its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by a newer release.
    #[error(
        "this {kind} record has version {found}, this release reads up to {newest}; \
         upgrade Holdfast before it goes on"
    )]
    Newer {
        /// What it should be.
        kind: &'static str,
        /// The version found.
        found: u32,
        /// The newest version known.
        newest: u32,
    },
    /// Another thing than expected.
    #[error("a {expected} record was expected, but this is a {found:?} record")]
    OtherKind {
        /// What it should be.
        expected: &'static str,
        /// What it says it is.
        found: String,
    },
    /// Not what was written.
    #[error("this {kind} record is damaged or of a newer release: {reason}")]
    Damaged {
        /// What it should be.
        kind: &'static str,
        /// What the parser says.
        reason: String,
    },
}

/// The bytes to store.
pub fn encode<R: Versioned>(record: &R) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Envelope { kind: R::KIND.into(), version: R::VERSION, record })
}

/// The record in stored bytes.
pub fn decode<R: Versioned>(bytes: &[u8]) -> Result<R, DecodeError> {
    let damaged = |error: serde_json::Error| DecodeError::Damaged {
        kind: R::KIND,
        reason: error.to_string(),
    };
    let head: Envelope<IgnoredAny> = serde_json::from_slice(bytes).map_err(damaged)?;
    if head.kind != R::KIND {
        return Err(DecodeError::OtherKind { expected: R::KIND, found: head.kind });
    }
    match head.version {
        0 => {
            let reason = format!("there is no version {}", head.version);
            Err(DecodeError::Damaged { kind: R::KIND, reason })
        }
        found if found > R::VERSION => {
            Err(DecodeError::Newer { kind: R::KIND, found, newest: R::VERSION })
        }
        _ => {
            let whole: Envelope<R> = serde_json::from_slice(bytes).map_err(damaged)?;
            Ok(whole.record)
        }
    }
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct Envelope<R> {
    kind: String,
    version: u32,
    record: R,
}

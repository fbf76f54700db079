//! What hosts may ask of a volume at most.

use serde::{Deserialize, Serialize};

use crate::{Size, ValidationError};

/// Limits of a volume; an absent one limits nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QosLimits {
    /// Commands a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Size>,
}

impl QosLimits {
    /// The least that lets a single large command through each second.
    pub const LEAST_BANDWIDTH: Size = Size::mib(1);

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == QosLimits::default()
    }

    pub(crate) fn validate(&self) -> Result<(), ValidationError> {
        if self.iops == Some(0) {
            return Err(ValidationError::new("iops", 0, "give at least 1, or leave it out"));
        }
        match self.bytes_per_second {
            Some(rate) if rate < QosLimits::LEAST_BANDWIDTH => {
                let remedy = "give at least 1MiB a second, or leave it out";
                Err(ValidationError::new("bytesPerSecond", rate, remedy))
            }
            _ => Ok(()),
        }
    }
}

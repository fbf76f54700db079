//! Labels of nodes, hosts, pools and volumes.

use alloc::collections::BTreeMap;

use crate::{LabelKey, LabelValue, ValidationError};

/// What people stick on things to choose by.
pub type Labels = BTreeMap<LabelKey, LabelValue>;

/// The most labels one thing may have.
pub const MOST_LABELS: usize = 64;

/// Refuses more labels than anybody needs.
pub(crate) fn check(labels: &Labels) -> Result<(), ValidationError> {
    if labels.len() <= MOST_LABELS {
        return Ok(());
    }
    let remedy = alloc::format!("give at most {MOST_LABELS} labels");
    Err(ValidationError::new("labels", alloc::format!("({} of them)", labels.len()), remedy))
}

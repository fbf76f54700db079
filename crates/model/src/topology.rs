//! Where copies of a volume may lie, and where they should.
//!
//! The rules hold for the life of the volume: for its first replicas and for each that replaces
//! one. An absent rule forbids nothing.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::{LabelKey, LabelValue, Labels, NodeName, ValidationError};

/// Rules for the nodes and pools of a volume's replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Topology {
    /// Only these nodes; empty: any.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub allowed_nodes: BTreeSet<NodeName>,
    /// Rather these nodes.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub preferred_nodes: BTreeSet<NodeName>,
    /// Rules on the labels of nodes.
    #[serde(skip_serializing_if = "LabelRules::is_empty")]
    pub nodes: LabelRules,
    /// Rules on the labels of pools.
    #[serde(skip_serializing_if = "LabelRules::is_empty")]
    pub pools: LabelRules,
    /// What to do about zones.
    pub zones: Zones,
}

/// Rules on labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelRules {
    /// The label must be there with one of these values; no values: any value will do.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub include: BTreeMap<LabelKey, BTreeSet<LabelValue>>,
    /// The label must not have one of these values; no values: it must not be there at all.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub exclude: BTreeMap<LabelKey, BTreeSet<LabelValue>>,
    /// The label must be there, with another value for each replica.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub spread: BTreeSet<LabelKey>,
    /// The label must be there, with the same value for all replicas.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub same_as: BTreeSet<LabelKey>,
}

/// What to do about zones, which nodes name in the label [`LabelKey::ZONE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Zones {
    /// Nothing.
    Ignore,
    /// Another zone for each replica, as far as there are enough.
    #[default]
    Prefer,
    /// Another zone for each replica, or none is placed.
    Require,
}

impl Topology {
    /// Refuses rules that no cluster could satisfy.
    pub(crate) fn validate(&self, replicas: u8) -> Result<(), ValidationError> {
        let allowed = self.allowed_nodes.len();
        if allowed > 0 && allowed < usize::from(replicas) {
            let remedy = format!("name at least {replicas} nodes, one for each replica, or none");
            return Err(ValidationError::text(
                "allowedNodes",
                &joined(&self.allowed_nodes),
                remedy,
            ));
        }
        let stray = self.preferred_nodes.difference(&self.allowed_nodes).next();
        if let (true, Some(stray)) = (allowed > 0, stray) {
            let remedy = "prefer only nodes that are allowed";
            return Err(ValidationError::text("preferredNodes", stray.as_str(), remedy));
        }
        self.nodes.validate(replicas).map_err(|invalid| invalid.within("nodes"))?;
        self.pools.validate(replicas).map_err(|invalid| invalid.within("pools"))
    }
}

impl LabelRules {
    /// Whether there is no rule at all.
    pub fn is_empty(&self) -> bool {
        *self == LabelRules::default()
    }

    /// Whether one thing with these labels may be chosen; `spread` and `same_as` only ask here
    /// that the label is there, since what they compare is all chosen things together.
    pub fn admits(&self, labels: &Labels) -> bool {
        let one_of = |values: &BTreeSet<LabelValue>, value: &LabelValue| {
            values.is_empty() || values.contains(value)
        };
        self.include.iter().all(|(key, values)| labels.get(key).is_some_and(|v| one_of(values, v)))
            && !self
                .exclude
                .iter()
                .any(|(key, values)| labels.get(key).is_some_and(|v| one_of(values, v)))
            && self.spread.iter().chain(&self.same_as).all(|key| labels.contains_key(key))
    }

    fn validate(&self, replicas: u8) -> Result<(), ValidationError> {
        if let Some(key) = self.spread.intersection(&self.same_as).next() {
            let remedy = "values cannot differ and be the same; drop it from spread or from sameAs";
            return Err(ValidationError::text("spread", key.as_str(), remedy));
        }
        for (key, included) in &self.include {
            let Some(excluded) = self.exclude.get(key) else { continue };
            let nothing_left =
                excluded.is_empty() || (!included.is_empty() && included.is_subset(excluded));
            if nothing_left {
                let remedy = "exclude leaves nothing of what include asks for; change one of them";
                return Err(ValidationError::text("include", key.as_str(), remedy));
            }
        }
        let forbidden = |key: &&LabelKey| self.exclude.get(*key).is_some_and(BTreeSet::is_empty);
        if let Some(key) = self.spread.iter().chain(&self.same_as).find(forbidden) {
            let remedy = "spread and sameAs need a label that exclude forbids; change one of them";
            return Err(ValidationError::text("exclude", key.as_str(), remedy));
        }
        for key in &self.spread {
            let values = self.include.get(key).map_or(0, BTreeSet::len);
            if values > 0 && values < usize::from(replicas) {
                let remedy = format!(
                    "{replicas} replicas need {replicas} values, but include allows only {values}"
                );
                return Err(ValidationError::text("spread", key.as_str(), remedy));
            }
        }
        Ok(())
    }
}

fn joined(names: &BTreeSet<NodeName>) -> String {
    names.iter().map(NodeName::as_str).collect::<Vec<_>>().join(", ")
}

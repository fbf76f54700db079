//! Which of many are asked for: the page, and filters. A filter that is left out lets all through.

use std::fmt;
use std::str::FromStr;

use model::{
    AffinityGroup, Event, EventName, HostName, LabelKey, LabelValue, Labels, NodeName, PoolName,
    Resource, Severity, SnapshotGroupId, SnapshotId, Spec, Subject, SubjectKind, Timestamp,
    ValidationError, VolumeId, VolumeState,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Paging;

macro_rules! asked {
    ($($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $of:literal])+ $field:ident: $type:ty,)*
    })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name {
            $($(#[doc = $of])+
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub $field: Option<$type>,)*
            /// At most so many: 1 to 1000.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(range(min = 1, max = 1000))]
            pub limit: Option<u32>,
            /// Go on after this, as the page before said.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub after: Option<String>,
        }

        impl $name {
            /// Which page.
            pub fn paging(&self) -> Paging {
                Paging { limit: self.limit, after: self.after.clone() }
            }

            /// The same question about another page.
            #[must_use]
            pub fn at(self, paging: Paging) -> $name {
                $name { limit: paging.limit, after: paging.after, ..self }
            }
        }
    )+};
}

asked! {
    /// Which nodes.
    NodeQuery {
        /// Only those with this label.
        label: LabelMatch,
    }
    /// Which hosts.
    HostQuery {
        /// Only those with this label.
        label: LabelMatch,
    }
    /// Which pools.
    PoolQuery {
        /// Only those of this node.
        node: NodeName,
        /// Only those with this label.
        label: LabelMatch,
    }
    /// Which volumes.
    VolumeQuery {
        /// Only the one with this name; if none has it, those with an id that begins so.
        called: IdOrName,
        /// Only those that are so well.
        state: VolumeState,
        /// Only those with a copy or the target on this node.
        node: NodeName,
        /// Only those with a copy in this pool.
        pool: PoolName,
        /// Only those that this host may use.
        host: HostName,
        /// Only those of this group.
        affinity_group: AffinityGroup,
        /// Only those with this label.
        label: LabelMatch,
    }
    /// Which snapshots.
    SnapshotQuery {
        /// Only the one with this name; if none has it, those with an id that begins so.
        called: IdOrName,
        /// Only those of this volume.
        volume: VolumeId,
        /// Only those of this group.
        group: SnapshotGroupId,
        /// Only those with this label.
        label: LabelMatch,
    }
    /// Which groups of snapshots.
    GroupQuery {
        /// Only the one with this name; if none has it, those with an id that begins so.
        called: IdOrName,
        /// Only those with this label.
        label: LabelMatch,
    }
    /// Which replicas.
    ReplicaQuery {
        /// Only those of this volume.
        volume: VolumeId,
        /// Only those of this node.
        node: NodeName,
        /// Only those in this pool.
        pool: PoolName,
    }
    /// Which targets.
    TargetQuery {
        /// Only those of this volume.
        volume: VolumeId,
        /// Only those of this node.
        node: NodeName,
    }
    /// Which rebuilds.
    RebuildQuery {
        /// Only those of this volume.
        volume: VolumeId,
        /// Only those that have not ended.
        running: bool,
    }
    /// Which failovers.
    FailoverQuery {
        /// Only those of this volume.
        volume: VolumeId,
    }
    /// Which of the events that are kept.
    EventQuery {
        /// Only those about this volume.
        volume: VolumeId,
        /// Only those about this node.
        node: NodeName,
        /// Only those about this pool.
        pool: PoolName,
        /// Only those about things of this kind.
        kind: SubjectKind,
        /// Only those about the thing with this name or id, or an id that begins so.
        about: String,
        /// Only those with this name: what happened.
        name: EventName,
        /// Only those that are at least so serious.
        severity: Severity,
        /// Only those of this moment and later.
        since: Timestamp,
        /// Only those before this moment.
        until: Timestamp,
    }
    /// Which stretches of a snapshot.
    RangeQuery {
        /// Only what an older snapshot of the same volume has not; left out: all that is written.
        since: SnapshotId,
    }
}

impl EventQuery {
    /// Whether an event is asked for, whatever volume it is about.
    pub fn admits(&self, event: &Event) -> bool {
        let subject = &event.subject;
        let is = |asked: &Option<Subject>| asked.as_ref().is_none_or(|asked| asked == subject);
        is(&self.node.clone().map(Subject::Node))
            && is(&self.pool.clone().map(Subject::Pool))
            && self.kind.is_none_or(|kind| subject.kind() == kind)
            && self.about.as_ref().is_none_or(|about| subject.id().starts_with(about.as_str()))
            && self.name.is_none_or(|name| event.name == name)
            && self.severity.is_none_or(|severity| event.severity >= severity)
            && self.since.is_none_or(|since| event.at >= since)
            && self.until.is_none_or(|until| event.at < until)
    }
}

/// What people type for a volume, a snapshot or a group: its name, its id, or how its id begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdOrName(String);

impl IdOrName {
    /// Which of all of a kind are meant: the one with this name, or else those with such an id.
    pub fn among<'s, S: Spec + 's>(
        &self,
        mut all: impl Iterator<Item = &'s Resource<S>>,
    ) -> impl Fn(&Resource<S>) -> bool {
        let text = self.0.clone();
        let is_name = all.any(|it| it.spec().name().is_some_and(|name| name.as_str() == text));
        move |it| match it.spec().name() {
            Some(name) if is_name => name.as_str() == text,
            None if is_name => false,
            _ => it.id().to_string().starts_with(&text),
        }
    }

    /// As it is compared: in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdOrName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for IdOrName {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<IdOrName, ValidationError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.';
        if text.is_empty() || text.len() > 253 || !text.bytes().all(allowed) {
            let remedy = "give an id, the beginning of one, or a name, such as orders-db";
            return Err(ValidationError::new("idOrName", text, remedy));
        }
        Ok(IdOrName(text.to_ascii_lowercase()))
    }
}

impl TryFrom<String> for IdOrName {
    type Error = ValidationError;

    fn try_from(text: String) -> Result<IdOrName, ValidationError> {
        text.parse()
    }
}

impl From<IdOrName> for String {
    fn from(called: IdOrName) -> String {
        called.0
    }
}

impl JsonSchema for IdOrName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "IdOrName".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// A label that things must have: `KEY`, or `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabelMatch {
    /// The label must be there.
    pub key: LabelKey,
    /// It must have this value; absent: any.
    pub value: Option<LabelValue>,
}

impl LabelMatch {
    /// Whether things with these labels are asked for.
    pub fn admits(&self, labels: &Labels) -> bool {
        let found = labels.get(&self.key);
        found.is_some_and(|found| self.value.as_ref().is_none_or(|value| value == found))
    }
}

impl fmt::Display for LabelMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, "={value}"))
    }
}

impl FromStr for LabelMatch {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<LabelMatch, ValidationError> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (text, None),
        };
        Ok(LabelMatch { key: key.parse()?, value: value.map(str::parse).transpose()? })
    }
}

impl TryFrom<String> for LabelMatch {
    type Error = ValidationError;

    fn try_from(text: String) -> Result<LabelMatch, ValidationError> {
        text.parse()
    }
}

impl From<LabelMatch> for String {
    fn from(label: LabelMatch) -> String {
        label.to_string()
    }
}

impl JsonSchema for LabelMatch {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "LabelMatch".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

#[cfg(test)]
mod tests {
    use model::{Size, Volume, VolumeSpec};

    use super::*;

    #[test]
    fn a_name_is_meant_before_the_beginning_of_an_id() {
        let volume = |id: &str, name: Option<&str>| {
            let name = name.map(|name| name.parse().unwrap());
            let spec = VolumeSpec { name, ..VolumeSpec::new(Size::gib(1), 1) };
            Volume::new(id.parse().unwrap(), spec, Timestamp::from_millis(0)).unwrap()
        };
        let first = "abc00000-0000-4000-8000-000000000001";
        let all = [
            volume(first, None),
            volume("abd00000-0000-4000-8000-000000000002", Some("abc")),
            volume("abd00000-0000-4000-8000-000000000003", Some("orders")),
        ];
        let meant = |text: &str| {
            let called: IdOrName = text.parse().unwrap();
            let which = called.among(all.iter());
            all.iter().map(&which).collect::<Vec<_>>()
        };
        assert_eq!(meant("abc"), [false, true, false]);
        assert_eq!(meant("ABC0"), [true, false, false]);
        assert_eq!(meant(first), [true, false, false]);
        assert_eq!(meant("abd"), [false, true, true]);
        assert_eq!(meant("orders"), [false, false, true]);
        assert_eq!(meant("order"), [false, false, false]);
        for text in ["", "a b", "a/b", "*"] {
            assert!(text.parse::<IdOrName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_label_matches_by_key_or_by_key_and_value() {
        let labels: Labels = [("zone".parse().unwrap(), "b".parse().unwrap())].into();
        for (text, admits) in [("zone", true), ("zone=b", true), ("zone=", false), ("rack", false)]
        {
            let asked: LabelMatch = text.parse().unwrap();
            assert_eq!(asked.admits(&labels), admits, "{text}");
            assert_eq!(asked.to_string(), text);
        }
        assert!("a b=c".parse::<LabelMatch>().is_err());
    }
}

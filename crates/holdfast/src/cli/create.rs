//! What is typed to make or change things: labels, ids, properties of a volume.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};
use clap::Args;
use clap::builder::RangedI64ValueParser;
use model::{
    AffinityGroup, Encryption, GivenName, KeyName, LabelKey, LabelValue, Labels, NodeName,
    QosLimits, Size, Source, Topology, ValidationError, VolumeId, VolumePolicy, VolumeSpec, Zones,
};

use super::reference::{SnapshotReference, VolumeReference};

/// `KEY=VALUE` as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelText(pub(crate) LabelKey, pub(crate) LabelValue);

impl std::str::FromStr for LabelText {
    type Err = String;

    fn from_str(text: &str) -> Result<LabelText, String> {
        let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, such as zone=a")?;
        let said = |invalid: ValidationError| invalid.to_string();
        Ok(LabelText(key.parse().map_err(said)?, value.parse().map_err(said)?))
    }
}

/// A change of labels as typed: `KEY=VALUE` sets one, `KEY-` takes one away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LabelEdit {
    Set(LabelText),
    Remove(LabelKey),
}

impl std::str::FromStr for LabelEdit {
    type Err = String;

    fn from_str(text: &str) -> Result<LabelEdit, String> {
        match text.strip_suffix('-').filter(|key| !key.contains('=')) {
            Some(key) => {
                key.parse().map(LabelEdit::Remove).map_err(|bad: ValidationError| bad.to_string())
            }
            None => text.parse().map(LabelEdit::Set),
        }
    }
}

/// The labels after the edits.
pub(crate) fn edited(labels: &Labels, edits: Vec<LabelEdit>) -> Labels {
    let mut labels = labels.clone();
    for edit in edits {
        match edit {
            LabelEdit::Set(LabelText(key, value)) => drop(labels.insert(key, value)),
            LabelEdit::Remove(key) => drop(labels.remove(&key)),
        }
    }
    labels
}

/// An id nobody has: the caller chooses ids, so that asking twice makes one thing.
pub(crate) fn new_id<T: std::str::FromStr<Err = ValidationError>>() -> Result<T> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("the system has no randomness for a new id; give one with --id")?;
    let [.., version, _, variant, _, _, _, _, _, _, _] = &mut bytes;
    (*version, *variant) = (*version & 0x0f | 0x40, *variant & 0x3f | 0x80);
    let hex = format!("{:032x}", u128::from_be_bytes(bytes));
    let at = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    let id = [at(0, 8), at(8, 12), at(12, 16), at(16, 20), at(20, 32)].join("-");
    Ok(id.parse()?)
}

/// Refuses to destroy without a word.
pub(crate) fn agreed(yes: bool, what: &str) -> Result<()> {
    if !yes {
        bail!("{what}; if that is what you want, say --yes");
    }
    Ok(())
}

/// A number of copies that a volume can have.
pub(crate) fn copies() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(1..=i64::from(VolumeSpec::MOST_REPLICAS))
}

/// What zones mean for the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ZonesText {
    /// Nothing
    Ignore,
    /// Another zone for each copy, as far as there are enough
    Prefer,
    /// Another zone for each copy, or none is placed
    Require,
}

/// Properties of a volume that can be changed later.
#[derive(Args, Clone, Debug)]
pub(crate) struct Properties {
    /// What to call it: unique, and good wherever a volume is meant
    #[arg(long, value_name = "NAME")]
    name: Option<GivenName>,
    /// Several hosts may use it at once; what they run on it must know how
    #[arg(long, value_name = "YES|NO", num_args = 0..=1, default_missing_value = "true")]
    shared: Option<bool>,
    /// Volumes to keep apart from: NAME or NAMESPACE/NAME
    #[arg(long, value_name = "GROUP")]
    affinity_group: Option<AffinityGroup>,
    /// Replace lost copies without being asked
    #[arg(long, value_name = "YES|NO")]
    self_heal: Option<bool>,
    /// How long a lost copy may stay away before it is replaced
    #[arg(long, value_name = "SECONDS")]
    replace_after: Option<u32>,
    /// Only these nodes may have a copy
    #[arg(long = "allow-node", value_name = "NODE")]
    allowed: Vec<NodeName>,
    /// Rather these nodes
    #[arg(long = "prefer-node", value_name = "NODE")]
    preferred: Vec<NodeName>,
    /// Nodes of copies must have this label; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    node_label: Vec<LabelText>,
    /// Pools of copies must have this label; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    pool_label: Vec<LabelText>,
    /// Nodes of copies must not have this label; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    avoid_node_label: Vec<LabelText>,
    /// Pools of copies must not have this label; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    avoid_pool_label: Vec<LabelText>,
    /// Nodes of copies must have this label, all with the same value
    #[arg(long, value_name = "KEY")]
    same: Vec<LabelKey>,
    /// Nodes of copies must have this label, each with another value
    #[arg(long, value_name = "KEY")]
    spread: Vec<LabelKey>,
    /// What zones mean for the copies
    #[arg(long, value_name = "HOW")]
    zones: Option<ZonesText>,
    /// Commands a second that hosts may ask at most; 0: no limit
    #[arg(long, value_name = "COUNT")]
    iops: Option<u64>,
    /// Bytes a second that hosts may ask at most; 0: no limit
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Size>,
    /// How many snapshots it may have
    #[arg(long, value_name = "COUNT")]
    max_snapshots: Option<u32>,
    /// A label; may be given more than once. `KEY-` takes one away
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    labels: Vec<LabelEdit>,
}

/// How large a volume is to be, either way.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub(crate) struct NewSize {
    /// The new size, such as 20GiB
    #[arg(value_name = "SIZE")]
    size: Option<Size>,
    /// The same as an option
    #[arg(long = "size", value_name = "SIZE")]
    option: Option<Size>,
}

impl NewSize {
    pub(crate) fn get(&self) -> Result<Size> {
        self.size.or(self.option).context("say how large it is to be, such as 20GiB")
    }
}

/// A new volume as typed.
#[derive(Args, Clone, Debug)]
pub(crate) struct NewVolume {
    /// Its size, such as 10GiB
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    /// How many copies, 1 to 8, each on a node of its own
    #[arg(short, long, value_name = "COUNT", default_value_t = 2, value_parser = copies())]
    replicas: u8,
    /// Take all space at once
    #[arg(long)]
    thick: bool,
    /// Encrypt it with a key that the operator supplied
    #[arg(long, value_name = "KEY")]
    key: Option<KeyName>,
    /// Its id; left out: a new one
    #[arg(long, value_name = "UUID")]
    id: Option<VolumeId>,
    #[command(flatten)]
    properties: Properties,
}

impl NewVolume {
    /// The id and the request; `size` is what it starts with has.
    pub(crate) fn spec(
        self,
        source: Option<Source>,
        size: Option<Size>,
    ) -> Result<(VolumeId, VolumeSpec)> {
        let size = self.size.or(size).context("say how large it is to be: --size 10GiB")?;
        let mut spec = VolumeSpec::new(size, self.replicas);
        (spec.thin, spec.source) = (!self.thick, source);
        spec.encryption = self.key.map(|key| Encryption { key });
        self.properties.apply(&mut spec);
        Ok((self.id.map_or_else(new_id, Ok)?, spec))
    }
}

impl Properties {
    /// What was typed replaces what is there; the rest stays.
    pub(crate) fn apply(self, spec: &mut VolumeSpec) {
        spec.name = self.name.or(spec.name.take());
        spec.shared = self.shared.unwrap_or(spec.shared);
        spec.affinity_group = self.affinity_group.or(spec.affinity_group.take());
        let VolumePolicy { self_heal, replace_after_seconds } = spec.policy;
        spec.policy = VolumePolicy {
            self_heal: self.self_heal.unwrap_or(self_heal),
            replace_after_seconds: self.replace_after.or(replace_after_seconds),
        };
        let QosLimits { iops, bytes_per_second } = spec.limits;
        spec.limits = QosLimits {
            iops: self.iops.map_or(iops, |iops| (iops > 0).then_some(iops)),
            bytes_per_second: self
                .bandwidth
                .map_or(bytes_per_second, |rate| (rate > Size::ZERO).then_some(rate)),
        };
        spec.max_snapshots = self.max_snapshots.or(spec.max_snapshots);
        spec.labels = edited(&spec.labels, self.labels);
        let Topology { allowed_nodes, preferred_nodes, nodes, pools, zones } = &mut spec.topology;
        replace(allowed_nodes, self.allowed);
        replace(preferred_nodes, self.preferred);
        for (rules, typed) in [
            (&mut nodes.include, self.node_label),
            (&mut nodes.exclude, self.avoid_node_label),
            (&mut pools.include, self.pool_label),
            (&mut pools.exclude, self.avoid_pool_label),
        ] {
            for LabelText(key, value) in typed {
                rules.entry(key).or_default().insert(value);
            }
        }
        nodes.spread.extend(self.spread);
        nodes.same_as.extend(self.same);
        match self.zones {
            Some(ZonesText::Ignore) => *zones = Zones::Ignore,
            Some(ZonesText::Prefer) => *zones = Zones::Prefer,
            Some(ZonesText::Require) => *zones = Zones::Require,
            None => {}
        }
    }
}

fn replace<T: Ord>(have: &mut BTreeSet<T>, typed: Vec<T>) {
    if !typed.is_empty() {
        *have = typed.into_iter().collect();
    }
}

/// What a new volume starts with, as typed.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
pub(crate) struct From {
    /// Start with the content of a snapshot
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) from_snapshot: Option<SnapshotReference>,
    /// Start with the content of a volume as it is now
    #[arg(long, value_name = "VOLUME")]
    pub(crate) clone_of: Option<VolumeReference>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        properties: Properties,
    }

    #[test]
    fn every_rule_of_the_topology_can_be_typed() {
        let words = "x --allow-node a --prefer-node b --node-label k=in --avoid-node-label k=out \
                     --pool-label p=in --avoid-pool-label p=out --spread rack --same room \
                     --zones require";
        let line = <Line as clap::Parser>::parse_from(words.split(' '));
        let mut spec = VolumeSpec::new(Size::gib(1), 2);
        line.properties.apply(&mut spec);
        let wanted = serde_json::json!({
            "allowedNodes": ["a"],
            "preferredNodes": ["b"],
            "nodes": {
                "include": { "k": ["in"] },
                "exclude": { "k": ["out"] },
                "spread": ["rack"],
                "sameAs": ["room"],
            },
            "pools": { "include": { "p": ["in"] }, "exclude": { "p": ["out"] } },
            "zones": "require",
        });
        assert_eq!(serde_json::to_value(&spec.topology).unwrap(), wanted);
    }

    #[test]
    fn labels_are_set_and_taken_away() {
        let edits = ["a=1", "b-", "c-d=2"].map(|text| text.parse::<LabelEdit>().unwrap());
        let have: Labels = [("b".parse().unwrap(), "9".parse().unwrap())].into();
        let now = edited(&have, edits.into());
        let shown: Vec<String> = now.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(shown, ["a=1", "c-d=2"]);
        assert!("a".parse::<LabelEdit>().unwrap_err().contains("KEY=VALUE"));
    }

    #[test]
    fn ids_are_random_and_good() {
        let (one, two): (VolumeId, VolumeId) = (new_id().unwrap(), new_id().unwrap());
        assert_ne!(one, two);
        assert_eq!(one.to_string().as_bytes()[14], b'4');
        assert!(b"89ab".contains(&one.to_string().as_bytes()[19]));
    }
}

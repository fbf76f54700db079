//! Parameters of a StorageClass and of a VolumeAttributesClass: read strictly.
//!
//! A parameter that is not known, or not understood, is an error: one that is ignored is found out
//! about when it is needed. What only a node needs travels in the volume context ([`Context`]).
//! Names that other drivers of this kind use are understood, so that their classes can be kept.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use model::{
    AffinityGroup, Encryption, KeyName, LabelKey, LabelRules, LabelValue, NodeName, QosLimits,
    Topology, ValidationError, VolumePolicy, Zones,
};
use tonic::Status;

use crate::status;

/// Parameters by name.
pub type Given = BTreeMap<String, String>;

/// What a class says of its volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// How many copies; absent: one.
    pub replicas: Option<u8>,
    /// Whether space is taken only when it is written; absent: yes.
    pub thin: Option<bool>,
    /// With which key it is encrypted.
    pub encryption: Option<Encryption>,
    /// Which volumes are kept apart.
    pub affinity_group: Option<AffinityGroup>,
    /// What is done without being asked.
    pub policy: VolumePolicy,
    /// Where copies may lie.
    pub topology: Topology,
    /// What hosts may ask at most.
    pub limits: QosLimits,
    /// How many snapshots a volume may have.
    pub max_snapshots: Option<u32>,
    /// What nodes need to know.
    pub context: Context,
}

/// What nodes need to know of a volume, as it travels in the volume context.
pub type Context = BTreeMap<String, String>;

/// What can be changed while a volume is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modification {
    /// How many copies.
    pub replicas: Option<u8>,
    /// Commands a second.
    pub iops: Option<u64>,
    /// Bytes a second.
    pub bandwidth: Option<model::Size>,
    /// Whether lost copies are replaced.
    pub self_heal: Option<bool>,
    /// How long a lost copy may stay away.
    pub replace_after: Option<u32>,
    /// How many snapshots it may have.
    pub max_snapshots: Option<u32>,
}

/// Prefix of what the provisioner itself adds: names of claims, and secrets that it has taken out.
const OF_PROVISIONER: &str = "csi.storage.k8s.io/";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";

/// Whether a value will do; if not, what would.
type Check = fn(&str) -> Result<(), &'static str>;

/// Parameters that nodes read, with what their values must be.
const FOR_NODES: &[(&str, Check)] = &[
    (CLONE_FS_ID, is_bool),
    ("formatOptions", |_| Ok(())),
    ("fsType", is_filesystem),
    ("nvmeCtrlLossTmo", is_seconds),
    ("transport", is_transport),
];

/// Parameters of other drivers that mean nothing here, with what to do instead: one that is
/// accepted and ignored is found out about when it is needed.
const NOT_HERE: &[(&str, &str)] = &[
    ("ioTimeout", "I/O waits for a path as long as nvmeCtrlLossTmo says; leave it out"),
    ("nvmeKeepAliveTmo", "the driver chooses keep-alive times itself; leave it out"),
    ("nvmeNrIoQueues", "the driver chooses queues itself; leave it out"),
    ("poolClusterSize", "the cluster size is that of the pool; leave it out"),
];

/// Set by the controller, never by a class: the volume began as a copy of another.
pub(crate) const IS_CLONE: &str = "isClone";
/// Whether the file system of a copy gets the id of the volume as its uuid.
pub(crate) const CLONE_FS_ID: &str = "cloneFsIdAsVolumeId";

/// Reads the parameters of a class.
pub fn class(given: &Given) -> Result<Class, Status> {
    let mut class = Class::default();
    let mut modification = Modification::default();
    let mut grouped = false;
    let (mut encrypted, mut key) = (None, None);
    for (name, text) in given {
        match name.as_str() {
            "protocol" if text == "nvmf" => {}
            "protocol" => return Err(refused(name, text, "give nvmf, or leave it out")),
            "thin" => class.thin = Some(value(name, text)?),
            "encrypted" => encrypted = Some(value::<bool>(name, text)?),
            "encryptionKey" => key = Some(named::<KeyName>(name, text)?),
            "stsAffinityGroup" => grouped = value(name, text)?,
            "affinityGroup" => class.affinity_group = Some(named(name, text)?),
            "allowedNodes" => class.topology.allowed_nodes = nodes(name, text)?,
            "zones" => class.topology.zones = zones(name, text)?,
            "nodeAffinityTopologyLabel" | "nodeHasTopologyKey" => {
                include(&mut class.topology.nodes, name, text)?;
            }
            "nodeExcludeTopologyLabel" => exclude(&mut class.topology.nodes, name, text)?,
            "nodeSpreadTopologyKey" => class.topology.nodes.spread = keys(name, text)?,
            "nodeSameTopologyKey" => class.topology.nodes.same_as = keys(name, text)?,
            "poolAffinityTopologyLabel" | "poolHasTopologyKey" => {
                include(&mut class.topology.pools, name, text)?;
            }
            "poolExcludeTopologyLabel" => exclude(&mut class.topology.pools, name, text)?,
            "poolAffinityTopologyKey" => class.topology.pools.same_as = keys(name, text)?,
            _ if name.starts_with(OF_PROVISIONER) => {}
            _ if read_mutable(&mut modification, name, text)? => {}
            _ => {
                if let Some((_, remedy)) = NOT_HERE.iter().find(|(known, _)| known == name) {
                    return Err(refused(name, text, remedy));
                }
                let Some((known, check)) = FOR_NODES.iter().find(|(known, _)| known == name) else {
                    return Err(unknown(name));
                };
                check(text).map_err(|remedy| refused(name, text, remedy))?;
                class.context.insert((*known).to_owned(), text.clone());
            }
        }
    }
    class.encryption = match (encrypted, key) {
        (Some(false), Some(_)) => {
            let remedy = "it contradicts encryptionKey; leave one of them out";
            return Err(refused("encrypted", "false", remedy));
        }
        (Some(true), None) => {
            let remedy = "name the key as well: encryptionKey";
            return Err(refused("encrypted", "true", remedy));
        }
        (_, key) => key.map(|key| Encryption { key }),
    };
    if grouped && class.affinity_group.is_none() {
        class.affinity_group = stateful_set(given)?;
    }
    Ok(modification.into_class(class))
}

/// Reads what a VolumeAttributesClass asks for.
pub fn modification(given: &Given) -> Result<Modification, Status> {
    let mut modification = Modification::default();
    for (name, text) in given {
        if !read_mutable(&mut modification, name, text)? {
            return Err(unknown(name));
        }
    }
    Ok(modification)
}

/// Reads one parameter that may change later; whether it is one.
fn read_mutable(into: &mut Modification, name: &str, text: &str) -> Result<bool, Status> {
    match name {
        "repl" | "replicas" => into.replicas = Some(value(name, text)?),
        "iops" => into.iops = Some(value(name, text)?),
        "bandwidth" => into.bandwidth = Some(named(name, text)?),
        "selfHeal" => into.self_heal = Some(value(name, text)?),
        "replaceAfterSeconds" => into.replace_after = Some(value(name, text)?),
        "maxSnapshots" => into.max_snapshots = Some(value(name, text)?),
        _ => return Ok(false),
    }
    Ok(true)
}

impl Modification {
    /// The class with what is modified.
    #[must_use]
    pub fn into_class(self, class: Class) -> Class {
        let policy = self.policy(class.policy);
        let limits = self.limits(class.limits);
        Class {
            replicas: self.replicas.or(class.replicas),
            max_snapshots: self.max_snapshots.or(class.max_snapshots),
            policy,
            limits,
            ..class
        }
    }

    /// A spec with what is modified, except for the number of copies.
    #[must_use]
    pub fn apply(&self, spec: &model::VolumeSpec) -> model::VolumeSpec {
        model::VolumeSpec {
            policy: self.policy(spec.policy),
            limits: self.limits(spec.limits),
            max_snapshots: self.max_snapshots.or(spec.max_snapshots),
            ..spec.clone()
        }
    }

    fn policy(&self, policy: VolumePolicy) -> VolumePolicy {
        VolumePolicy {
            self_heal: self.self_heal.unwrap_or(policy.self_heal),
            replace_after_seconds: self.replace_after.or(policy.replace_after_seconds),
        }
    }

    fn limits(&self, limits: QosLimits) -> QosLimits {
        QosLimits {
            iops: self.iops.or(limits.iops),
            bytes_per_second: self.bandwidth.or(limits.bytes_per_second),
        }
    }
}

fn refused(name: &str, text: &str, remedy: &str) -> Status {
    status::invalid(ValidationError::text(&format!("parameter {name}"), text, remedy))
}

fn unknown(name: &str) -> Status {
    Status::invalid_argument(format!(
        "parameter {name} is not known; see docs/csi.md for those that are"
    ))
}

fn value<T: FromStr>(name: &str, text: &str) -> Result<T, Status> {
    let wanted = match std::any::type_name::<T>() {
        "bool" => "give true or false",
        _ => "give a whole number in range",
    };
    text.parse().map_err(|_| refused(name, text, wanted))
}

fn named<T: FromStr<Err = ValidationError>>(name: &str, text: &str) -> Result<T, Status> {
    text.parse().map_err(|invalid: ValidationError| {
        status::invalid(invalid.within(&format!("parameter {name}")))
    })
}

/// One entry on each line, or between commas.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(['\n', ',']).map(str::trim).filter(|entry| !entry.is_empty())
}

fn nodes(name: &str, text: &str) -> Result<BTreeSet<NodeName>, Status> {
    entries(text).map(|entry| named(name, entry)).collect()
}

fn keys(name: &str, text: &str) -> Result<BTreeSet<LabelKey>, Status> {
    entries(text).map(|entry| named(name, entry)).collect()
}

/// `key: value`, `key=value`, or only a key: any value.
fn labels(name: &str, text: &str) -> Result<Vec<(LabelKey, Option<LabelValue>)>, Status> {
    let read = |entry: &str| {
        let split = entry.split_once(['=', ':']);
        let (key, value) = split.map_or((entry, None), |(key, value)| (key, Some(value.trim())));
        let value = value.filter(|value| !value.is_empty());
        Ok((named(name, key.trim())?, value.map(|value| named(name, value)).transpose()?))
    };
    entries(text).map(read).collect()
}

fn include(rules: &mut LabelRules, name: &str, text: &str) -> Result<(), Status> {
    for (key, value) in labels(name, text)? {
        rules.include.entry(key).or_default().extend(value);
    }
    Ok(())
}

fn exclude(rules: &mut LabelRules, name: &str, text: &str) -> Result<(), Status> {
    for (key, value) in labels(name, text)? {
        rules.exclude.entry(key).or_default().extend(value);
    }
    Ok(())
}

fn zones(name: &str, text: &str) -> Result<Zones, Status> {
    match text {
        "ignore" => Ok(Zones::Ignore),
        "prefer" => Ok(Zones::Prefer),
        "require" => Ok(Zones::Require),
        _ => Err(refused(name, text, "give ignore, prefer or require")),
    }
}

/// The stateful set of a claim, by the name of the claim: `data-db-0` is the first of `data-db`.
fn stateful_set(given: &Given) -> Result<Option<AffinityGroup>, Status> {
    let (Some(claim), Some(namespace)) = (given.get(CLAIM_NAME), given.get(CLAIM_NAMESPACE)) else {
        let message = "parameter stsAffinityGroup needs the names of claims: start the provisioner \
                       with --extra-create-metadata";
        return Err(Status::invalid_argument(message));
    };
    let ordinal = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let set = claim.rsplit_once('-').filter(|(_, nth)| ordinal(nth)).map(|(set, _)| set);
    set.map(|set| named("stsAffinityGroup", &format!("{namespace}/{set}"))).transpose()
}

fn is_bool(text: &str) -> Result<(), &'static str> {
    text.parse::<bool>().map(|_| ()).map_err(|_| "give true or false")
}

fn is_seconds(text: &str) -> Result<(), &'static str> {
    let seconds = text.parse::<u32>().ok().filter(|seconds| (1..=86_400).contains(seconds));
    seconds.map(|_| ()).ok_or("give seconds, 1 to 86400")
}

fn is_filesystem(text: &str) -> Result<(), &'static str> {
    let known = ["ext4", "xfs", "btrfs"].contains(&text);
    known.then_some(()).ok_or("give ext4, xfs or btrfs")
}

fn is_transport(text: &str) -> Result<(), &'static str> {
    let known = ["auto", "nvme", "fuse"].contains(&text);
    known.then_some(()).ok_or("give auto, nvme or fuse")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> Given {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_class_is_read_whole() {
        let class = class(&given(&[
            ("protocol", "nvmf"),
            ("repl", "3"),
            ("thin", "false"),
            ("maxSnapshots", "7"),
            ("iops", "1000"),
            ("bandwidth", "100MiB"),
            ("replaceAfterSeconds", "60"),
            ("encrypted", "true"),
            ("encryptionKey", "tenant-a"),
            ("stsAffinityGroup", "true"),
            ("csi.storage.k8s.io/pvc/name", "data-db-2"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("allowedNodes", "n1, n2\nn3"),
            ("nodeAffinityTopologyLabel", "disk: ssd\nrack=a"),
            ("nodeHasTopologyKey", "power"),
            ("nodeSpreadTopologyKey", "rack"),
            ("poolExcludeTopologyLabel", "old=yes"),
            ("zones", "require"),
            ("fsType", "xfs"),
            ("nvmeCtrlLossTmo", "30"),
        ]))
        .unwrap();
        assert_eq!(
            (class.replicas, class.thin, class.max_snapshots),
            (Some(3), Some(false), Some(7))
        );
        assert_eq!(class.limits.iops, Some(1000));
        assert_eq!(class.limits.bytes_per_second, Some(model::Size::mib(100)));
        assert_eq!(class.policy.replace_after_seconds, Some(60));
        assert_eq!(class.encryption.unwrap().key.as_str(), "tenant-a");
        assert_eq!(class.affinity_group.unwrap().as_str(), "shop/data-db");
        assert_eq!(class.topology.allowed_nodes.len(), 3);
        assert_eq!(class.topology.nodes.include.len(), 3);
        assert_eq!(class.topology.nodes.spread, ["rack".parse().unwrap()].into());
        assert_eq!(class.topology.pools.exclude.len(), 1);
        assert_eq!(class.topology.zones, Zones::Require);
        let context = given(&[("fsType", "xfs"), ("nvmeCtrlLossTmo", "30")]);
        assert_eq!(class.context, context);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_remedy() {
        for (name, text, says) in [
            ("repl", "many", "whole number"),
            ("thin", "yes", "true or false"),
            ("protocol", "iscsi", "nvmf"),
            ("zones", "spread", "ignore, prefer or require"),
            ("fsType", "ntfs", "ext4, xfs or btrfs"),
            ("nvmeCtrlLossTmo", "0", "1 to 86400"),
            ("ioTimeout", "30", "leave it out"),
            ("isClone", "true", "not known"),
            ("encrypted", "true", "encryptionKey"),
            ("stsAffinityGroup", "true", "--extra-create-metadata"),
            ("allowedNodes", "Not A Node", "a-z"),
            ("replicaCount", "3", "not known"),
        ] {
            let refused = class(&given(&[(name, text)])).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument);
            let message = refused.message();
            assert!(message.contains(name) && message.contains(says), "{name}: {message}");
        }
        let both = [("encrypted", "false"), ("encryptionKey", "a")];
        assert!(class(&given(&both)).unwrap_err().message().contains("contradicts"));
    }

    #[test]
    fn only_some_parameters_change_later() {
        let read = modification(&given(&[("repl", "2"), ("iops", "50")])).unwrap();
        assert_eq!((read.replicas, read.iops), (Some(2), Some(50)));
        let spec = model::VolumeSpec::new(model::Size::gib(1), 3);
        assert_eq!(read.apply(&spec).limits.iops, Some(50));
        assert_eq!(read.apply(&spec).replicas, 3, "the number of copies has its own request");
        for fixed in ["thin", "fsType", "XXX_FakeKey"] {
            assert!(modification(&given(&[(fixed, "true")])).is_err(), "{fixed}");
        }
    }
}

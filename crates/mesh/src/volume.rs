//! `MeshVolume`: a volume, and the channel between the nodes that hold and use it.

use std::collections::BTreeSet;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::state::{PartitionState, Phase};

/// Keeps a volume until its partitions are removed.
pub const FINALIZER: &str = "mesh.holdfast.io/partitions";

/// A replicated volume of the kernel data path. It is the driver's: do not edit or delete it.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "mesh.holdfast.io",
    version = "v1",
    kind = "MeshVolume",
    plural = "meshvolumes",
    singular = "meshvolume",
    shortname = "msvol",
    category = "holdfast",
    status = "MeshVolumeStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "MDState", "type": "string", "jsonPath": ".status.mdState"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Degraded", "type": "integer", "jsonPath": ".status.degraded"}"#,
    printcolumn = r#"{"name": "Sync", "type": "string", "jsonPath": ".status.syncPercentage"}"#,
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".status.nodeName"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Total", "type": "integer",
        "jsonPath": ".status.totalDevices", "priority": 1}"#,
    printcolumn = r#"{"name": "Active", "type": "integer",
        "jsonPath": ".status.activeDevices", "priority": 1}"#,
    printcolumn = r#"{"name": "Failed", "type": "integer",
        "jsonPath": ".status.failedDevices", "priority": 1}"#,
    printcolumn = r#"{"name": "Missing", "type": "integer",
        "jsonPath": ".status.missingDevices", "priority": 1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.capacityBytes >= oldSelf.capacityBytes")
        .message("a volume cannot shrink"),
    validation = Rule::new("self.capacityBytes % 1048576 == 0")
        .message("the capacity is a multiple of 1 MiB"),
    validation = Rule::new(
        "self.replicaCount == oldSelf.replicaCount && self.stripeWidth == oldSelf.stripeWidth \
         && self.sectorSize == oldSelf.sectorSize && self.volumeId == oldSelf.volumeId"
    ).message("the layout of a volume is fixed when it is created"),
    validation = Rule::new(
        "self.stripeWidth == 1 || self.capacityBytes == oldSelf.capacityBytes"
    ).message("a striped volume cannot grow")
)]
pub struct MeshVolumeSpec {
    /// The id by which CSI knows it.
    #[schemars(length(min = 36, max = 36))]
    pub volume_id: String,
    /// Its size, a multiple of 1 MiB.
    #[schemars(range(min = 536_870_912))]
    pub capacity_bytes: u64,
    /// How many copies, each on another node.
    #[schemars(range(min = 1, max = 4))]
    pub replica_count: u16,
    /// Over how many drives each copy is striped; more than one: RAID10.
    #[schemars(range(min = 1, max = 8))]
    pub stripe_width: u16,
    /// Seconds after which a member that is missing is replaced.
    #[schemars(range(min = 60))]
    pub member_missing_timeout: u32,
    /// The logical block size that each drive must have.
    #[schemars(extend("enum" = [512, 4096]))]
    pub sector_size: u32,
    /// The partitions that the consumer requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub partitions: Vec<PartitionRequest>,
}

/// A partition that a consumer requests of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionRequest {
    /// The UUID it shall have in the partition table.
    pub partition_uuid: String,
    /// The node that shall make it.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// The drive it shall be on; absent: the node chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Its place in the array.
    pub slot: u16,
    /// The partition whose place it takes once it is in sync.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// It is not wanted any more: its node removes it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
}

/// What was seen of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshVolumeStatus {
    /// Where it is in its life.
    #[serde(default)]
    pub phase: Phase,
    /// The consumer: the one node that may assemble it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Number of the consumer's claim; grows with each claim.
    #[serde(default)]
    pub epoch: u64,
    /// The boot of the consumer in which it claimed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub boot_id: String,
    /// When the claim was made, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<u64>,
    /// The partitions that have every acknowledged write.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub in_sync: Vec<String>,
    /// As MD says: clean, active, degraded, recovering, missing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub md_state: String,
    /// Members in sync of those wanted, as `2/2`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ready: String,
    /// Members that are missing or not in sync.
    #[serde(default)]
    pub degraded: u16,
    /// How far MD has come; empty when it has nothing to do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sync_percentage: String,
    /// Members the array has places for.
    #[serde(default)]
    pub total_devices: u16,
    /// Members in sync.
    #[serde(default)]
    pub active_devices: u16,
    /// Members that failed.
    #[serde(default)]
    pub failed_devices: u16,
    /// Members that cannot be reached.
    #[serde(default)]
    pub missing_devices: u16,
    /// What the nodes made of the requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<PartitionStatus>,
    /// What the volume waits for, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PartitionStatus {
    /// The node that has it.
    #[serde(rename = "nodeID")]
    pub node_id: String,
    /// Its UUID.
    #[serde(rename = "partitionUUID")]
    pub partition_uuid: String,
    /// Its namespace in each subsystem.
    #[serde(rename = "nvmeofNamespaceID")]
    pub nvmeof_namespace_id: u32,
    /// What it is to the volume.
    pub state: PartitionState,
    /// Its size.
    pub size_bytes: u64,
    /// The epoch whose consumer alone can reach it.
    #[serde(default)]
    pub granted_epoch: u64,
    /// It was in sync once: what it lacks is in the bitmaps of the others.
    #[serde(default)]
    pub synced: bool,
    /// Seconds since 1970, when the state changed.
    #[serde(default)]
    pub updated_at: u64,
    /// Why its node cannot make, grow or remove it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What MD keeps for itself at the beginning of each member: superblock and bitmap.
pub const MD_OFFSET: u64 = 8 << 20;

impl MeshVolumeSpec {
    /// How large each partition is: its share of the volume and what MD keeps.
    pub fn partition_bytes(&self) -> u64 {
        let share = self.capacity_bytes.div_ceil(u64::from(self.stripe_width.max(1)));
        share.next_multiple_of(1 << 20).saturating_add(MD_OFFSET)
    }

    /// Copies of each block that MD has places for: a single copy has a vacant one beside it.
    pub fn mirror_width(&self) -> u16 {
        self.replica_count.max(2)
    }

    /// Places in the array.
    pub fn slots(&self) -> u16 {
        self.mirror_width().saturating_mul(self.stripe_width)
    }

    /// Members that are wanted.
    pub fn members(&self) -> u16 {
        self.replica_count.saturating_mul(self.stripe_width)
    }

    /// Which mirror a place belongs to.
    pub fn mirror(&self, slot: u16) -> u16 {
        slot / self.mirror_width()
    }

    /// The places that are wanted to be filled, in order.
    pub fn wanted_slots(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.slots()).filter(|slot| slot % self.mirror_width() < self.replica_count)
    }

    /// A request by its UUID.
    pub fn request(&self, uuid: &str) -> Option<&PartitionRequest> {
        self.partitions.iter().find(|request| request.partition_uuid == uuid)
    }

    /// Whether these partitions hold every block.
    pub fn is_covered<'a>(&self, by: impl Iterator<Item = &'a str>) -> bool {
        let requests = by.filter_map(|uuid| self.request(uuid));
        let mirrors: BTreeSet<_> = requests.map(|request| self.mirror(request.slot)).collect();
        (0..self.stripe_width).all(|mirror| mirrors.contains(&mirror))
    }
}

impl MeshVolumeStatus {
    /// An entry by its UUID.
    pub fn partition(&self, uuid: &str) -> Option<&PartitionStatus> {
        self.partitions.iter().find(|entry| entry.partition_uuid == uuid)
    }

    /// The same, to be changed.
    pub fn partition_mut(&mut self, uuid: &str) -> Option<&mut PartitionStatus> {
        self.partitions.iter_mut().find(|entry| entry.partition_uuid == uuid)
    }

    /// Whether a partition has every acknowledged write.
    pub fn is_in_sync(&self, uuid: &str) -> bool {
        self.in_sync.iter().any(|one| one == uuid)
    }
}

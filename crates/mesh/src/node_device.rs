//! `MeshNodeDevice`: a drive of a node, as the other nodes see it.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A drive that the kernel data path may use. The node that has it keeps it up to date.
#[derive(
    CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize,
)]
#[kube(
    group = "mesh.holdfast.io",
    version = "v1",
    kind = "MeshNodeDevice",
    plural = "meshnodedevices",
    singular = "meshnodedevice",
    shortname = "msnd",
    category = "holdfast",
    status = "MeshNodeDeviceStatus",
    derive = "PartialEq",
    printcolumn = r#"{"name": "Model", "type": "string", "jsonPath": ".status.model"}"#,
    printcolumn = r#"{"name": "Serial", "type": "string", "jsonPath": ".status.serial"}"#,
    printcolumn = r#"{"name": "LocalPartitions", "type": "integer",
        "jsonPath": ".status.localPartitions"}"#,
    printcolumn = r#"{"name": "RemotePartitions", "type": "integer",
        "jsonPath": ".status.remotePartitions"}"#,
    printcolumn = r#"{"name": "UnknownPartitions", "type": "integer",
        "jsonPath": ".status.unknownPartitions"}"#,
    printcolumn = r#"{"name": "MultiQueue", "type": "integer", "jsonPath": ".status.multiQueue"}"#,
    printcolumn = r#"{"name": "BiggestUsableFreeSpace", "type": "string",
        "jsonPath": ".status.biggestUsableFreeSpace"}"#,
    printcolumn = r#"{"name": "Size", "type": "string", "jsonPath": ".status.size"}"#,
    printcolumn = r#"{"name": "SectorSize", "type": "integer", "jsonPath": ".status.sectorSize"}"#,
    printcolumn = r#"{"name": "UpdatedAt", "type": "date", "jsonPath": ".status.updatedAt"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a drive stays where it is"))]
pub struct MeshNodeDeviceSpec {
    /// The node that has it.
    #[serde(rename = "nodeID")]
    #[schemars(length(min = 1, max = 253))]
    pub node_id: String,
    /// The kernel's name, as `nvme0n1`.
    #[schemars(length(min = 1, max = 64))]
    pub device: String,
}

/// What a node sees of its drive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MeshNodeDeviceStatus {
    /// What its maker calls it.
    #[serde(default)]
    pub model: String,
    /// Its serial number.
    #[serde(default)]
    pub serial: String,
    /// Partitions of volumes that this node uses.
    #[serde(default)]
    pub local_partitions: u32,
    /// Partitions of volumes that other nodes use, or nobody.
    #[serde(default)]
    pub remote_partitions: u32,
    /// Partitions with our label and without a volume: see `holdfast mesh cleanup`.
    #[serde(default)]
    pub unknown_partitions: u32,
    /// Hardware queues.
    #[serde(default)]
    pub multi_queue: u32,
    /// The largest free region, for people.
    #[serde(default)]
    pub biggest_usable_free_space: String,
    /// The same, in bytes.
    #[serde(default)]
    pub biggest_usable_free_bytes: u64,
    /// All free regions, in bytes.
    #[serde(default)]
    pub free_bytes: u64,
    /// Its size, for people.
    #[serde(default)]
    pub size: String,
    /// Its logical block size.
    #[serde(default)]
    pub sector_size: u32,
    /// Why nothing can be placed on it; absent: it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
    /// Where this node listens for NVMe/TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_address: Option<String>,
    /// Where it listens for NVMe/RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_address: Option<String>,
    /// Heartbeat: when the node looked last, as RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// The same, in seconds since 1970.
    #[serde(default)]
    pub heartbeat: u64,
}

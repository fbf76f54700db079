//! What a node sees: its kernel, and the resources of the cluster.

use crate::placement::Drive;
use crate::volume::{MeshVolumeSpec, MeshVolumeStatus, PartitionStatus};

/// Everything a decision depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// This node.
    pub node: String,
    /// Which boot of it this is.
    pub boot_id: String,
    /// Seconds since 1970: for liveness only.
    pub now: u64,
    /// All volumes.
    pub volumes: Vec<Volume>,
    /// All drives of all nodes.
    pub drives: Vec<Drive>,
    /// This node's kernel.
    pub kernel: KernelView,
}

/// A volume as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// What a write must carry.
    pub resource_version: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether our finalizer keeps it.
    pub finalizer: bool,
    /// What is wanted.
    pub spec: MeshVolumeSpec,
    /// What was seen.
    pub status: MeshVolumeStatus,
}

/// What a node's kernel has, as far as it is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelView {
    /// Partitions with our label.
    pub partitions: Vec<LocalPartition>,
    /// What is shown to other nodes.
    pub exports: Vec<Export>,
    /// What other nodes show.
    pub imports: Vec<Import>,
    /// Devices between arrays and partitions.
    pub legs: Vec<Leg>,
    /// Arrays that run.
    pub arrays: Vec<Array>,
}

/// A partition of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalPartition {
    /// Its UUID.
    pub uuid: String,
    /// The drive it is on.
    pub drive: String,
    /// Its size.
    pub bytes: u64,
    /// What it can grow to where it is.
    pub room: u64,
    /// It was filled with zeros once.
    pub prepared: bool,
}

/// A partition that is shown to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Of which volume.
    pub volume: String,
    /// Which partition.
    pub partition: String,
    /// To which node.
    pub target: String,
    /// For which claim of that node.
    pub epoch: u64,
}

/// A partition that another node shows, and that is a device here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// Of which volume.
    pub volume: String,
    /// Which partition.
    pub partition: String,
    /// Of which node.
    pub source: String,
    /// For which claim of this node.
    pub epoch: u64,
}

/// A device between an array and a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Which partition.
    pub partition: String,
    /// The claim it was made for.
    pub epoch: u64,
    /// What becomes of I/O.
    pub path: LegPath,
}

/// What becomes of I/O to a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegPath {
    /// It reaches the partition.
    Live,
    /// It waits.
    Held,
    /// It fails.
    Failed,
}

/// An array that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Array {
    /// Of which volume.
    pub volume: String,
    /// The claim its legs were made for; absent: they differ, or it has none.
    pub epoch: Option<u64>,
    /// Its members.
    pub members: Vec<Member>,
    /// How many places it has for them.
    pub slots: u16,
    /// How far a synchronisation is.
    pub sync: Option<String>,
    /// What it offers.
    pub bytes: u64,
    /// What MD says.
    pub state: String,
}

/// A member of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Which partition.
    pub partition: String,
    /// What it is for MD.
    pub state: MemberState,
}

/// What a member is for MD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has all data.
    InSync,
    /// Data are copied to it.
    Recovering,
    /// It waits.
    Spare,
    /// It failed.
    Faulty,
}

impl KernelView {
    /// The array of a volume.
    pub fn array(&self, volume: &str) -> Option<&Array> {
        self.arrays.iter().find(|array| array.volume == volume)
    }

    /// A partition of this node.
    pub fn partition(&self, uuid: &str) -> Option<&LocalPartition> {
        self.partitions.iter().find(|partition| partition.uuid == uuid)
    }

    /// The leg of a partition for a claim.
    pub fn leg(&self, partition: &str, epoch: u64) -> Option<&Leg> {
        self.legs.iter().find(|leg| leg.partition == partition && leg.epoch == epoch)
    }

    /// Whether another node shows this partition here, for a claim.
    pub fn imports(&self, partition: &str, epoch: u64) -> bool {
        self.imports.iter().any(|it| it.partition == partition && it.epoch == epoch)
    }
}

impl Array {
    /// A member.
    pub fn member(&self, partition: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.partition == partition)
    }
}

impl Volume {
    /// Whether a partition's node lets nobody but the consumer of this epoch reach it.
    pub fn is_granted(&self, partition: &str) -> bool {
        self.status.partition(partition).is_some_and(|entry: &PartitionStatus| {
            entry.granted_epoch == self.status.epoch && self.status.epoch > 0
        })
    }
}

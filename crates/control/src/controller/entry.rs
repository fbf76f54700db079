//! What lies under one key of the store.

use model::envelope::{self, DecodeError, Versioned};
use model::{
    Event, Failover, Host, Maintenance, Node, Pool, Quarantine, Rebuild, Replica, Resource,
    Snapshot, SnapshotGroup, Spec, StoreSequence, Subject, Target, TargetRecord, Volume, Webhook,
    keys,
};

use super::{ComparisonRecord, MoveRecord, ScrubRecord};

macro_rules! entries {
    ($($(#[doc = $doc:literal])+ $name:ident($of:ty), $id:expr;)+) => {
        /// One record of the store.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Entry {
            $($(#[doc = $doc])+ $name(Box<$of>),)+
        }

        impl Entry {
            /// Where it lies.
            pub fn key(&self) -> String {
                match self { $(Entry::$name(entry) => keys::of::<$of>($id(entry)),)+ }
            }

            /// The bytes to store.
            pub fn encode(&self) -> Result<String, serde_json::Error> {
                match self { $(Entry::$name(entry) => envelope::encode(&stripped::<$of>(entry)),)+ }
            }

            /// What lies under `key`; nothing if it is not a record of ours.
            pub fn decode(key: &str, bytes: &[u8]) -> Option<Result<Entry, DecodeError>> {
                let (kind, _) = keys::parse(key)?;
                $(if kind == <$of as Versioned>::KIND {
                    let entry = envelope::decode::<$of>(bytes);
                    return Some(entry.map(|entry| Entry::$name(Box::new(entry))));
                })+
                None
            }
        }

        $(impl From<$of> for Entry {
            fn from(entry: $of) -> Entry {
                Entry::$name(Box::new(entry))
            }
        })+
    };
}

entries! {
    /// A node.
    Node(Node), |node: &Node| node.id().clone();
    /// A host.
    Host(Host), |host: &Host| host.id().clone();
    /// A pool.
    Pool(Pool), |pool: &Pool| pool.id().clone();
    /// A volume.
    Volume(Volume), |volume: &Volume| *volume.id();
    /// A replica.
    Replica(Replica), |replica: &Replica| *replica.id();
    /// A target.
    Target(Target), |target: &Target| *target.id();
    /// A snapshot, with its status.
    Snapshot(Snapshot), |snapshot: &Snapshot| *snapshot.id();
    /// A group of snapshots, with its status.
    Group(SnapshotGroup), |group: &SnapshotGroup| *group.id();
    /// An address to call, with how far that went.
    Webhook(Webhook), |webhook: &Webhook| webhook.id().clone();
    /// Who owns a volume.
    TargetRecord(TargetRecord), |record: &TargetRecord| record.volume();
    /// A target on the move.
    Failover(Failover), |failover: &Failover| failover.id();
    /// A copy on the move.
    MoveRecord(MoveRecord), |moving: &MoveRecord| moving.volume;
    /// A rebuild that has ended.
    Rebuild(Rebuild), |rebuild: &Rebuild| rebuild.id;
    /// When a copy was last checked.
    ScrubRecord(ScrubRecord), |scrubbed: &ScrubRecord| scrubbed.replica;
    /// When the copies of a volume were last compared.
    ComparisonRecord(ComparisonRecord), |compared: &ComparisonRecord| compared.volume;
    /// How far the store has come.
    Sequence(StoreSequence), |_: &StoreSequence| StoreSequence::ID;
    /// Automatic failover and healing are paused.
    Maintenance(Maintenance), |_: &Maintenance| Maintenance::ID;
    /// A copy that is set aside.
    Quarantine(Quarantine), |quarantine: &Quarantine| quarantine.replica;
    /// Something that happened.
    Event(Event), |event: &Event| format!("{:020}", event.number);
}

impl Entry {
    /// The lock on the name that people gave it: whoever else wants that name waits until this is
    /// stored, and sees then that it is taken.
    pub(crate) fn name_lock(&self) -> Option<String> {
        fn lock<S: Spec>(resource: &Resource<S>) -> Option<String> {
            resource.spec().name().map(|name| format!("{} named {name}", S::KIND))
        }
        match self {
            Entry::Volume(volume) => lock(volume),
            Entry::Snapshot(snapshot) => lock(snapshot),
            Entry::Group(group) => lock(group),
            _ => None,
        }
    }

    /// What it is about, for those that people can name.
    pub(crate) fn subject(&self) -> Option<Subject> {
        match self {
            Entry::Node(node) => Some(Subject::Node(node.id().clone())),
            Entry::Host(host) => Some(Subject::Host(host.id().clone())),
            Entry::Pool(pool) => Some(Subject::Pool(pool.id().clone())),
            Entry::Volume(volume) => Some(Subject::Volume(*volume.id())),
            Entry::Replica(replica) => Some(Subject::Replica(*replica.id())),
            Entry::Target(target) => Some(Subject::Target(*target.id())),
            Entry::Snapshot(snapshot) => Some(Subject::Snapshot(*snapshot.id())),
            Entry::Group(group) => Some(Subject::SnapshotGroup(*group.id())),
            Entry::Webhook(webhook) => Some(Subject::Webhook(webhook.id().clone())),
            Entry::TargetRecord(record) => Some(Subject::Volume(record.volume())),
            Entry::Failover(failover) => Some(Subject::Volume(failover.volume())),
            Entry::MoveRecord(moving) => Some(Subject::Volume(moving.volume)),
            Entry::Quarantine(quarantine) => Some(Subject::Replica(quarantine.replica)),
            Entry::Rebuild(_)
            | Entry::ScrubRecord(_)
            | Entry::Maintenance(_)
            | Entry::ComparisonRecord(_)
            | Entry::Sequence(_)
            | Entry::Event(_) => None,
        }
    }
}

/// What of a record is stored: what was seen is not, where it can be seen again.
trait Stripped: Clone {
    fn strip(&mut self) {}
}

impl<S: Spec> Stripped for Resource<S> {
    fn strip(&mut self) {
        let cannot_be_seen_again = ["snapshot", "snapshotGroup", "watch"].contains(&S::KIND);
        if !cannot_be_seen_again {
            self.status = None;
        }
    }
}
impl Stripped for TargetRecord {}
impl Stripped for Failover {}
impl Stripped for MoveRecord {}
impl Stripped for Rebuild {}
impl Stripped for ScrubRecord {}
impl Stripped for ComparisonRecord {}
impl Stripped for StoreSequence {}
impl Stripped for Maintenance {}
impl Stripped for Quarantine {}
impl Stripped for Event {}

fn stripped<R: Stripped>(record: &R) -> R {
    let mut record = record.clone();
    record.strip();
    record
}

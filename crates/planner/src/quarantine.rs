//! Whether a copy that its volume does not count may be destroyed.
//!
//! The line, for a copy with a label, of a volume that lives:
//!
//! | the copy | what happens |
//! |---|---|
//! | is counted by the record of its volume | it is not at issue here |
//! | is newer than the record, or of another history | set aside; only an operator destroys it |
//! | is older, and its volume is whole | destroyed |
//! | is older, and its volume is not | set aside for a time, and until its volume is |
//!
//! *Newer* is a label with a higher epoch, a higher generation of the set, or another set of the
//! same generation, and any label where there is no record. *Of another history* is a copy of an
//! earlier volume that had the same id, or one that is older than a recovery that did without some
//! copies ([`ReplicaSet::forked_at`](model::ReplicaSet)): it may be of the branch that was
//! abandoned. A volume is *whole* when as many copies as it wants are in sync and answer. The time
//! is [`Settings::quarantine`](crate::Settings).
//!
//! A newer label of the same history says that the store went back (`conflict.rs`): nothing at all
//! is done about such a volume and its copies until that is settled.
//!
//! Nothing is decided before it was so for [`Settings::second_look`](crate::Settings): records and
//! labels are seen at different moments.

use model::{
    Liveness, PoolState, QuarantineCause, Replica, ReplicaId, ReplicaLabel, ReplicaState,
    TargetRecord, VolumeChange, VolumeId,
};

use crate::Facts;
use crate::view::is_going;

/// What a copy is to its volume, by its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The record of the volume counts it.
    Counted,
    /// What it holds, others hold, and newer.
    Superseded,
    /// Nobody may destroy it yet.
    Unproven(QuarantineCause),
}

/// What a copy is to its volume, by its label.
pub fn standing(facts: &Facts, replica: ReplicaId, label: &ReplicaLabel) -> Standing {
    let Some(record) = facts.records.get(&label.volume) else {
        return Standing::Unproven(QuarantineCause::Newer);
    };
    if record.set().replicas().contains(&replica) {
        return Standing::Counted;
    }
    if is_newer(label, record) || is_apart(label, record) {
        return Standing::Unproven(QuarantineCause::Newer);
    }
    if is_whole(facts, label.volume, record) {
        Standing::Superseded
    } else {
        Standing::Unproven(QuarantineCause::Degraded)
    }
}

/// Whether a label knows of something that the record does not. As long as records are written
/// before labels, by one owner after the other, none does.
fn is_newer(label: &ReplicaLabel, record: &TargetRecord) -> bool {
    let (has, recorded) = (&label.set, record.set());
    label.epoch > record.epoch()
        || has.generation() > recorded.generation()
        || (has.generation() == recorded.generation() && has != recorded)
}

/// Whether a copy is of another history than the record is: what its numbers say in comparison with
/// those of the record means nothing.
pub(crate) fn is_apart(label: &ReplicaLabel, record: &TargetRecord) -> bool {
    let set = record.set();
    let abandoned = set.forked_at().is_some_and(|fork| label.epoch < fork);
    let counted = set.replicas().contains(&label.replica);
    !counted && (abandoned || label.set.is_foreign_to(set))
}

/// Whether as many copies as the volume wants hold everything and answer.
fn is_whole(facts: &Facts, volume: VolumeId, record: &TargetRecord) -> bool {
    let good = record.set().in_sync().iter().filter_map(|id| facts.replicas.get(id));
    let good = good.filter(|replica| !is_going(*replica) && answers(facts, replica)).count();
    let wanted = facts.volumes.get(&volume).map(|volume| {
        match volume.lifecycle().operation().map(|operation| &operation.change) {
            Some(VolumeChange::SetReplicas { replicas }) => *replicas,
            _ => volume.spec().replicas,
        }
    });
    wanted.is_some_and(|wanted| good >= usize::from(wanted.max(1)))
}

fn answers(facts: &Facts, replica: &Replica) -> bool {
    let pool = facts.pools.get(&replica.spec().pool);
    let node = pool.and_then(|pool| facts.nodes.get(&pool.spec().node));
    let pool_works = pool.is_some_and(|pool| {
        let state = pool.status.as_ref().map(|status| &status.state);
        matches!(state, Some(PoolState::Online | PoolState::Suspect { .. }))
            && !pool.spec().exported
    });
    let liveness = node.and_then(|node| node.status.as_ref()).map(|status| status.liveness);
    pool_works
        && liveness == Some(Liveness::Online)
        && replica.status.as_ref().is_some_and(|seen| seen.state == ReplicaState::Online)
}

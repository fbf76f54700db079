//! Clearing away what nobody wants.
//!
//! Only what is provably ours and provably unwanted goes, and only after it has been seen to be so
//! for a while ([`Settings::second_look`](crate::Settings)). The proof is always something in the
//! store that is newer than the thing: its own spec, the spec of its volume on its way out, or a
//! record of the volume that no longer counts it. That a thing is not known at all proves nothing:
//! the store may be older than the disks. Such things are reported and stay. Copies of a volume
//! that lives go only if nothing can be lost with them; the others are set aside (`quarantine.rs`).

use alloc::format;

use model::{
    Lifecycle, NodeName, PoolName, Quarantine, QuarantineCause, Replica, ReplicaId, ReplicaLabel,
    Resource, Snapshot, Spec, Subject, Target, Volume, VolumeId,
};

use crate::facts::{Orphan, OrphanTarget};
use crate::plan::Round;
use crate::quarantine::{Standing, standing};
use crate::view::{NodeView, exists, is_going};
use crate::{Step, View};

/// Goes on deleting what is to go, undoes what was left half made, and removes what is unwanted.
pub(crate) fn run(round: &mut Round<'_, '_>) {
    let facts = round.view.facts;
    for target in facts.targets.values() {
        sweep_target(round, target);
    }
    for replica in facts.replicas.values() {
        sweep_replica(round, replica);
    }
    for snapshot in facts.snapshots.values() {
        sweep_snapshot(round, snapshot);
    }
    for volume in facts.volumes.values() {
        sweep_volume(round, volume);
    }
    for (name, pool) in &facts.pools {
        if matches!(pool.lifecycle(), Lifecycle::Deleting {})
            && is_online(round.view, &pool.spec().node)
        {
            round.push(Step::GoOnDeleting(Subject::Pool(name.clone())));
        }
    }
    for (node, pool) in &facts.stray_pools {
        let subject = Subject::Pool(pool.clone());
        if is_online(round.view, node) && certain(round, &subject) {
            let reason = format!(
                "node {node} holds it, but nobody knows it; `holdfast recover` shows what is in it \
                 and reads it back"
            );
            round.block(subject, reason);
        }
    }
    for (replica, orphan) in &facts.orphan_replicas {
        sweep_orphan_replica(round, *replica, orphan);
    }
    for quarantine in facts.quarantined.values() {
        sweep_quarantined(round, quarantine);
    }
    for (target, orphan) in &facts.orphan_targets {
        let subject = Subject::Target(*target);
        if !is_outlived(round.view, orphan) {
            let reason = "its engine serves it, but nobody knows it";
            round.block(subject, reason);
        } else if is_online(round.view, &orphan.node) && certain(round, &subject) {
            let (node, target) = (orphan.node.clone(), *target);
            round.push(Step::StopTarget { node, target });
        }
    }
    sweep_orphan_snapshots(round);
}

fn is_online(view: &View<'_>, node: &NodeName) -> bool {
    view.node(node).is_some_and(NodeView::is_online)
}

/// Whether its pool's node can be asked, or will never be: nobody knows the pool any more.
fn can_be_deleted(view: &View<'_>, pool: &PoolName) -> bool {
    view.pool(pool).is_none_or(|pool| is_online(view, &pool.pool.spec().node) && pool.works())
}

fn certain(round: &mut Round<'_, '_>, subject: &Subject) -> bool {
    round.suspect(subject.clone(), round.view.settings.second_look)
}

/// Whether somebody began to make it, long ago, and is not at it any more.
fn is_half_made<S: Spec>(
    round: &mut Round<'_, '_>,
    object: &Resource<S>,
    subject: &Subject,
) -> bool {
    let wait = round.view.settings.half_made_after;
    matches!(object.lifecycle(), Lifecycle::Creating {})
        && round.is_open(subject)
        && round.view.now.since(object.created_at()) >= wait
        && certain(round, subject)
}

/// What is known of the volume that something belongs to.
enum Owner {
    Lives,
    /// It is on its way out.
    Goes,
    /// The store does not know it.
    Missing,
}

fn owner(view: &View<'_>, volume: VolumeId) -> Owner {
    match view.facts.volumes.get(&volume) {
        None => Owner::Missing,
        Some(volume) if is_going(volume) => Owner::Goes,
        Some(_) => Owner::Lives,
    }
}

fn sweep_target(round: &mut Round<'_, '_>, target: &Target) {
    let view = round.view;
    let spec = target.spec();
    let subject = Subject::Target(*target.id());
    if is_going(target) {
        if view.node(&spec.node).is_none_or(NodeView::is_online) {
            round.push(Step::GoOnDeleting(subject));
        }
        return;
    }
    let unwanted = match owner(view, spec.volume) {
        Owner::Goes => true,
        Owner::Missing => certain(round, &subject),
        Owner::Lives => {
            is_half_made(round, target, &subject)
                || (is_replaced(view, target) && certain(round, &subject))
        }
    };
    if unwanted {
        round.push(Step::Delete(subject));
    }
}

/// Whether another target serves the volume and nobody is connected to this one.
fn is_replaced(view: &View<'_>, target: &Target) -> bool {
    let spec = target.spec();
    let record = view.facts.records.get(&spec.volume);
    let outlived = record.is_some_and(|record| record.epoch() > spec.epoch);
    let left = match &target.status {
        Some(status) => status.connected.is_empty(),
        None => is_online(view, &spec.node),
    };
    // The last question costs the most, and few targets come to it.
    (spec.shutdown || outlived) && left && !crate::failover::is_moving(view, spec.volume)
}

fn sweep_replica(round: &mut Round<'_, '_>, replica: &Replica) {
    let view = round.view;
    let spec = replica.spec();
    let subject = Subject::Replica(*replica.id());
    if is_going(replica) {
        let label = replica.status.as_ref().and_then(|status| status.label.as_ref());
        let unproven = matches!(owner(view, spec.volume), Owner::Lives)
            && label.is_some_and(|label| is_unproven(view, *replica.id(), label));
        // What is given up is forgotten, and no engine is asked; the rest goes when its node is
        // back.
        let forgotten = is_given_up(view, &spec.pool);
        if !forgotten && !can_be_deleted(view, &spec.pool) {
            return;
        }
        if forgotten || !unproven {
            round.push(Step::GoOnDeleting(subject));
        } else if certain(round, &subject) {
            round.push(Step::Quarantine { replica: *replica.id() });
        }
        return;
    }
    let unwanted = match owner(view, spec.volume) {
        // Its targets go first: they may still write to it.
        Owner::Goes => view.targets(spec.volume).is_empty(),
        Owner::Missing => view.targets(spec.volume).is_empty() && certain(round, &subject),
        Owner::Lives => {
            let record = view.facts.records.get(&spec.volume);
            let counted =
                record.is_some_and(|record| record.set().in_sync().contains(replica.id()));
            let volume = Subject::Volume(spec.volume);
            let making = view
                .facts
                .volumes
                .get(&spec.volume)
                .is_some_and(|volume| !volume.lifecycle().is_idle());
            !counted && !making && round.is_open(&volume) && is_half_made(round, replica, &subject)
        }
    };
    if unwanted {
        round.push(Step::Delete(subject));
    }
}

fn sweep_snapshot(round: &mut Round<'_, '_>, snapshot: &Snapshot) {
    let view = round.view;
    let subject = Subject::Snapshot(*snapshot.id());
    if is_going(snapshot) {
        let copies = snapshot.status.as_ref().map(|status| &status.copies);
        let reachable = copies.is_none_or(|copies| {
            copies.is_empty() || copies.keys().any(|pool| can_be_deleted(view, pool))
        });
        if reachable {
            round.push(Step::GoOnDeleting(subject));
        }
        return;
    }
    // A snapshot outlives its volume, but one that was not taken yet never will be then.
    let orphan = matches!(snapshot.lifecycle(), Lifecycle::Creating {})
        && !matches!(owner(view, snapshot.spec().volume), Owner::Lives)
        && certain(round, &subject);
    if orphan || is_half_made(round, snapshot, &subject) {
        round.push(Step::Delete(subject));
    }
}

fn sweep_volume(round: &mut Round<'_, '_>, volume: &Volume) {
    let view = round.view;
    let id = *volume.id();
    let subject = Subject::Volume(id);
    let replicas = view.replicas(id);
    if is_going(volume) {
        if replicas.is_empty() && view.targets(id).is_empty() {
            round.push(Step::GoOnDeleting(subject));
        }
        return;
    }
    if !matches!(volume.lifecycle(), Lifecycle::Creating {}) {
        return;
    }
    let made = replicas.iter().filter(|replica| exists(replica)).count();
    if made >= usize::from(volume.spec().replicas) && round.is_open(&subject) {
        round.push(Step::Finish(subject));
    } else if is_half_made(round, volume, &subject) {
        round.push(Step::Delete(subject));
    }
}

fn sweep_orphan_replica(
    round: &mut Round<'_, '_>,
    replica: ReplicaId,
    orphan: &Orphan<ReplicaLabel>,
) {
    let view = round.view;
    let subject = Subject::Replica(replica);
    let Some(label) = orphan.label.as_ref().filter(|label| label.replica == replica) else {
        return round.block(subject, format!("pool {} holds it without a label", orphan.pool));
    };
    if view.facts.quarantined.contains_key(&replica) {
        return;
    }
    let standing = standing(view.facts, replica, label);
    let may_go = match (owner(view, label.volume), standing) {
        (Owner::Goes, Standing::Unproven(QuarantineCause::Newer))
        | (Owner::Lives, Standing::Unproven(_)) => false,
        (Owner::Goes, _) | (Owner::Lives, Standing::Superseded) => true,
        (Owner::Lives, Standing::Counted) | (Owner::Missing, _) => {
            return block_unknown(round, subject, orphan, label);
        }
    };
    if !can_be_deleted(view, &orphan.pool) || !certain(round, &subject) {
        return;
    }
    if may_go {
        round.push(Step::DestroyReplica { pool: orphan.pool.clone(), replica });
    } else {
        round.push(Step::Quarantine { replica });
    }
}

/// Whether somebody gave up what is in a pool, which then is only forgotten.
fn is_given_up(view: &View<'_>, pool: &PoolName) -> bool {
    view.pool(pool).is_none_or(|pool| is_going(pool.pool))
        || view.node_of(pool).is_none_or(|node| is_going(node.node))
}

fn is_unproven(view: &View<'_>, replica: ReplicaId, label: &ReplicaLabel) -> bool {
    matches!(standing(view.facts, replica, label), Standing::Unproven(_))
}

/// A copy that is set aside: what was asked for is done, and one whose time is over goes, if its
/// volume does not need it any more.
fn sweep_quarantined(round: &mut Round<'_, '_>, quarantine: &Quarantine) {
    let view = round.view;
    let Quarantine { replica, volume, pool, .. } = quarantine;
    let subject = Subject::Replica(*replica);
    let reachable = can_be_deleted(view, pool);
    if quarantine.discard || quarantine.rescue.is_some() {
        if reachable {
            round.push(Step::GoOnDeleting(subject));
        }
        return;
    }
    if quarantine.cause == QuarantineCause::Newer {
        let reason = format!(
            "pool {pool} holds a copy of volume {volume} with writes that no other copy may have; \
             `holdfast quarantine restore {replica}` makes a snapshot of it, `holdfast quarantine \
             delete {replica}` destroys it"
        );
        return round.block(subject, reason);
    }
    let label = view.facts.orphan_replicas.get(replica).and_then(|orphan| orphan.label.as_ref());
    let is_over = view.now.since(quarantine.since) >= view.settings.quarantine;
    let may_go = match owner(view, *volume) {
        Owner::Goes => true,
        Owner::Missing => is_over,
        Owner::Lives => {
            let superseded = |label| standing(view.facts, *replica, label) == Standing::Superseded;
            is_over && label.is_some_and(superseded)
        }
    };
    if may_go && reachable && certain(round, &subject) {
        round.push(Step::DestroyReplica { pool: pool.clone(), replica: *replica });
    }
}

fn block_unknown(
    round: &mut Round<'_, '_>,
    subject: Subject,
    orphan: &Orphan<ReplicaLabel>,
    label: &ReplicaLabel,
) {
    let reason = format!(
        "pool {} holds a copy of volume {} that nobody knows, and nothing proves that it is not \
         needed; see whether the store is older than the disks, or delete it by hand",
        orphan.pool, label.volume
    );
    round.block(subject, reason);
}

/// Whether a newer owner of the volume is recorded, or the volume goes.
fn is_outlived(view: &View<'_>, orphan: &OrphanTarget) -> bool {
    let record = view.facts.records.get(&orphan.volume);
    record.is_some_and(|record| record.epoch() > orphan.epoch)
        || matches!(owner(view, orphan.volume), Owner::Goes)
}

fn sweep_orphan_snapshots(round: &mut Round<'_, '_>) {
    let view = round.view;
    for (pool, snapshot) in view.facts.orphan_snapshots.keys() {
        let subject = Subject::Snapshot(*snapshot);
        let known = view.facts.snapshots.get(snapshot);
        // One that is still being taken has not said yet where its copies are.
        let settled = known.filter(|known| !matches!(known.lifecycle(), Lifecycle::Creating {}));
        let counted = settled.and_then(|known| known.status.as_ref());
        let counted = counted.is_some_and(|status| status.copies.contains_key(pool));
        match (known, settled) {
            (None, _) => {
                let reason = format!("pool {pool} holds a copy of it, but nobody knows it");
                round.block(subject, reason);
            }
            (_, Some(_)) if !counted && can_be_deleted(view, pool) && certain(round, &subject) => {
                let (pool, snapshot) = (pool.clone(), *snapshot);
                round.push(Step::DestroySnapshot { pool, snapshot });
            }
            _ => {}
        }
    }
}

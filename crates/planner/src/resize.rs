//! Growing volumes: every copy first, the target last.

use alloc::format;
use alloc::vec::Vec;

use model::{Problem, ProblemKind, Size, Subject, Volume, VolumeChange};

use crate::member::{Condition, VolumeHealth};
use crate::place::{Need, Unplaceable, fits};
use crate::plan::Round;
use crate::view::exists;
use crate::{Budget, Step, View};

/// Whether a volume can grow to this size now: every copy answers and has the room.
pub fn check_resize(view: &View<'_>, volume: &Volume, size: Size) -> Result<(), Problem> {
    let spec = volume.spec();
    if size < spec.size {
        let detail = format!("volume {} has {} and cannot shrink", volume.id(), spec.size);
        return Err(Problem::new(ProblemKind::OutOfRange, detail));
    }
    let mut refused = Vec::new();
    for member in &VolumeHealth::new(view, volume).members {
        let name = &member.replica.spec().pool;
        if matches!(member.condition, Condition::Away | Condition::Lost | Condition::Making) {
            let detail = format!(
                "the copy of volume {} in pool {name} does not answer; \
                 wait until it is back or replaced",
                volume.id()
            );
            return Err(Problem::new(ProblemKind::NodeUnavailable, detail));
        }
        let Some(pool) = view.pool(name) else { continue };
        let need = Need::of_growth(view, spec, size.minus(member.replica.spec().size));
        if need.committed == Size::ZERO {
            continue;
        }
        if let Err(refusal) = fits(view, &Budget::new(), pool, need) {
            refused.push((name, refusal));
        }
    }
    if refused.is_empty() { Ok(()) } else { Err(Unplaceable::of_pools(refused).into()) }
}

/// Gives every copy and target the size its volume should have.
pub(crate) fn run(round: &mut Round<'_, '_>) {
    let view = round.view;
    for volume in view.facts.volumes.values().filter(|volume| exists(volume)) {
        let wanted = match volume.lifecycle().operation().map(|operation| &operation.change) {
            Some(VolumeChange::Resize { size }) => *size,
            Some(_) => continue,
            None => volume.spec().size,
        };
        let target = view.target(*volume.id());
        let mut grown = true;
        for replica in view.replicas(*volume.id()).iter().filter(|replica| exists(replica)) {
            let has = replica.spec().size;
            grown &= has >= wanted;
            // Back to what it was after a growth that failed elsewhere; never under a target, and
            // never below what a target has made of it.
            let label = replica.status.as_ref().and_then(|status| status.label.as_ref());
            let is_vain = label.is_none_or(|label| label.size <= wanted);
            let shrinks =
                has > wanted && is_vain && target.is_none() && replica.spec().hosts.is_empty();
            if (has < wanted || shrinks) && view.answers(replica) {
                let (replica, seen) = (*replica.id(), replica.generation());
                round.push(Step::ResizeReplica { replica, seen, size: wanted });
            }
        }
        let Some(target) = target.filter(|target| grown && target.spec().size < wanted) else {
            continue;
        };
        let (target, seen) = (*target.id(), target.generation());
        if round.is_open(&Subject::Target(target)) {
            round.push(Step::ResizeTarget { target, seen, size: wanted });
        }
    }
}

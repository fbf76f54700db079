//! Steps as text, with the names of the situation.

use model::{FailoverReason, RebuildKind, RebuildPlan, Subject};
use planner::{Plan, Step};

use crate::world::World;

/// The steps of a plan, in order; `-` for none.
pub(crate) fn render(world: &World, plan: &Plan) -> String {
    let steps: Vec<_> = plan.steps.iter().map(|step| one(world, step)).collect();
    if steps.is_empty() { "-".into() } else { steps.join("; ") }
}

fn subject(world: &World, subject: &Subject) -> String {
    match subject {
        Subject::Volume(id) => world.names.name(id),
        Subject::Replica(id) => world.names.name(id),
        Subject::Target(id) => world.names.name(id),
        Subject::Snapshot(id) => world.names.name(id),
        Subject::Pool(name) => name.to_string(),
        other => format!("{other:?}"),
    }
}

pub(crate) fn one(world: &World, step: &Step) -> String {
    let name = |id: &dyn std::fmt::Display| world.names.name(id);
    match step {
        Step::OpenPool { pool, node } => format!("open {node}/{pool}"),
        Step::OrderTarget { target, .. } => format!("order {}", name(target)),
        Step::BeginFailover { from, node, cause, .. } => {
            let cause = match cause {
                FailoverReason::PathLost { .. } => "path",
                FailoverReason::NodeLapsed { .. } => "lapsed",
                FailoverReason::Drain { .. } => "drain",
                FailoverReason::Asked {} => "dead",
            };
            format!("failover {} to {node} ({cause})", name(from))
        }
        Step::Republish { volume, node, .. } => format!("republish {} on {node}", name(volume)),
        Step::Reroute { volume, .. } => format!("reroute {}", name(volume)),
        Step::OpenToHeal { volume, node, .. } => format!("heal {} on {node}", name(volume)),
        Step::Close { target, force, .. } => {
            format!("close {}{}", name(target), if *force { " by force" } else { "" })
        }
        Step::AddReplica { volume, pool, .. } => format!("add {}@{pool}", name(volume)),
        Step::Attach { replica, .. } => format!("attach {}", name(replica)),
        Step::Rebuild(RebuildPlan { replica, sources, extent, .. }) => {
            let extent = if *extent == RebuildKind::Partial { "partial" } else { "full" };
            let sources: Vec<_> =
                sources.iter().map(|id| name(id).split_once('@').unwrap().1.to_owned()).collect();
            format!("rebuild {} {extent} from {}", name(replica), sources.join("+"))
        }
        Step::RemoveReplica { replica, .. } => format!("remove {}", name(replica)),
        Step::MoveReplica { from, pool, .. } => format!("move {} to {pool}", name(from)),
        Step::ResizeReplica { replica, size, .. } => format!("resize {} {size}", name(replica)),
        Step::ResizeTarget { target, size, .. } => format!("resize {} {size}", name(target)),
        Step::Finish(what) => format!("finish {}", subject(world, what)),
        Step::Delete(what) => format!("delete {}", subject(world, what)),
        Step::GoOnDeleting(what) => format!("go on deleting {}", subject(world, what)),
        Step::Quarantine { replica } => format!("quarantine {}", name(replica)),
        Step::DestroyReplica { replica, .. } => format!("destroy {}", name(replica)),
        Step::StopTarget { target, .. } => format!("stop {}", name(target)),
        Step::DestroySnapshot { pool, snapshot } => {
            format!("destroy {}@{pool}", name(snapshot))
        }
        Step::Scrub { replica } => format!("scrub {}", name(replica)),
        Step::Compare { volume } => format!("compare {}", name(volume)),
    }
}

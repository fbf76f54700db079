//! What a request to serve a volume, or to stop serving it, comes to.

use alloc::format;

use model::{HostName, Lifecycle, NodeName, Problem, ProblemKind, TargetId, Volume};

use crate::member::VolumeHealth;
use crate::place::{NodePreference, choose_target};
use crate::view::{NodeView, exists};
use crate::{Budget, View};

/// What is to be done so that a host can use a volume, or cannot any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Publishing {
    /// Nothing: it is so already.
    Already,
    /// A new target there.
    Open {
        /// There.
        node: NodeName,
    },
    /// The target it has admits one host more.
    Admit {
        /// Which target.
        target: TargetId,
    },
    /// The target it has admits one host fewer.
    Dismiss {
        /// Which target.
        target: TargetId,
    },
    /// The target goes: it was the last host's.
    Close {
        /// Which target.
        target: TargetId,
    },
}

/// What it takes to let a host use a volume, rather by a target on the node that is asked for.
pub fn publish(
    view: &View<'_>,
    volume: &Volume,
    host: &HostName,
    asked: Option<&NodeName>,
) -> Result<Publishing, Problem> {
    if !exists(volume) {
        let making = matches!(volume.lifecycle(), Lifecycle::Creating {});
        let kind = if making { ProblemKind::Busy } else { ProblemKind::Deleting };
        let detail = format!("volume {} is {}", volume.id(), volume.lifecycle().name());
        return Err(Problem::new(kind, detail));
    }
    let health = VolumeHealth::new(view, volume);
    if let Some(target) = health.target {
        let hosts = &target.spec().hosts;
        if hosts.contains_key(host) {
            return Ok(Publishing::Already);
        }
        if hosts.is_empty() || volume.spec().shared {
            // Whoever asks need not wait for what the node would say.
            if !view.node(&target.spec().node).is_some_and(NodeView::is_online) {
                let detail = format!(
                    "node {} of the target of volume {} does not answer; try again when it does, \
                     or when the target has moved",
                    target.spec().node,
                    volume.id()
                );
                return Err(Problem::new(ProblemKind::NodeUnavailable, detail));
            }
            return Ok(Publishing::Admit { target: *target.id() });
        }
        let other = hosts.keys().next().map_or("", HostName::as_str);
        let detail = format!(
            "volume {} is used by host {other} and is not shared; unpublish it there first",
            volume.id()
        );
        return Err(Problem::new(ProblemKind::AlreadyPublished, detail));
    }
    if health.good().next().is_none() {
        let detail = format!("no copy in sync of volume {} answers", volume.id());
        return Err(Problem::new(ProblemKind::NoHealthyReplica, detail));
    }
    let preference = NodePreference { asked, or_again: None };
    let node = choose_target(view, &mut Budget::new(), &health, preference)?;
    Ok(Publishing::Open { node })
}

/// What it takes to stop serving a volume for a host, or for all. `Force` is for a node that does
/// not answer: fencing keeps its target from doing harm.
pub fn unpublish(
    view: &View<'_>,
    volume: &Volume,
    host: Option<&HostName>,
    force: bool,
) -> Result<Publishing, Problem> {
    let Some(target) = view.target(*volume.id()) else { return Ok(Publishing::Already) };
    let spec = target.spec();
    let concerned = host.is_none_or(|host| spec.hosts.contains_key(host));
    if !concerned || spec.hosts.is_empty() {
        // A target without hosts heals, and goes by itself.
        return Ok(Publishing::Already);
    }
    if !force && !view.node(&spec.node).is_some_and(NodeView::is_online) {
        let detail = format!(
            "node {} of the target of volume {} does not answer; wait for it, or force it",
            spec.node,
            volume.id()
        );
        return Err(Problem::new(ProblemKind::NodeUnavailable, detail));
    }
    let target = *target.id();
    let others = host.is_some() && spec.hosts.len() > 1;
    Ok(if others { Publishing::Dismiss { target } } else { Publishing::Close { target } })
}

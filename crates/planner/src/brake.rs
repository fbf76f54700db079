//! Holding back new copies while so many nodes are away at once that one cause is likely.
//!
//! A switch, a rack or a power feed takes many nodes with it, and gives them back together. Copying
//! everything that was on them into what is left would fill pools, load the nodes that still serve,
//! and be thrown away an hour later. So while the nodes of the cluster, or those of one zone, that
//! answer are no more than [`Settings::heal_share`](crate::Settings) in a hundred, and two nodes or
//! more are away, no copy is added in place of one that was lost.
//!
//! The brake of a zone holds volumes that lost something there, and no others; that of the cluster
//! holds all.
//!
//! Nodes come back one after the other. So the brake stays on for as long as a single node would be
//! waited for ([`Settings::replace_after`](crate::Settings)) after enough of them answer again.
//!
//! What is never held: failover, copies that return, copies that operators ask for, volumes that
//! were never written. A node that is being drained or was purged is one that an operator does not
//! wait for: it counts neither as known nor as away, and its copies are replaced.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use model::NodeName;

use crate::View;
use crate::member::{Condition, Member, MoveReason, VolumeHealth};
use crate::view::{NodeView, exists};

/// Why no new copies are made, and for how many volumes that matters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Brake {
    /// What is away, and what lifts the brake, for people.
    pub reason: String,
    /// The nodes that are away.
    pub nodes: Vec<NodeName>,
    /// Whether it holds every volume, and not only those with a lost copy on these nodes.
    pub holds_all: bool,
    /// Whether too few nodes answer now. To be remembered with the time
    /// ([`Facts::braked_at`](crate::Facts)); if not, it is on because they did a while ago.
    pub engaged: bool,
    /// How many volumes want a copy and do not get it.
    pub held: u32,
}

/// How many names a reason lists.
const MOST_NAMES: usize = 8;

/// The nodes that are waited for, and those of them that are away.
#[derive(Default)]
struct Domain<'a> {
    known: u32,
    away: Vec<&'a NodeName>,
}

impl<'a> Domain<'a> {
    fn count(&mut self, node: &NodeView<'a>) {
        self.known += 1;
        if !node.is_online() {
            self.away.push(node.node.id());
        }
    }

    /// Whether too few of its nodes are left. One node is never taken for many.
    fn is_lost(&self, share: u32) -> bool {
        let away = u32::try_from(self.away.len()).unwrap_or(u32::MAX);
        let live = self.known.saturating_sub(away);
        away >= 2 && u64::from(live) * 100 <= u64::from(self.known) * u64::from(share) && share > 0
    }

    fn names(&self) -> String {
        let mut names: Vec<String> =
            self.away.iter().take(MOST_NAMES).map(ToString::to_string).collect();
        if let Some(more @ 1..) = self.away.len().checked_sub(MOST_NAMES) {
            names.push(format!("and {more} more"));
        }
        names.join(", ")
    }

    fn nodes(&self) -> Vec<NodeName> {
        self.away.iter().map(|name| (*name).clone()).collect()
    }

    fn brake(&self, of: &str) -> Brake {
        let reason = format!(
            "{} of {} nodes{of} do not answer ({}): what was on them is not copied elsewhere \
             before they are back; for a node that will not come back, `holdfast node drain NODE` \
             replaces its copies and `holdfast node purge NODE` forgets it",
            self.away.len(),
            self.known,
            self.names()
        );
        Brake { reason, nodes: self.nodes(), holds_all: of.is_empty(), engaged: true, held: 0 }
    }

    /// Enough nodes are back, and the others may be on their way.
    fn hold_over(&self, left: core::time::Duration) -> Brake {
        let reason = format!(
            "many nodes were away until a moment ago: what was on those that still do not answer \
             ({}) is not copied elsewhere for another {} s",
            self.names(),
            left.as_secs()
        );
        Brake { reason, nodes: self.nodes(), holds_all: false, engaged: false, held: 0 }
    }
}

/// The brake as the nodes are now, if it is on.
pub(crate) fn find(view: &View<'_>) -> Option<Brake> {
    let share = view.settings.heal_share;
    let mut all = Domain::default();
    let mut zones: BTreeMap<&model::LabelValue, Domain<'_>> = BTreeMap::new();
    for node in view.nodes.values() {
        let spec = node.node.spec();
        if spec.is_draining() || !exists(node.node) {
            continue;
        }
        all.count(node);
        if let Some(zone) = spec.zone() {
            zones.entry(zone).or_default().count(node);
        }
    }
    if all.is_lost(share) {
        return Some(all.brake(""));
    }
    let lost = zones.into_iter().filter(|(_, domain)| domain.is_lost(share));
    let brakes = lost.map(|(zone, domain)| domain.brake(&format!(" of zone {zone}")));
    if let Some(brake) = brakes.reduce(both) {
        return Some(brake);
    }
    let since = view.facts.braked_at.map(|at| view.now.since(at))?;
    let left = view.settings.replace_after.checked_sub(since).filter(|left| !left.is_zero())?;
    (!all.away.is_empty() && share > 0).then(|| all.hold_over(left))
}

/// Two zones at once.
fn both(mut one: Brake, other: Brake) -> Brake {
    one.reason = format!("{}; {}", one.reason, other.reason);
    one.nodes.extend(other.nodes);
    one
}

impl Brake {
    /// Whether it holds a volume that wants a copy for what was lost.
    pub(crate) fn holds(&self, health: &VolumeHealth<'_>) -> bool {
        let away = |member: &Member<'_>| {
            let is_lost = member.condition == Condition::Lost;
            is_lost && member.node.is_none_or(|node| self.nodes.contains(node))
        };
        self.holds_all || health.members.iter().any(away)
    }
}

/// Whether a copy that a volume wants is one for what was lost, and not one that somebody asked
/// for.
pub(crate) fn concerns(view: &View<'_>, health: &VolumeHealth<'_>) -> bool {
    let by_word = |leave: &Option<MoveReason>| {
        matches!(leave, Some(MoveReason::Draining | MoveReason::Asked))
    };
    let kept = health.members.iter().filter(|member| !by_word(&member.leave)).count();
    kept >= usize::from(health.wanted) && !health.is_virgin(view)
}

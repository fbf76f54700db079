//! One round: everything that can be done now, the most urgent first.

use alloc::collections::BTreeSet;
use alloc::string::String;

use model::{PoolState, Subject};

use crate::view::{NodeView, exists};
use crate::{
    Blocked, Brake, Budget, Plan, Step, View, brake, failover, gc, heal, rebalance, resize, scrub,
};

/// What to do now.
///
/// The order of urgency: pools are opened, since everything else stands on them; then volumes are
/// served again, then healed (the fewest copies first), then given their size; then what is moved
/// for order's sake, what is cleared away, and what is only checked.
pub fn plan(view: &View<'_>) -> Plan {
    let mut round = Round::new(view);
    open_pools(&mut round);
    failover::run(&mut round);
    resize::run(&mut round);
    heal::run(&mut round);
    rebalance::run(&mut round);
    gc::run(&mut round);
    scrub::run(&mut round);
    round.end()
}

/// A plan in the making.
pub(crate) struct Round<'v, 'a> {
    pub(crate) view: &'v View<'a>,
    pub(crate) budget: Budget,
    /// Why no lost copy is replaced in this round.
    pub(crate) brake: Option<Brake>,
    plan: Plan,
    subjects: BTreeSet<Subject>,
}

impl<'v, 'a> Round<'v, 'a> {
    fn new(view: &'v View<'a>) -> Round<'v, 'a> {
        let (plan, subjects) = (Plan::default(), BTreeSet::new());
        Round { view, budget: Budget::new(), brake: brake::find(view), plan, subjects }
    }

    /// Whether something may be decided about it in this round.
    pub(crate) fn is_open(&self, subject: &Subject) -> bool {
        !self.view.is_busy(subject) && !self.subjects.contains(subject)
    }

    /// Whether nothing has been decided yet.
    pub(crate) fn is_quiet(&self) -> bool {
        self.plan.steps.is_empty()
    }

    pub(crate) fn push(&mut self, step: Step) {
        let subject = step.subject();
        if self.is_open(&subject) {
            self.subjects.insert(subject);
            self.plan.steps.push(step);
        }
    }

    pub(crate) fn block(&mut self, subject: Subject, reason: impl Into<String>) {
        let reason = reason.into();
        self.plan.blocked.push(Blocked { subject, reason });
    }

    /// It seems to be unwanted: whether that has been so for long enough.
    pub(crate) fn suspect(&mut self, subject: Subject, wait: core::time::Duration) -> bool {
        let since = self.view.facts.suspects.get(&subject);
        let certain = since.is_some_and(|since| self.view.now.since(*since) >= wait);
        self.plan.suspects.push(subject);
        certain
    }

    fn end(self) -> Plan {
        Plan { looked_at: self.budget.looked_at, brake: self.brake, ..self.plan }
    }
}

/// Pools that should be open on a node that answers, and are not.
fn open_pools(round: &mut Round<'_, '_>) {
    for (name, pool) in &round.view.pools {
        let spec = pool.pool.spec();
        let closed = matches!(pool.state(), PoolState::Offline | PoolState::Unknown);
        let online = round.view.node(&spec.node).is_some_and(NodeView::is_online);
        if closed && online && !spec.exported && exists(pool.pool) {
            let (pool, node) = ((*name).clone(), spec.node.clone());
            round.push(Step::OpenPool { pool, node });
        }
    }
}

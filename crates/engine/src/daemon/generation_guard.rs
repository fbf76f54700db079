//! The last order for each thing, and the removals: late orders are refused by their number.
//!
//! Kept in memory only: after a restart the control plane sends everything anew.

use std::collections::BTreeMap;

use model::{Admission, Generation, GenerationConflict, Problem, Spec, VersionedSpec};

/// Orders for things of one kind.
pub(super) struct GenerationGuard<S: Spec> {
    orders: BTreeMap<S::Id, VersionedSpec<S>>,
    removed: BTreeMap<S::Id, Generation>,
}

impl<S: Spec> Default for GenerationGuard<S> {
    fn default() -> GenerationGuard<S> {
        GenerationGuard { orders: BTreeMap::new(), removed: BTreeMap::new() }
    }
}

impl<S: Spec> GenerationGuard<S> {
    /// The order that is followed.
    pub(super) fn get(&self, id: &S::Id) -> Option<&VersionedSpec<S>> {
        self.orders.get(id)
    }

    /// Whether an order may be followed.
    pub(super) fn admit(&self, id: &S::Id, order: &VersionedSpec<S>) -> Result<Admission, Problem> {
        let sent = order.generation;
        match self.removed.get(id) {
            Some(&have) if sent <= have => Err(GenerationConflict::Stale { sent, have }.into()),
            _ => Ok(order.admit(self.orders.get(id))?),
        }
    }

    /// It is followed from now on.
    pub(super) fn follow(&mut self, id: S::Id, order: VersionedSpec<S>) {
        self.removed.remove(&id);
        self.orders.insert(id, order);
    }

    /// Whether a removal may be followed.
    pub(super) fn admit_removal(&self, id: &S::Id, sent: Generation) -> Result<(), Problem> {
        match self.orders.get(id) {
            Some(held) if sent < held.generation => {
                Err(GenerationConflict::Stale { sent, have: held.generation }.into())
            }
            _ => Ok(()),
        }
    }

    /// It was removed by this order.
    pub(super) fn remove(&mut self, id: S::Id, sent: Generation) {
        self.orders.remove(&id);
        let latest = self.removed.entry(id).or_insert(sent);
        *latest = sent.max(*latest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{PoolName, PoolSpec, ProblemKind};

    fn order(generation: u64, disk: &str) -> VersionedSpec<PoolSpec> {
        let spec = PoolSpec {
            node: "node-1".parse().unwrap(),
            disks: vec![disk.parse().unwrap()],
            uuid: None,
            import: false,
            exported: false,
            cluster_size: None,
            labels: BTreeMap::new(),
            cordons: [].into(),
        };
        VersionedSpec { generation: Generation::new(generation).unwrap(), spec }
    }

    #[test]
    fn late_orders_and_removals_are_refused() {
        let pool: PoolName = "tank".parse().unwrap();
        let mut held = GenerationGuard::default();
        let number = |number| Generation::new(number).unwrap();
        let admitted = |held: &GenerationGuard<PoolSpec>, order| {
            held.admit(&pool, &order).map_err(|problem: Problem| problem.kind)
        };
        assert_eq!(admitted(&held, order(2, "/a")), Ok(Admission::New));
        held.follow(pool.clone(), order(2, "/a"));
        assert_eq!(admitted(&held, order(2, "/a")), Ok(Admission::Again));
        assert_eq!(admitted(&held, order(2, "/b")), Err(ProblemKind::GenerationReused));
        assert_eq!(admitted(&held, order(1, "/a")), Err(ProblemKind::StaleGeneration));
        assert!(held.admit_removal(&pool, number(1)).is_err());
        assert!(held.admit_removal(&pool, number(3)).is_ok());
        held.remove(pool.clone(), number(3));
        held.remove(pool.clone(), number(2));
        assert_eq!(admitted(&held, order(3, "/a")), Err(ProblemKind::StaleGeneration));
        assert_eq!(admitted(&held, order(4, "/a")), Ok(Admission::New));
    }
}

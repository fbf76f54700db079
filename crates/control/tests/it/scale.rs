//! What a large cluster costs: how often everything is looked at, and what goes on while nothing
//! happens. Counted, so that no clock is needed.

use std::time::Duration;

use control::testing::{Cluster, Loss, Sim, fill_published};
use model::*;

use crate::world::*;

/// So many published volumes on so many nodes; the first node has the targets of the first of them.
fn published(nodes: usize, (volumes, crowd): (usize, usize)) -> Sim {
    let mut cluster = Cluster::new(nodes);
    cluster.is_large = true;
    let now = Timestamp::from_millis(1_000_000_000);
    fill_published(&mut cluster, (volumes, crowd), now);
    let mut sim = Sim::over(cluster, now);
    sim.pass(Duration::from_mins(2));
    sim
}

/// Each plan looks at everything once, and moving the targets of a lost node looks at everything no
/// more often than plans do.
#[test]
fn a_lost_node_costs_a_few_looks_at_everything() {
    let mut sim = published(20, (2000, 150));
    let (plans, views) = (sim.controller.work().plans(), sim.controller.work().views());
    sim.cluster.lose(&good("n1"), Loss::Stopped);
    sim.pass(Duration::from_secs(40));
    let plans = sim.controller.work().plans() - plans;
    let views = sim.controller.work().views() - views;
    let moved = sim.told.iter().filter(|it| it.name == EventName::FailoverEnded).count();
    assert_eq!(moved, 150, "not all targets have moved");
    assert!(plans < 100, "{plans} plans");
    assert_eq!(views, plans, "something looks at everything besides plans");
}

/// Every engine was restarted, one after the other: once everything is as it was, nothing is
/// written, ordered or told, and no plan is made but the slow ones.
#[test]
fn nothing_goes_on_after_a_rolling_restart() {
    let mut sim = published(4, (1000, 200));
    for node in 1..=4 {
        let name: NodeName = good(&format!("n{node}"));
        sim.cluster.lose(&name, Loss::Stopped);
        sim.pass(Duration::from_secs(20));
        sim.cluster.engine(name.as_str()).start();
        sim.pass(Duration::from_secs(40));
    }
    sim.cluster.settle();
    sim.pass(Duration::from_mins(10));
    let (done, told) = (sim.done, sim.told.len());
    let (plans, restarts) = (sim.controller.work().plans(), sim.restarts);
    sim.pass(Duration::from_mins(5));
    assert_eq!(sim.restarts, restarts);
    assert_eq!(sim.done, done, "something is written or ordered for ever");
    assert_eq!(sim.told.len(), told, "something is told for ever");
    let plans = sim.controller.work().plans() - plans;
    assert!(plans <= 11, "{plans} plans in five minutes in which nothing happened");
}

//! Two control planes that fight for the lease: one hangs, the other leads, the first comes back.

use e2e::store::{KINDS, Kind, StoreServer};
use rustix::process::Signal;

use super::rig::{World, until};

/// How often the one that leads is made to hang.
const ROUNDS: usize = 2;

/// The one that hangs has writes, calls and answers under way, all of which it finds when it goes
/// on. If one of its writes were taken, the other would not know of it: its next write about the
/// same thing would be refused and its term over, or what it knows and what is stored would differ.
async fn never_two_writers(kind: Kind) {
    let store = StoreServer::start(kind).unwrap();
    let client = store.client().await.unwrap();
    let mut world = World::start(&[store.endpoint()], client, (2, 2)).await;
    let first = usize::from(!world.controls[0].leads().await);
    world.begin_creating(6, 2);
    let mut leader = first;
    for round in 1..=ROUNDS {
        world.until_more(10).await;
        let other = 1 - leader;
        let [hung, next] = [leader, other].map(|at| world.controls[at].terms_over());
        world.controls[leader].program.signal(Signal::STOP).unwrap();
        until("the other leads", async || world.controls[other].leads().await).await;
        world.until_more(10).await;
        world.controls[leader].program.signal(Signal::CONT).unwrap();
        let control = &world.controls[leader];
        until("it steps down", async || control.terms_over() > hung && !control.leads().await)
            .await;
        world.until_more(10).await;
        let said = world.controls[other].program.said();
        assert_eq!(world.controls[other].terms_over(), next, "round {round}: {said}");
        leader = other;
    }
    world.check(leader).await;
}

#[tokio::test]
async fn a_leader_that_hung_writes_nothing_any_more() {
    for kind in KINDS {
        never_two_writers(kind).await;
    }
}

//! What copies hold: snapshots and clones of volumes that are not served are of one moment.

use std::time::Duration;

use control::controller::Request;
use control::testing::Sim;
use model::*;

use crate::faults::{check_all, insist};
use crate::seeds::{Dice, each_seed};
use crate::world::*;

fn force() -> Request {
    Request::Unpublish { volume: volume(1), host: None, force: true }
}

fn from(number: u32, source: Source) -> Request {
    let spec = VolumeSpec { source: Some(source), ..spec(2) };
    Request::CreateVolume(volume(number), Box::new(spec))
}

fn restore() -> Request {
    from(3, Source::Snapshot { snapshot: snapshot(1) })
}

/// The target of the first volume dies in the middle of a write, and nobody wants the volume
/// served: its copies differ.
fn end_uncleanly(sim: &mut Sim) {
    insist(sim, &[create(1, 2), publish(1)]);
    let Some(node) = sim.cluster.tear(volume(1)) else { return };
    sim.cluster.engine(node.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_secs(2));
    insist(sim, &[force()]);
    sim.cluster.engine(node.as_str()).start();
    sim.pass(Duration::from_secs(15));
}

/// The control plane cannot reach the target of the first volume, which goes, and goes on serving
/// its host until it is fenced.
fn leave_a_writer(sim: &mut Sim) -> Option<NodeName> {
    insist(sim, &[create(1, 2), publish(1)]);
    let target = sim.controller.volume_seen(volume(1)).and_then(|it| it.status?.target)?;
    sim.cluster.engine(target.node.as_str()).cut_off = true;
    sim.pass(Duration::from_secs(2));
    insist(sim, &[force()]);
    Some(target.node)
}

#[test]
fn a_snapshot_of_a_volume_whose_target_died_is_of_one_moment() {
    check_all(3, |sim| {
        end_uncleanly(sim);
        insist(sim, &[take(1, 1), restore(), publish(3)]);
    });
}

#[test]
fn a_clone_of_a_volume_whose_target_died_is_of_one_moment() {
    check_all(3, |sim| {
        end_uncleanly(sim);
        insist(sim, &[from(3, Source::Volume { volume: volume(1) })]);
    });
}

#[test]
fn a_group_with_a_volume_whose_target_died_is_of_one_moment() {
    check_all(3, |sim| {
        end_uncleanly(sim);
        insist(sim, &[create(2, 2), publish(2), take_group(), restore()]);
    });
}

/// The copies of a volume lie on other nodes than its target, which only the hosts can reach.
#[test]
fn a_snapshot_is_of_one_moment_although_a_former_target_may_still_write() {
    check_all(4, |sim| {
        insist(sim, &[create(1, 2), publish(1)]);
        let copies = sim.cluster.copies(volume(1));
        let mut names = sim.cluster.engines.keys();
        let away = names.find(|it| !copies.values().any(|node| node == *it)).cloned();
        insist(sim, &[Request::Republish { volume: volume(1), node: away }]);
        let Some(node) = leave_a_writer(sim) else { return };
        insist(sim, &[take(1, 1), restore()]);
        sim.cluster.engine(node.as_str()).cut_off = false;
    });
}

/// Targets die in the middle of writes or are cut off from the control plane, while volumes are
/// snapshotted, cloned, restored and served again.
fn live(seed: u64) {
    let mut dice = Dice(seed);
    let mut sim = cluster(4);
    sim.seed = seed;
    insist(&mut sim, &[create(1, 2), create(2, 3), publish(1)]);
    for _ in 0..20 {
        let one = dice.small(3) + 1;
        let request = match dice.roll(12) {
            0 => {
                sim.cluster.tear(volume(one));
                continue;
            }
            1 => {
                let engine = sim.cluster.engine(&format!("n{}", dice.roll(4) + 1));
                engine.cut_off = !engine.cut_off;
                continue;
            }
            2 => {
                sim.pass(Duration::from_secs(dice.roll(30)));
                continue;
            }
            3 | 4 => publish(one),
            5 => unpublish(one),
            6 => Request::Unpublish { volume: volume(one), host: None, force: true },
            7 => take(dice.small(3) + 1, one),
            8 => from(dice.small(2) + 3, Source::Volume { volume: volume(one) }),
            9 => from(dice.small(2) + 3, Source::Snapshot { snapshot: snapshot(one) }),
            10 => take_group(),
            _ => Request::DeleteSnapshot(snapshot(one)),
        };
        if dice.roll(2) == 0 {
            sim.ask(request);
        } else {
            // Whatever is asked for at random may be refused.
            drop(sim.insist(&request));
        }
    }
    for engine in sim.cluster.engines.values_mut() {
        engine.cut_off = false;
    }
    sim.pass(Duration::from_mins(6));
    settle(&mut sim);
}

#[test]
fn whatever_is_cut_off_or_dies_copies_of_a_snapshot_are_the_same() {
    each_seed(live);
}

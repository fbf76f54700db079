//! Histories: scripted ones that show a rule, and random ones that look for a hole.

use mesh::reconcile::Action;
use mesh::state::Phase;

use crate::array::REGIONS;
use crate::world::{Pending, Rules, SAFE, World};

/// Every node looks, acts and does I/O, so many times.
fn rounds(world: &mut World, count: usize) {
    for _ in 0..count {
        world.now += 1;
        for node in 0..world.nodes.len() {
            world.cycle(node);
            while !world.nodes[node].pending.is_empty() {
                world.advance(node);
            }
            world.kubelet(node);
            for _ in 0..12 {
                world.io(node);
            }
        }
        world.check();
    }
}

fn running(replicas: u16, rules: Rules) -> World {
    let mut world = World::new(1, 3, replicas, rules);
    world.nodes[0].wanted = true;
    rounds(&mut world, 40);
    assert!(world.nodes[0].attached.is_some(), "{:#?}", world.volume);
    assert!(world.acks > 0);
    assert_eq!(world.volume.status.in_sync.len(), usize::from(replicas));
    world
}

fn members(world: &World) -> Vec<&str> {
    let requests = world.volume.spec.partitions.iter().filter(|it| !it.remove);
    requests.map(|it| it.node_id.as_str()).collect()
}

/// The split-brain: the consumer is cut off from the API server and from the other copy, and its
/// pod is moved there. Returns what was violated.
fn split_brain(rules: Rules) -> Vec<String> {
    let mut world = running(2, rules);
    let other = world.index(members(&world)[1]);
    world.nodes[0].has_api = false;
    for node in 1..3 {
        world.cuts.insert((0, node));
    }
    rounds(&mut world, 5);
    world.now += 100;
    world.nodes[other].wanted = true;
    rounds(&mut world, 60);
    assert!(world.nodes[other].attached.is_some(), "the pod runs again elsewhere");
    world.violations
}

#[test]
fn without_holding_io_a_consumer_that_is_cut_off_acknowledges_writes_that_are_lost() {
    let found = split_brain(Rules { hold: false, fence: true });
    assert!(found.iter().any(|it| it.contains("acknowledged after")), "{found:?}");
    assert!(found.iter().any(|it| it.contains("is called in sync and has")), "{found:?}");
}

#[test]
fn without_revoking_two_consumers_write_to_one_copy() {
    let mut world = running(2, Rules { hold: true, fence: false });
    let other = world.index(members(&world)[1]);
    world.nodes[0].has_api = false;
    world.now += 100;
    world.nodes[other].wanted = true;
    rounds(&mut world, 60);
    let found = &world.violations;
    assert!(found.iter().any(|it| it.contains("wrote to")), "{found:?}");
}

#[test]
fn with_the_rules_a_consumer_that_is_cut_off_acknowledges_nothing_more() {
    assert_eq!(split_brain(SAFE), Vec::<String>::new());
    let mut world = running(2, SAFE);
    let other = world.index(members(&world)[1]);
    world.nodes[0].has_api = false;
    world.now += 100;
    world.nodes[other].wanted = true;
    rounds(&mut world, 60);
    assert!(world.nodes[other].attached.is_some());
    assert_eq!(world.violations, Vec::<String>::new());
    // It comes back: its array ends, and its copy is brought up to date as a member.
    world.nodes[0].has_api = true;
    world.nodes[0].wanted = false;
    rounds(&mut world, 100);
    assert!(world.nodes[0].array.is_none());
    assert_eq!(world.volume.status.in_sync.len(), 2, "{:#?}", world.volume);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn the_api_server_may_be_away_while_all_members_are_there() {
    let mut world = running(2, SAFE);
    world.nodes.iter_mut().for_each(|node| node.has_api = false);
    let before = world.acks;
    rounds(&mut world, 30);
    assert!(world.acks > before + 20, "I/O goes on");
    // A member goes as well: now I/O waits for the API server.
    let other = world.index(members(&world)[1]);
    world.crash(other);
    rounds(&mut world, 5);
    let before = world.acks;
    rounds(&mut world, 30);
    assert_eq!(world.acks, before, "nothing is acknowledged that only one copy has");
    world.nodes.iter_mut().for_each(|node| node.has_api = true);
    rounds(&mut world, 30);
    assert!(world.acks > before, "the member is recorded, and I/O goes on");
    assert_eq!(world.volume.status.in_sync.len(), 1);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn a_member_that_comes_back_is_resynchronised_by_its_bitmap() {
    let mut world = running(2, SAFE);
    let other = world.index(members(&world)[1]);
    world.budget = 0;
    rounds(&mut world, 20);
    world.crash(other);
    world.budget = 1;
    rounds(&mut world, 20);
    let copied = world.nodes[0].array.as_ref().unwrap().copied;
    world.nodes[other].up = true;
    rounds(&mut world, 40);
    assert_eq!(world.volume.status.in_sync.len(), 2, "{:#?}", world.volume);
    let again = world.nodes[0].array.as_ref().unwrap().copied - copied;
    assert_eq!(again, 1, "of {REGIONS} regions, the one that was written is copied");
    assert_eq!(world.volume.status.phase, Phase::Synced);
}

#[test]
fn a_member_that_stays_away_is_replaced_after_its_time_and_removed_when_it_returns() {
    let mut world = running(2, SAFE);
    let other = world.index(members(&world)[1]);
    world.crash(other);
    rounds(&mut world, 50);
    assert_eq!(members(&world).len(), 2);
    assert!(members(&world).contains(&world.nodes[other].name.as_str()), "it is waited for");
    rounds(&mut world, 80);
    assert!(!members(&world).contains(&world.nodes[other].name.as_str()), "{:#?}", world.volume);
    assert_eq!(world.volume.status.in_sync.len(), 2, "{:#?}", world.volume);
    world.nodes[other].up = true;
    rounds(&mut world, 40);
    assert!(world.nodes[other].partitions.is_empty(), "{:#?}", world.nodes[other]);
    assert_eq!(world.volume.spec.partitions.len(), 2);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn a_single_copy_moves_with_its_pod() {
    let mut world = running(1, SAFE);
    world.nodes[0].wanted = false;
    rounds(&mut world, 10);
    world.nodes[1].wanted = true;
    rounds(&mut world, 100);
    assert!(world.nodes[1].attached.is_some());
    assert_eq!(members(&world), ["n1"], "{:#?}", world.volume);
    assert!(world.nodes[0].partitions.is_empty(), "{:#?}", world.nodes[0]);
    assert_eq!(world.violations, Vec::<String>::new());
}

#[test]
fn a_volume_grows_in_place_and_is_deleted_without_a_trace() {
    let mut world = running(2, SAFE);
    world.volume.spec.capacity_bytes *= 2;
    rounds(&mut world, 20);
    let array = world.nodes[0].array.as_ref().unwrap();
    assert_eq!(array.bytes, world.volume.spec.capacity_bytes, "{:#?}", world.volume);
    world.nodes[0].wanted = false;
    rounds(&mut world, 10);
    world.volume.deleting = true;
    rounds(&mut world, 20);
    assert!(!world.volume.finalizer);
    assert!(world.nodes.iter().all(|node| node.partitions.is_empty() && node.exports.is_empty()));
    assert!(world.disks.is_empty());
}

/// A healthy consumer is not robbed.
#[test]
fn a_second_pod_waits_until_the_first_is_gone() {
    let mut world = running(2, SAFE);
    world.nodes[1].wanted = true;
    rounds(&mut world, 40);
    assert!(world.nodes[1].attached.is_none() && world.nodes[0].attached.is_some());
    world.nodes[0].wanted = false;
    rounds(&mut world, 60);
    assert!(world.nodes[1].attached.is_some(), "{:#?}", world.volume);
    assert_eq!(world.violations, Vec::<String>::new());
}

fn disturb(world: &mut World) {
    let node = world.chance(world.nodes.len());
    match world.chance(14) {
        0 => world.crash(node),
        1 | 2 => world.nodes[node].up = true,
        3 => world.nodes[node].has_api = false,
        4 | 5 => world.nodes[node].has_api = true,
        6 => {
            let other = world.chance(world.nodes.len());
            world.cuts.insert((node.min(other), node.max(other)));
        }
        7 | 8 => world.cuts.clear(),
        9 => {
            // The scheduler moves the pod; a node that does not hear of it keeps its own.
            let wanted = |world: &World, node: usize| world.nodes[node].has_api;
            for index in 0..world.nodes.len() {
                if wanted(world, index) {
                    world.nodes[index].wanted = index == node;
                }
            }
        }
        10 => world.interrupt(node),
        11 => {
            // A step that was carried out is carried out again.
            if let Some(Pending::Act(action)) = world.nodes[node].pending.front().cloned() {
                let again: Action = action;
                let _ = world.execute(node, &again);
            }
        }
        12 => world.now += 20,
        _ => world.now += 1,
    }
}

fn history(seed: u64, rules: Rules) -> World {
    let replicas = 1 + u16::try_from(seed % 3).unwrap();
    let mut world = World::new(seed, 3 + usize::try_from(seed % 2).unwrap(), replicas, rules);
    world.nodes[0].wanted = true;
    rounds(&mut world, 25);
    for _ in 0..2500 {
        let node = world.chance(world.nodes.len());
        match world.chance(40) {
            0 => disturb(&mut world),
            1..=3 => world.kubelet(node),
            4..=8 => world.cycle(node),
            9..=20 => world.advance(node),
            _ => world.io(node),
        }
        if !world.violations.is_empty() {
            break;
        }
    }
    world
}

#[test]
fn random_histories_never_lose_an_acknowledged_write() {
    let mut acks = 0;
    for seed in 0..400 {
        let mut world = history(seed, SAFE);
        let tail = world.log.len().saturating_sub(40);
        assert_eq!(
            world.violations,
            Vec::<String>::new(),
            "seed {seed}: {:#?}",
            &world.log[tail..]
        );
        acks += world.acks;
        // Everything is repaired: the volume works again, with all its copies.
        world.cuts.clear();
        for node in &mut world.nodes {
            (node.up, node.has_api, node.wanted) = (true, true, false);
        }
        rounds(&mut world, 30);
        world.nodes[0].wanted = true;
        rounds(&mut world, 250);
        let tail = world.log.len().saturating_sub(40);
        assert!(
            world.nodes[0].attached.is_some()
                && world.volume.status.in_sync.len() == usize::from(world.volume.spec.members()),
            "seed {seed} does not heal: {:#?}\n{:#?}\n{:#?}",
            world.volume,
            world.nodes[0],
            &world.log[tail..]
        );
        assert_eq!(
            world.violations,
            Vec::<String>::new(),
            "seed {seed}, while healing: {:#?}",
            &world.log[tail..]
        );
    }
    assert!(acks > 10_000, "{acks} writes were acknowledged");
}

#[test]
fn random_histories_without_a_rule_find_what_it_prevents() {
    for rules in [Rules { hold: false, ..SAFE }, Rules { fence: false, ..SAFE }] {
        let found = (0..400).any(|seed| !history(seed, rules).violations.is_empty());
        assert!(found, "{rules:?}");
    }
}

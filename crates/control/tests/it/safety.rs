//! What must not happen to disks, nodes and keys, whatever the order of things.

use std::time::Duration;

use control::controller::{Input, Request, RequestOutcome};
use control::testing::{Fault, Sim};
use model::*;

use crate::world::*;

fn liveness(sim: &Sim, node: &str) -> Liveness {
    sim.controller.node_seen(&good(node)).unwrap().status.unwrap().liveness
}

/// A disk that was swapped for an empty one is not formatted: the one with the data may come back.
#[test]
fn a_pool_that_was_made_is_never_made_again() {
    let mut sim = cluster(3);
    sim.insist(&create(1, 2)).unwrap();
    let lost = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    let pool: PoolName = good(&lost.as_str().replace('n', "p"));
    for restart in [false, true] {
        let engine = sim.cluster.engine(lost.as_str());
        engine.stop();
        engine.swap_disk(&pool);
        engine.start();
        if restart {
            sim.restart();
        }
        sim.pass(Duration::from_mins(5));
        assert!(!sim.cluster.engine(lost.as_str()).disks.contains(&pool), "it was formatted");
    }
    // Asked for once more, with the words that made it, it is there.
    assert_eq!(sim.insist(&create_pool(1)).unwrap(), RequestOutcome::Unchanged);
}

/// One question that was not answered says little; many do, and heartbeats do not outweigh them.
#[test]
fn a_node_is_in_doubt_only_after_several_failed_listings() {
    let mut sim = cluster(2);
    let told = |sim: &Sim| {
        let doubts = |it: &&control::controller::EventDraft| it.message.starts_with("in doubt");
        sim.told.iter().filter(doubts).count()
    };
    sim.cluster.engine("n1").mute = 2;
    sim.pass(Duration::from_secs(30));
    assert_eq!(sim.cluster.engine("n1").mute, 0);
    assert_eq!((liveness(&sim, "n1"), told(&sim)), (Liveness::Online, 0));
    sim.cluster.engine("n1").mute = 1000;
    sim.pass(Duration::from_secs(30));
    let reason = UnknownReason::ListingFailed;
    assert_eq!((liveness(&sim, "n1"), told(&sim)), (Liveness::Unknown { reason }, 1));
    sim.cluster.engine("n1").mute = 0;
    sim.pass(Duration::from_secs(3));
    assert_eq!((liveness(&sim, "n1"), told(&sim)), (Liveness::Online, 1));
}

/// A host whose agent died does not look as if it were well.
#[test]
fn a_host_that_falls_silent_is_seen_to_be_away() {
    let mut sim = cluster(1);
    let beat = || Heartbeat {
        instance: good("00000000-0000-4000-8000-000000000001"),
        version: "1".into(),
        address: HostAddress {
            nqn: good("nqn.2026-11.io.example:host"),
            agent: None,
            machine: None,
        },
        told: None,
    };
    let host: HostName = good("h1");
    let seen = |sim: &Sim| sim.controller.host_seen(&host).unwrap().status.unwrap().liveness;
    for _ in 0..8 {
        sim.controller.on(sim.now, Input::HostHeard(host.clone(), beat()));
        sim.pass(Duration::from_secs(2));
    }
    assert_eq!(seen(&sim), Liveness::Online);
    sim.pass(Duration::from_secs(15));
    assert_eq!(seen(&sim), Liveness::Offline { reason: OfflineReason::Lapsed });
    sim.controller.on(sim.now, Input::HostHeard(host.clone(), beat()));
    assert_eq!(seen(&sim), Liveness::Online);
}

/// What a host is connected to is what engines see, not what was wished for.
#[test]
fn a_host_uses_what_engines_see_it_connected_to() {
    let mut sim = cluster(2);
    let (host, nqn): (HostName, Nqn) = (good("h1"), good("nqn.2026-11.io.example:host"));
    let beat = Heartbeat {
        instance: good("00000000-0000-4000-8000-000000000001"),
        version: "1".into(),
        address: HostAddress { nqn: nqn.clone(), agent: None, machine: None },
        told: None,
    };
    for _ in 0..2 {
        sim.controller.on(sim.now, Input::HostHeard(host.clone(), beat.clone()));
        sim.run();
    }
    let attached = |sim: &Sim| sim.controller.host_seen(&host).unwrap().status.unwrap().attached;
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    assert_eq!(attached(&sim), [].into());
    let node = status(&sim, 1).target.unwrap().node;
    for serving in sim.cluster.engine(node.as_str()).targets.values_mut() {
        serving.status.connected.insert(nqn.clone());
    }
    sim.controller.on(sim.now, Input::NodeChanged(node));
    sim.run();
    let address = status(&sim, 1).target.unwrap().addresses[0];
    let path = PathStatus { address, state: PathState::Live };
    assert_eq!(attached(&sim), [(volume(1), vec![path])].into());
}

/// Every copy of an encrypted volume is: those it began with, and one that replaces a lost one.
#[test]
fn every_copy_of_an_encrypted_volume_is_encrypted() {
    let mut sim = cluster(3);
    let encryption = Some(Encryption { key: good("tenant-a") });
    let spec = VolumeSpec { encryption: encryption.clone(), ..spec(2) };
    sim.insist(&Request::CreateVolume(volume(1), Box::new(spec))).unwrap();
    sim.insist(&publish(1)).unwrap();
    let lost = sim.cluster.copies(volume(1)).into_values().next().unwrap();
    sim.cluster.engine(lost.as_str()).stop();
    sim.cluster.settle();
    sim.pass(Duration::from_mins(3));
    let engines = sim.cluster.engines.values().filter(|engine| engine.up);
    let keys: Vec<_> = engines.flat_map(|it| it.replicas.values()).map(|it| it.key()).collect();
    assert_eq!(keys, [encryption.as_ref(), encryption.as_ref()]);
}

/// A clone and a restored snapshot share the data key of their source, so they name its key.
#[test]
fn what_begins_with_encrypted_content_names_its_key() {
    let mut sim = cluster(3);
    let encryption = |key: &str| Some(Encryption { key: good(key) });
    let make = |number: u32, source: Option<Source>, encryption: Option<Encryption>| {
        let spec = VolumeSpec { source, encryption, ..spec(2) };
        Request::CreateVolume(volume(number), Box::new(spec))
    };
    sim.insist(&make(1, None, encryption("tenant-a"))).unwrap();
    sim.insist(&make(2, None, None)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&take(1, 1)).unwrap();
    let clone = Some(Source::Volume { volume: volume(1) });
    let restore = Some(Source::Snapshot { snapshot: snapshot(1) });
    let open = Some(Source::Volume { volume: volume(2) });
    for (source, key, says) in [
        (clone, None, "tenant-a"),
        (clone, encryption("tenant-b"), "tenant-a"),
        (restore, None, "tenant-a"),
        (restore, encryption("tenant-b"), "tenant-a"),
        (open, encryption("tenant-a"), "not encrypted"),
    ] {
        let refused = sim.insist(&make(3, source, key)).unwrap_err();
        assert_eq!(refused.kind, ProblemKind::InvalidArgument, "{refused:?}");
        assert_eq!(refused.field.as_deref(), Some("encryption"), "{refused:?}");
        assert!(refused.detail.contains(says), "{refused:?}");
    }
    sim.insist(&make(4, clone, encryption("tenant-a"))).unwrap();
    sim.insist(&make(5, restore, encryption("tenant-a"))).unwrap();
    settle(&mut sim);
}

/// Two engines must not have one pool, whatever became of an import.
#[test]
fn a_pool_whose_import_was_given_up_is_closed_again() {
    let mut sim = cluster(3);
    let change = |change| Request::ChangePool(good("p1"), change);
    let [from, to]: [NodeName; 2] = [good("n1"), good("n2")];
    let import = change(PoolChange::Import { node: to.clone(), disks: vec![good("/dev/new")] });
    let early = sim.insist(&import).unwrap_err();
    assert_eq!(early.kind, ProblemKind::InUse, "{early:?}");
    sim.insist(&change(PoolChange::Export {})).unwrap();
    assert!(sim.cluster.carry(&good("p1"), &from, &to));
    // The engine opens it, and falls silent before it can say so.
    sim.fault = Some((sim.done + 2, Fault::AnswerLost));
    let ticket = sim.ask(import.clone());
    sim.run();
    assert!(sim.cluster.engine("n2").has_open(&good("p1")));
    sim.cluster.engine("n2").stop();
    sim.pass(Duration::from_secs(15));
    let refused = sim.answers.remove(&ticket).unwrap().unwrap_err();
    assert_eq!(refused.kind, ProblemKind::NodeUnavailable, "{refused:?}");
    let ticket = sim.ask(import.clone());
    sim.run();
    assert_eq!(
        sim.answers.remove(&ticket).unwrap().unwrap_err().kind,
        ProblemKind::NodeUnavailable
    );
    sim.cluster.engine("n2").start();
    sim.pass(Duration::from_secs(15));
    assert!(!sim.cluster.engine("n2").has_open(&good("p1")), "it is open and nobody knows");
    sim.insist(&import).unwrap();
    assert!(sim.cluster.engine("n2").has_open(&good("p1")));
    settle(&mut sim);
}

/// A restored volume that was never served: a copy of it without content is no copy yet.
#[test]
fn the_only_copy_with_content_stays() {
    let mut sim = cluster(2);
    sim.insist(&create(1, 1)).unwrap();
    sim.insist(&publish(1)).unwrap();
    sim.insist(&take(1, 1)).unwrap();
    let source = Some(Source::Snapshot { snapshot: snapshot(1) });
    let restored = VolumeSpec { source, ..spec(2) };
    let ticket = sim.ask(Request::CreateVolume(volume(2), Box::new(restored)));
    sim.run();
    while !sim.answers.contains_key(&ticket) {
        sim.pass(Duration::from_millis(100));
    }
    // At this moment no target has copied anything.
    assert!(sim.cluster.record(volume(2)).is_none());
    let engines = sim.cluster.engines.values().flat_map(|engine| &engine.replicas);
    let of = engines.filter(|(_, copy)| copy.volume == volume(2));
    let full = of.filter(|(_, copy)| copy.spec.source.is_some()).map(|(id, _)| *id);
    let [full] = full.collect::<Vec<_>>()[..] else { panic!("one has the content") };
    assert_eq!(status(&sim, 2).state, VolumeState::Degraded);
    let remove = Request::RemoveReplica { volume: volume(2), replica: full };
    let ticket = sim.ask(remove);
    sim.run();
    let refused = sim.answers.remove(&ticket).unwrap().unwrap_err();
    assert_eq!(refused.kind, ProblemKind::LastReplica, "{refused:?}");
    settle(&mut sim);
}

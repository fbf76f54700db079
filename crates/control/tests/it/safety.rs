//! What must not happen to disks, nodes and keys, whatever the order of things.

use std::time::Duration;

use control::core::{Done, Input, Wish};
use control::testing::Sim;
use model::*;

use crate::world::*;

fn liveness(sim: &Sim, node: &str) -> Liveness {
    sim.core.node_seen(&good(node)).unwrap().status.unwrap().liveness
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
        assert!(sim.cluster.engine(lost.as_str()).blank.contains(&pool), "it was formatted");
    }
    // Asked for once more, with the words that made it, it is there.
    assert_eq!(sim.insist(&create_pool(1)).unwrap(), Done::Unchanged);
}

/// One question that was not answered says little; many do, and heartbeats do not outweigh them.
#[test]
fn a_node_is_in_doubt_only_after_several_failed_listings() {
    let mut sim = cluster(2);
    let told = |sim: &Sim| {
        let doubts = |it: &&control::core::Telling| it.message.starts_with("in doubt");
        sim.told.iter().filter(doubts).count()
    };
    sim.cluster.engine("n1").mute = 2;
    sim.pass(Duration::from_secs(30));
    assert_eq!(sim.cluster.engine("n1").mute, 0);
    assert_eq!((liveness(&sim, "n1"), told(&sim)), (Liveness::Online, 0));
    sim.cluster.engine("n1").mute = 1000;
    sim.pass(Duration::from_secs(30));
    let reason = Doubt::ListingFailed;
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
        address: HostAddress { nqn: good("nqn.2026-11.io.example:host"), agent: None },
    };
    let host: HostName = good("h1");
    let seen = |sim: &Sim| sim.core.host_seen(&host).unwrap().status.unwrap().liveness;
    for _ in 0..8 {
        sim.core.on(sim.now, Input::HostHeard(host.clone(), beat()));
        sim.pass(Duration::from_secs(2));
    }
    assert_eq!(seen(&sim), Liveness::Online);
    sim.pass(Duration::from_secs(15));
    assert_eq!(seen(&sim), Liveness::Offline { reason: Absence::Lapsed });
    sim.core.on(sim.now, Input::HostHeard(host.clone(), beat()));
    assert_eq!(seen(&sim), Liveness::Online);
}

/// Every copy of an encrypted volume is: those it began with, and one that replaces a lost one.
#[test]
fn every_copy_of_an_encrypted_volume_is_encrypted() {
    let mut sim = cluster(3);
    let encryption = Some(Encryption { key: good("tenant-a") });
    let spec = VolumeSpec { encryption: encryption.clone(), ..spec(2) };
    sim.insist(&Wish::CreateVolume(volume(1), Box::new(spec))).unwrap();
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
        Wish::CreateVolume(volume(number), Box::new(spec))
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
        assert_eq!(refused.kind, Kind::InvalidArgument, "{refused:?}");
        assert_eq!(refused.field.as_deref(), Some("encryption"), "{refused:?}");
        assert!(refused.detail.contains(says), "{refused:?}");
    }
    sim.insist(&make(4, clone, encryption("tenant-a"))).unwrap();
    sim.insist(&make(5, restore, encryption("tenant-a"))).unwrap();
    settle(&mut sim);
}

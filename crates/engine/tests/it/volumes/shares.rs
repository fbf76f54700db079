//! Places for connections: a stranger takes nobody else's.

use super::*;

/// Sockets that somebody opens and does nothing with.
fn idle(to: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(to).unwrap()).collect()
}

/// More than all places of an engine, on every one: hosts connect, replication comes back, and
/// those who were connected before notice nothing.
#[test]
fn a_stranger_with_many_sockets_starves_nobody() {
    let mut cluster = Cluster::new(2);
    for node in &mut cluster.nodes {
        let (unproven, discovery, hosts, per_address, replication) = (8, 2, 6, 6, 4);
        node.places = QuotaLimits { unproven, discovery, hosts, per_address, replication };
        node.stop();
        node.restart();
    }
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut before = cluster.connect(0);
    assert_eq!(write(&mut before, 1, 1), Ok(()));
    let mut strangers = idle(cluster.nodes[0].address, 100);
    strangers.extend(idle(cluster.nodes[1].address, 100));

    let mut session = cluster.connect(0);
    assert_eq!(read(&mut session, 1), Ok(1));
    // The stranger is there first when the engine comes back.
    cluster.nodes[1].stop();
    assert_eq!(write(&mut session, 1, 2), Ok(()));
    cluster.nodes[1].restart();
    strangers.extend(idle(cluster.nodes[1].address, 100));
    let back = cluster.nodes[1].replica;
    await_news(&told, |what| *what == EventKind::Child(back, ChildState::InSync));
    assert_eq!(read(&mut before, 1), Ok(2), "a host that was connected before");
    drop(strangers);
    cluster.stop();
}

/// A host that opens ever more connections finds an end, and leaves replication its places.
#[test]
fn hosts_do_not_take_the_places_of_replication() {
    let mut cluster = Cluster::new(2);
    for node in &mut cluster.nodes {
        let (unproven, discovery, hosts, per_address, replication) = (8, 2, 5, 5, 4);
        node.places = QuotaLimits { unproven, discovery, hosts, per_address, replication };
        node.stop();
        node.restart();
    }
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let name = name(&model::Nqn::volume(volume()));
    let connect = || {
        Session::connect(cluster.nodes[0].address, association(name.clone(), Options::default()))
    };
    let sessions: Vec<_> = std::iter::repeat_with(connect).map_while(Result::ok).take(10).collect();
    assert_eq!(sessions.len(), 2, "two connections each, of five");
    cluster.nodes[1].stop();
    cluster.nodes[1].restart();
    let back = cluster.nodes[1].replica;
    await_news(&told, |what| *what == EventKind::Child(back, ChildState::InSync));
    drop(sessions);
    cluster.stop();
}

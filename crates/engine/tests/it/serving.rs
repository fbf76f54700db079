//! What a host gets from a target.

use engine::client::Session;
use engine::serve::{Host, Server, StartError};
use nvme::auth::{Keys, Secret};
use nvme::initiator::Options;
use nvme::pdu::Digests;
use nvme::wire::Nqn;

use crate::harness::{address, association, config, connect, file, memory, nqn, verify};

#[test]
fn what_is_written_is_read_back_in_all_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let backings = vec![memory(64), file(&dir.path().join("disk"), 64)];
    let server = Server::start(config(backings, 1)).unwrap();
    let both = Digests { header: true, data: true };
    for (name, digests) in [("a", both), ("b", Digests::default()), ("b", both)] {
        let options = Options { digests, io_queues: 2, ..Options::default() };
        let mut session = connect(&server, name, options);
        // In the capsule; one transfer; the largest.
        for (blocks, depth) in [(1, 1), (1, 64), (2, 16), (3, 8), (32, 8), (256, 3)] {
            verify(&mut session, blocks, depth);
        }
        session.close().unwrap();
    }
    server.stop().unwrap();
}

#[test]
fn connections_move_to_the_core_of_their_subsystem() {
    let server = Server::start(config(vec![memory(8), memory(8), memory(8)], 2)).unwrap();
    for name in ["a", "b", "c"] {
        let options = Options { io_queues: 3, ..Options::default() };
        let mut session = connect(&server, name, options);
        verify(&mut session, 1, 32);
    }
    server.stop().unwrap();
}

#[test]
fn discovery_tells_every_subsystem_at_every_address() {
    let mut wanted = config(vec![memory(1), memory(1)], 2);
    wanted.listen.push("[::1]:0".parse().unwrap());
    let server = Server::start(wanted).unwrap();
    let name = Nqn::new(Nqn::DISCOVERY).unwrap();
    for address in server.addresses() {
        let options = Options { io_queues: 0, ..Options::default() };
        let mut session = Session::connect(*address, association(name.clone(), options)).unwrap();
        let found = session.discover().unwrap();
        for at in server.addresses() {
            for name in ["a", "b"] {
                assert!(
                    found.iter().any(|entry| entry.subsystem == nqn(name)
                        && entry.address == at.ip()
                        && entry.port == at.port()),
                    "{name} at {at}: {found:?}"
                );
            }
        }
        session.close().unwrap();
    }
    server.stop().unwrap();
}

/// Hosts are told an address that they can use, not the wildcard that the engine listens on.
#[test]
fn a_listener_on_all_addresses_is_found_by_the_one_the_host_came_by() {
    let mut wanted = config(vec![memory(1)], 2);
    wanted.listen = vec!["0.0.0.0:0".parse().unwrap(), "[::]:0".parse().unwrap()];
    let server = Server::start(wanted).unwrap();
    let [v4, v6] = [0, 1].map(|index| server.addresses()[index].port());
    let name = Nqn::new(Nqn::DISCOVERY).unwrap();
    for (by, expected) in [
        (format!("127.0.0.1:{v4}"), vec![format!("127.0.0.1:{v4}"), format!("127.0.0.1:{v6}")]),
        (format!("127.0.0.2:{v4}"), vec![format!("127.0.0.2:{v4}"), format!("127.0.0.2:{v6}")]),
        (format!("[::1]:{v6}"), vec![format!("[::1]:{v6}")]),
    ] {
        let options = Options { io_queues: 0, ..Options::default() };
        let by = by.parse().unwrap();
        let mut session = Session::connect(by, association(name.clone(), options)).unwrap();
        let found = session.discover().unwrap();
        let told: Vec<String> = found
            .iter()
            .filter(|entry| entry.subsystem == nqn("a"))
            .map(|entry| std::net::SocketAddr::new(entry.address, entry.port).to_string())
            .collect();
        assert_eq!(told, expected, "host came by {by}");
    }
    server.stop().unwrap();
}

#[test]
fn only_listed_hosts_with_their_secret_get_in() {
    let keys = |byte| Keys { host: Secret::new(&[byte; 32], None).unwrap(), controller: None };
    let mut wanted = config(vec![memory(8), memory(8)], 1);
    let closed = wanted.subsystems.get_mut(&nqn("a")).unwrap();
    closed.hosts.insert(nqn("somebody-else"), Host::default());
    let secret = wanted.subsystems.get_mut(&nqn("b")).unwrap();
    secret.hosts.insert(nqn("host"), Host { keys: Some(keys(1)), ..Host::default() });
    let server = Server::start(wanted).unwrap();
    let connect = |name: &str, keys: Option<Keys>| {
        let mut association = association(nqn(name), Options::default());
        association.keys = keys;
        Session::connect(address(&server), association)
    };
    assert!(connect("a", None).is_err());
    assert!(connect("b", None).is_err());
    assert!(connect("b", Some(keys(2))).is_err());
    verify(&mut connect("b", Some(keys(1))).unwrap(), 1, 8);
    assert!(connect("nowhere", None).is_err());
    server.stop().unwrap();
}

#[test]
fn a_bad_configuration_says_why() {
    let mut wanted = config(vec![memory(1)], 1);
    wanted.cores = vec![100_000];
    assert!(matches!(Server::start(wanted), Err(StartError::Core { core: 100_000, .. })));
    let missing = engine::serve::Backing::File {
        path: "/nonexistent/disk".into(),
        block_size: block::BlockSize::B4096,
    };
    let error = Server::start(config(vec![missing], 1)).err().unwrap();
    assert!(matches!(error, StartError::Serve(_)), "{error}");
    let server = Server::start(config(vec![memory(1)], 1)).unwrap();
    let mut taken = config(vec![memory(1)], 1);
    taken.listen = vec![address(&server)];
    assert!(matches!(Server::start(taken), Err(StartError::Listen { .. })));
    server.stop().unwrap();
}

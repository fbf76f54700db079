//! How engines meet: proofs on both sides, and checksums on the way.

use std::os::unix::fs::PermissionsExt as _;

use engine::replication::ClusterSecret;
use model::FaultReason;
use nvme::auth::{Keys, Secret};
use nvme::pdu::Digests;

use super::*;

/// The file of an engine's secret, and what it makes of it.
#[derive(Debug)]
struct File {
    dir: tempfile::TempDir,
    secret: Arc<ClusterSecret>,
}

impl File {
    fn new(secrets: &[u8]) -> File {
        let dir = tempfile::tempdir().unwrap();
        write_secrets(dir.path(), secrets);
        let secret = Arc::new(ClusterSecret::read(&dir.path().join("secret")).unwrap());
        File { dir, secret }
    }

    fn replace(&self, secrets: &[u8]) {
        write_secrets(self.dir.path(), secrets);
        assert_eq!(self.secret.reload().unwrap(), Some(secrets.len()));
    }

    fn replication(&self) -> Replication {
        Replication { secret: Some(Arc::clone(&self.secret)), ..Replication::default() }
    }
}

/// The line that lets engines without a secret in.
const NONE: u8 = 0;

fn write_secrets(dir: &Path, secrets: &[u8]) {
    let line = |byte: &u8| match *byte {
        NONE => "none\n".to_owned(),
        byte => format!("{byte:02x}").repeat(32) + "\n",
    };
    let text: String = secrets.iter().map(line).collect();
    let path = dir.join("secret");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// What somebody says who connects to a replica as if it were a target of the cluster.
fn stranger(node: &Node, keys: Option<Keys>) -> Result<Session, String> {
    let replica = name(&model::Nqn::replica(node.replica));
    let mut copy = association(replica, Options::default());
    copy.host.nqn = nqn("node");
    copy.keys = keys;
    Session::connect(node.address, copy).map_err(|error| error.to_string())
}

#[test]
fn strangers_neither_read_nor_write_nor_reserve_a_replica() {
    let file = File::new(&[0x5A]);
    let cluster = Cluster::with([file.replication(), file.replication()]);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut session = cluster.connect(0);
    verify(&mut session, 8, 16);
    assert!((0..2).all(|node| in_sync(&cluster, node)), "engines of one cluster meet");

    let guess = Secret::new(&[0x5B; 32], None).unwrap();
    let guesses = [
        None,
        Some(Keys { host: guess.clone(), controller: None }),
        Some(Keys { host: guess.clone(), controller: Some(guess) }),
        // The secret itself is no key: those are made of it, for each pair of names.
        Some(Keys { host: Secret::new(&[0x5A; 32], None).unwrap(), controller: None }),
    ];
    for (keys, node) in guesses.into_iter().zip([0, 1].into_iter().cycle()) {
        let refused = stranger(&cluster.nodes[node], keys);
        let why = refused.err().expect("a stranger got through to a replica");
        assert!(why.contains("authenticat"), "{why}");
    }
    verify(&mut session, 8, 16);
    assert!((0..2).all(|node| in_sync(&cluster, node)));
    cluster.stop();
}

#[test]
fn an_engine_with_another_secret_is_told_apart_and_comes_in_with_the_right_one() {
    let (ours, other) = (File::new(&[1]), File::new(&[2]));
    let cluster = Cluster::with([ours.replication(), other.replication()]);
    let told = cluster.open(0, 200);
    let away = cluster.nodes[1].replica;
    let reason = FaultReason::Unauthenticated;
    let is_told =
        |what: &EventKind| *what == EventKind::Child(away, ChildState::Faulted { reason });
    await_news(&told, is_told);
    other.replace(&[1]);
    await_news(&told, |what| *what == EventKind::Child(away, ChildState::InSync));
    cluster.stop();
}

/// An engine without a secret is none of the cluster, in either direction.
#[test]
fn an_engine_without_a_secret_and_one_with_do_not_meet() {
    for with in [0, 1] {
        let file = File::new(&[1]);
        let engines = [Replication::default(), file.replication()];
        let cluster = Cluster::with([engines[with].clone(), engines[1 - with].clone()]);
        let told = cluster.open(0, 200);
        let away = cluster.nodes[1].replica;
        let reason = FaultReason::Unauthenticated;
        await_news(&told, |what| *what == EventKind::Child(away, ChildState::Faulted { reason }));
        cluster.stop();
    }
}

/// The three steps of a rotation, each on one engine after the other: at every moment an engine can
/// be lost and found again.
#[test]
fn a_secret_is_replaced_while_engines_come_and_go() {
    let files = [File::new(&[1]), File::new(&[1])];
    let mut cluster = Cluster::with(files.each_ref().map(File::replication));
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let back = cluster.nodes[1].replica;
    let mut session = cluster.connect(0);
    for secrets in [&[1, 2][..], &[2, 1], &[2]] {
        for file in &files {
            file.replace(secrets);
            cluster.nodes[1].stop();
            assert_eq!(write(&mut session, 1, secrets[0]), Ok(()));
            cluster.nodes[1].restart();
            await_news(&told, |what| *what == EventKind::Child(back, ChildState::InSync));
        }
    }
    assert!(stranger(&cluster.nodes[1], None).is_err());
    cluster.stop();
}

/// Engines get a secret one after the other, and then the line goes that lets others in, on one
/// after the other: any two engines of a step meet, whichever of them has the target.
#[test]
fn a_secret_is_introduced_without_an_outage() {
    let (none, open, closed) = (None, Some(File::new(&[1, NONE])), Some(File::new(&[1])));
    let of = |file: &Option<File>| file.as_ref().map_or(Replication::default(), File::replication);
    for (first, second) in
        [(&none, &open), (&open, &none), (&open, &open), (&open, &closed), (&closed, &open)]
    {
        let cluster = Cluster::with([of(first), of(second)]);
        let told = cluster.open(0, 200);
        await_news(&told, is_open);
        verify(&mut cluster.connect(0), 8, 16);
        assert!((0..2).all(|node| in_sync(&cluster, node)), "{first:?} and {second:?}");
        cluster.stop();
    }
    let file = open.unwrap();
    let cluster = Cluster::with([file.replication(), file.replication()]);
    assert!(stranger(&cluster.nodes[1], None).is_ok(), "whoever has no secret yet is let in");
    file.replace(&[1]);
    assert!(stranger(&cluster.nodes[1], None).is_err());
    cluster.stop();
}

/// A way that changes one bit of the first data block of a write that it carries.
fn flipping(to: SocketAddr, marker: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let left = Arc::new(AtomicU64::new(1));
    std::thread::spawn(move || {
        for here in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(to).unwrap();
            for (mut from, mut to, left) in [
                (here.try_clone().unwrap(), there.try_clone().unwrap(), Some(Arc::clone(&left))),
                (there.try_clone().unwrap(), here.try_clone().unwrap(), None),
            ] {
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let found = bytes[..count].windows(64).position(|w| w == [marker; 64]);
                        if let (Some(at), Some(left)) = (found, &left)
                            && left.swap(0, Ordering::Relaxed) == 1
                        {
                            bytes[at + 32] ^= 1;
                        }
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    // Whoever waits for more is told; it may know already.
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// A bit that changes between target and replica: the pool would give the wrong bytes a right sum.
#[test]
fn a_bit_flipped_on_the_way_to_a_replica_is_not_kept() {
    let mut cluster = Cluster::new(2);
    cluster.nodes[1].through = flipping(cluster.nodes[1].address, 0xA7);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut session = cluster.connect(0);
    assert_eq!(write(&mut session, 77, 0xA7), Ok(()));
    flush(&mut session);
    let far = cluster.nodes[1].replica;
    while !in_sync(&cluster, 1) {
        await_news(&told, |what| *what == EventKind::Child(far, ChildState::InSync));
    }
    flush(&mut session);
    assert!(place_of(&cluster.nodes[1].disk, 0xA7).is_some(), "the replica keeps other bytes");
    cluster.stop();
}

#[test]
fn digests_can_be_switched_off() {
    let plain = Replication { digests: Digests::default(), ..Replication::default() };
    let cluster = Cluster::with([plain.clone(), plain]);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    verify(&mut cluster.connect(0), 8, 16);
    cluster.stop();
}

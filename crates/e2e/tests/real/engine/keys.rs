//! Encrypted replicas: their keys are files, and nobody reads them without.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use api::Effect;
use api::node::Node;
use e2e::process::{Program, holdfast};
use model::*;

use super::rig::{Disk, Rig, disk, id, kind, order, pool_spec, replica_spec};

/// A folder of keys that only their owner may read.
struct Keys(PathBuf);

impl Keys {
    fn new(folder: &Path) -> Keys {
        let keys = folder.join("keys");
        fs::create_dir(&keys).unwrap();
        Keys(keys)
    }

    /// Makes a key of one hexadecimal digit.
    fn put(&self, name: &str, digit: char) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, format!("{}\n", digit.to_string().repeat(64))).unwrap();
        self.allow(name, 0o600);
        path
    }

    fn allow(&self, name: &str, mode: u32) {
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.join(name)).unwrap();
    }
}

fn encrypted(key: &str) -> ReplicaSpec {
    let encryption = Some(Encryption { key: key.parse().unwrap() });
    ReplicaSpec { encryption, ..replica_spec(16, true) }
}

/// Whether a file holds a block of this byte somewhere.
fn holds(file: &Path, byte: u8) -> bool {
    fs::read(file).unwrap().chunks(4096).any(|block| block.iter().all(|found| *found == byte))
}

#[tokio::test]
async fn an_encrypted_replica_is_only_had_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let (home, file) = (folder.path().join("engine"), disk(folder.path(), "disk", 128));
    let keys = Keys::new(folder.path());
    let words = ["--keys", keys.0.to_str().unwrap()];
    let tank: PoolName = "tank".parse().unwrap();
    let (secret, open, clone, snapshot) = (id(20), id(21), id(22), id(30));
    keys.put("first", 'a');

    let mut rig = Rig::start("node-1", &home, &words);
    let node = &rig.remote;
    node.put_pool(tank.clone(), order(1, pool_spec("node-1", &file))).await.unwrap();
    let unknown = node.put_replica(secret, order(1, encrypted("other"))).await;
    assert_eq!(kind(unknown), ProblemKind::PermissionDenied);
    keys.allow("first", 0o644);
    let problem = node.put_replica(secret, order(2, encrypted("first"))).await.unwrap_err();
    assert!(problem.detail.contains("chmod 600"), "{problem:?}");
    keys.allow("first", 0o600);
    let made = node.put_replica(secret, order(3, encrypted("first"))).await.unwrap();
    assert_eq!((made.effect, made.now.status.state), (Effect::Created, ReplicaState::Online));
    let plain = ReplicaSpec { volume: id(11), ..replica_spec(16, true) };
    node.put_replica(open, order(1, plain.clone())).await.unwrap();
    let (mut host, mut other) =
        (Disk::connect(rig.data, secret).unwrap(), Disk::connect(rig.data, open).unwrap());
    host.write(3, 0x5A);
    other.write(3, 0x6B);
    assert_eq!(host.read(3), 0x5A);
    // What is not encrypted is found on the disk; what is, is not.
    assert!(holds(&file, 0x6B) && !holds(&file, 0x5A));
    let taken_at = Timestamp::from_millis(5);
    let consistency = Consistency::Crash;
    let request = api::node::SnapshotRequest { group: None, taken_at, consistency };
    node.put_snapshot(secret, snapshot, request).await.unwrap();
    // Whether it is encrypted cannot change.
    let changed = node.put_replica(secret, order(4, replica_spec(16, true))).await;
    assert_eq!(kind(changed), ProblemKind::AlreadyExists);
    let spec = ReplicaSpec { volume: id(11), ..encrypted("first") };
    assert_eq!(kind(node.put_replica(open, order(4, spec)).await), ProblemKind::AlreadyExists);

    // Without its key it is there, and not to be had; the others are.
    rig.program.kill().unwrap();
    keys.remove("first");
    let mut rig = Rig::start("node-1", &home, &words);
    let node = &rig.remote;
    let found = node.replica(secret).await.unwrap();
    assert!(matches!(found.status.state, ReplicaState::Faulted { .. }), "{found:?}");
    keys.put("wrong", 'b');
    let wrong = node.put_replica(secret, order(5, encrypted("wrong"))).await.unwrap_err();
    assert_eq!(wrong.kind, ProblemKind::PermissionDenied);
    assert!(wrong.detail.contains("opens the replica"), "{wrong:?}");
    node.put_replica(open, order(5, plain)).await.unwrap();
    assert_eq!(Disk::connect(rig.data, open).unwrap().read(3), 0x6B);

    // The key comes back while the engine runs; then another one takes its place.
    keys.put("first", 'a');
    let again = node.put_replica(secret, order(6, encrypted("first"))).await.unwrap();
    assert_eq!((again.effect, again.now.status.state), (Effect::Changed, ReplicaState::Online));
    assert_eq!(Disk::connect(rig.data, secret).unwrap().read(3), 0x5A);
    keys.put("second", 'c');
    let rotated = node.put_replica(secret, order(7, encrypted("second"))).await.unwrap();
    assert_eq!(rotated.effect, Effect::Changed);
    Disk::connect(rig.data, secret).unwrap().write(4, 0x5C);

    // From now on the old key is not needed, for its snapshot neither.
    rig.program.kill().unwrap();
    keys.remove("first");
    let rig = Rig::start("node-1", &home, &words);
    let node = &rig.remote;
    let found = node.replica(secret).await.unwrap();
    assert_eq!(found.spec.encryption, encrypted("second").encryption);
    node.put_replica(secret, order(7, encrypted("second"))).await.unwrap();
    let mut host = Disk::connect(rig.data, secret).unwrap();
    assert_eq!((host.read(3), host.read(4)), (0x5A, 0x5C));
    let source = ReplicaSpec { source: Some(snapshot), volume: id(12), ..encrypted("second") };
    node.put_replica(clone, order(1, source)).await.unwrap();
    let mut copy = Disk::connect(rig.data, clone).unwrap();
    assert_eq!((copy.read(3), copy.read(4)), (0x5A, 0));
    assert!(!holds(&file, 0x5A) && !holds(&file, 0x5C));
    // Nothing of a key was ever said.
    let said = rig.program.said();
    assert!(!['a', 'b', 'c'].iter().any(|digit| said.contains(&digit.to_string().repeat(16))));
}

/// `engine serve` with one replica; `key` is the option for it.
fn serve(file: &Path, key: &str) -> std::process::Command {
    let mut command = holdfast().unwrap();
    command.args(["engine", "serve", "--listen", "127.0.0.1:0", "--pool"]);
    command.arg(format!("tank={},create,size=64MiB", file.display()));
    command.args(["--ns", &format!("{}=replica:tank/vol,size=16MiB{key}", Nqn::replica(id(20)))]);
    command
}

fn started(file: &Path, key: &str) -> (Program, std::net::SocketAddr) {
    let program = Program::start(&mut serve(file, key)).unwrap();
    let listening = |line: &str| line.strip_prefix("listening on ").map(str::to_owned);
    let address = program.wait_for("where it listens", listening).unwrap();
    (program, address.parse().unwrap())
}

#[test]
fn a_key_file_is_enough_without_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("disk");
    let keys = Keys::new(folder.path());
    let option = |path: &Path| format!(",key={}", path.display());
    let (right, wrong) = (option(&keys.put("right", 'd')), option(&keys.put("wrong", 'e')));
    let (mut engine, address) = started(&file, &right);
    Disk::hold_served(address, id(20)).unwrap().write(7, 0x5A);
    assert!(!holds(&file, 0x5A));
    engine.kill().unwrap();
    for (key, says) in [("", "give the file of its key"), (&wrong, "does not open this replica")] {
        let refused = serve(&file, key).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(says), "{said}");
        assert!(!said.contains("eeeeeeee"), "{said}");
    }
    let (mut engine, address) = started(&file, &right);
    assert_eq!(Disk::hold_served(address, id(20)).unwrap().read(7), 0x5A);
    assert!(engine.stop().unwrap().success());
}

//! A real kube-apiserver on the embedded store, as it runs on etcd.

use std::path::PathBuf;
use std::process::Command;

use e2e::process::Program;
use e2e::store::{Kind, StoreServer, free_port};

/// Where `cargo xtask test kubernetes` leaves the programs of Kubernetes.
fn program(name: &str) -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()).map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let path = given.or(home)?.join("holdfast/k8s/bin").join(name);
    path.is_file().then_some(path)
}

fn start_apiserver(program: &PathBuf, store: &StoreServer, port: u16) -> Program {
    let dir = store.dir();
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(dir.join("accounts.key"), key.serialize_pem()).unwrap();
    std::fs::write(dir.join("accounts.pub"), key.public_key_pem()).unwrap();
    std::fs::write(dir.join("tokens"), "secret,admin,1,\"system:masters\"\n").unwrap();
    let path = |name: &str| dir.join(name).display().to_string();
    let mut command = Command::new(program);
    command.args([
        &format!("--etcd-servers={}", store.endpoint()),
        "--bind-address=127.0.0.1",
        &format!("--secure-port={port}"),
        &format!("--cert-dir={}", path("certificates")),
        "--service-account-issuer=https://kubernetes.default.svc",
        &format!("--service-account-signing-key-file={}", path("accounts.key")),
        &format!("--service-account-key-file={}", path("accounts.pub")),
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=AlwaysAllow",
        &format!("--token-auth-file={}", path("tokens")),
    ]);
    Program::start(&mut command).unwrap()
}

#[test]
fn kube_apiserver_lists_and_watches_through_compaction_and_restart() {
    let Some(apiserver) = program("kube-apiserver") else {
        println!("skipped: there is no kube-apiserver; run `cargo xtask test kubernetes`");
        return;
    };
    let mut store = StoreServer::start(Kind::Embedded).unwrap();
    let port = free_port().unwrap();
    let _apiserver = start_apiserver(&apiserver, &store, port);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/store/apiserver.py");
    let address = format!("127.0.0.1:{port}");
    let mut command = Command::new("python3");
    command.args([script, &address, "secret", &store.endpoint()]);
    let mut client = Program::start(&mut command).unwrap();
    let made = ["made 1000", "made 2000", "made 3000", "made 4000", "made 5000"];
    for step in ["ready"].into_iter().chain(made).chain(["listed", "watching"]) {
        let said = client.wait_for(step, |line| line.starts_with(step).then_some(()));
        assert!(said.is_ok(), "{}", client.said());
    }
    store.program().kill().unwrap();
    store.restart().unwrap();
    let ended = client.wait().unwrap();
    assert!(ended.success(), "{}", client.said());
    assert!(client.said().lines().any(|line| line.starts_with("whole: 5000 objects, 601 events")));
}

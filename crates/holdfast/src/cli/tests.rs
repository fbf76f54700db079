//! What users see, against a control plane in memory behind the real server and the real client.
//!
//! Golden files lie in `golden/`; `HOLDFAST_BLESS=1 cargo test -p holdfast` writes them anew.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use api::events::Log;
use api::rest::fake::Fake;
use api::rest::{Issue, Purge, Quarantined};
use api::{Guard, Server};
use clap::{Parser, Subcommand};
use model::*;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use super::{ClusterCommand, Noun, pool};

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Cluster(ClusterCommand),
    Pool(Noun<pool::Verb>),
}

impl Command {
    async fn write(self, to: &mut (dyn std::io::Write + Send)) -> anyhow::Result<()> {
        match self {
            Command::Cluster(typed) => typed.write(to).await,
            Command::Pool(noun) => {
                let (remote, mut out) = noun.open(to)?;
                noun.verb.run(&remote, &mut out).await
            }
        }
    }
}

fn golden<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/golden").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn record<R: envelope::Versioned>(name: &str) -> R {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/golden").join(name);
    envelope::decode(&std::fs::read(path).unwrap()).unwrap()
}

/// A cluster with one of everything, as the golden files of the model have it.
fn cluster() -> Fake {
    let fake = Fake::at("2026-11-15T21:30:58.000Z".parse().unwrap());
    let node: Node = golden("node.json");
    let trouble = Issue {
        subject: Subject::Volume(*golden::<Volume>("volume.json").id()),
        severity: Severity::Warning,
        message: "1 of 3 copies is not in sync; node-2 has been away for 40 s".to_owned(),
    };
    let purge =
        Purge { lost_volumes: [*golden::<Volume>("volume.json").id()].into(), ..Purge::default() };
    fake.has((node.id().as_str(), purge))
        .has((node.id().clone(), golden::<BlockDevice>("block-device.json")))
        .has(node)
        .has(golden::<Host>("host.json"))
        .has(golden::<Pool>("pool.json"))
        .has(golden::<Volume>("volume.json"))
        .has(golden::<Volume>("volume-small.json"))
        .has(golden::<Webhook>("watch.json"))
        .has(golden::<Snapshot>("snapshot.json"))
        .has(golden::<SnapshotGroup>("snapshot-group.json"))
        .has(golden::<Replica>("replica.json"))
        .has(golden::<Target>("target.json"))
        .has(record::<Rebuild>("stored-rebuild.json"))
        .has(record::<Failover>("stored-failover.json"))
        .has(record::<Event>("stored-event.json"))
        .has(Quarantined {
            record: record("stored-quarantine.json"),
            until: None,
            node: Some("node-1".parse().unwrap()),
            used: Some(Size::gib(3)),
        })
        .has(trouble);
    fake
}

struct Running {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl Running {
    async fn with(fake: Fake) -> Running {
        Running::guarded(fake, Guard::default()).await
    }

    async fn guarded(fake: Fake, guard: Guard) -> Running {
        let limits = Guard::default().limits;
        let server = Server::bind(([127, 0, 0, 1], 0).into(), None, limits).await.unwrap();
        let address = server.local_addr().unwrap();
        let instance = "00000000-0000-4000-8000-000000000001".parse().unwrap();
        let events = Arc::new(Log::new(instance, 4.try_into().unwrap()));
        let router = api::rest::router(fake, events, guard);
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(server.run(router, async move {
            let _ = stopped.await;
        }));
        Running { address, _stop: stop }
    }

    /// What the command prints, or its error.
    async fn run(&self, line: &str) -> String {
        let server = format!("--server={}", self.address);
        let args = std::iter::once("holdfast").chain(line.split(' '));
        let args = args.map(str::to_owned).chain([server]);
        let cli = match Cli::try_parse_from(args) {
            Ok(cli) => cli,
            Err(error) => return format!("usage: {}\n", error.to_string().trim_end()),
        };
        let mut text = Vec::new();
        match cli.command.write(&mut text).await {
            Ok(()) => String::from_utf8(text).unwrap(),
            Err(error) => format!("error: {error:#}\n"),
        }
    }
}

/// Each command with what it prints, one after another, against one cluster.
async fn check(file: &str, lines: &[&str]) {
    let running = Running::with(cluster()).await;
    let mut seen = String::new();
    for line in lines {
        let printed = running.run(line).await;
        seen.extend(["$ holdfast ", line, "\n", &printed, "\n"]);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &seen).unwrap();
    }
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(seen == wanted, "{file} is not what is printed; HOLDFAST_BLESS=1 accepts:\n{seen}");
}

const VOLUME: &str = "00000000-0000-4000-8000-000000000010";
const ASIDE: &str = "00000000-0000-4000-8000-000000000021";
const REPLICA: &str = "00000000-0000-4000-8000-000000000020";

#[tokio::test]
async fn tables() {
    let get = format!("volume get {VOLUME}");
    let lines = [
        "status",
        "volume list",
        "volume list -o wide",
        &get,
        "node list",
        "node get node-1",
        "pool list",
        "snapshot list",
        "group list",
        "replica list -o wide",
        "quarantine list -o wide",
        "target list",
        "rebuild list",
        "failover list",
        "spec list",
        "spec list --key nothing",
        "device list node-1",
        "device list node-1 -o wide",
        "event list",
        "host list",
        "host list -o wide",
        "webhook list",
        "webhook get pager",
        "volume list --state faulted",
        "volume list --label app=db",
    ];
    check("tables.txt", &lines).await;
}

#[tokio::test]
async fn json_and_yaml_are_what_rest_answers() {
    let running = Running::with(cluster()).await;
    let json = running.run(&format!("volume get {VOLUME} -o json")).await;
    assert_eq!(serde_json::from_str::<Volume>(&json).unwrap(), golden("volume.json"));
    let list = running.run("volume list -o json").await;
    assert_eq!(serde_json::from_str::<Vec<Volume>>(&list).unwrap().len(), 2);
    let yaml = running.run("node get node-1 -o yaml").await;
    assert!(yaml.contains("\n  address:\n    api: \"10.0.0.1:8421\"\n"), "{yaml}");
}

#[tokio::test]
async fn verbs() {
    let id = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";
    let small = "00000000-0000-4000-8000-000000000011";
    let lines = [
        format!("volume create --id {id} --size 10GiB --replicas 1 --label app=web"),
        format!("volume create --id {id} --size 10GiB --replicas 1 --label app=web"),
        format!("volume create --id {id} --size 20GiB --replicas 1"),
        format!("volume resize {id} 20GiB"),
        format!("volume resize {id} 5GiB"),
        format!("volume set {id} --iops 500 --label app-"),
        format!("volume publish {id} --host worker-7"),
        format!("volume delete {id}"),
        format!("volume delete {id} --yes"),
        format!("volume unpublish {id}"),
        format!("volume delete {id} --yes"),
        format!("volume delete {id} --yes"),
        format!("volume placement {VOLUME}"),
        format!("volume get {small}"),
        "volume create --size 1PiB --replicas 1".to_owned(),
        format!("volume create --id {id} --size 1GiB --replicas 3"),
        format!("volume get {id}"),
        "pool get nothing".to_owned(),
        "pool delete pool-1 --yes".to_owned(),
        "node label node-1 rack=7 disk-".to_owned(),
        "node purge node-1 --preview".to_owned(),
        "node purge node-1".to_owned(),
        "node purge node-1 --yes".to_owned(),
        format!("replica scrub {REPLICA} --wait"),
        format!("quarantine restore {ASIDE} --snapshot {id}"),
        format!("quarantine delete {ASIDE}"),
        format!("quarantine delete {ASIDE} --yes"),
        format!("quarantine delete {ASIDE} --yes"),
        format!("quarantine restore {ASIDE} --snapshot {id}"),
        format!("replica reset-fence {REPLICA} --epoch 7"),
        format!("replica reset-fence {REPLICA} --epoch 7 --yes"),
        "webhook create chat --url http://chat.example.org/hook --severity error".to_owned(),
        "webhook create chat --url http://chat.example.org/hook --severity error".to_owned(),
        "webhook create chat --url http://chat.example.org/other".to_owned(),
        "webhook set chat --url http://chat.example.org/other --any-severity".to_owned(),
        "webhook get chat".to_owned(),
        "webhook delete chat --yes".to_owned(),
        "webhook delete chat --yes".to_owned(),
        "webhook create file --url file:///etc/passwd".to_owned(),
        format!("webhook create both --url http://a --volume {VOLUME} --node node-1"),
        format!("volume resize {small} 2MiB --watch"),
        "pool delete pool-1 --yes --watch".to_owned(),
        "dump --to - --watch".to_owned(),
        "volume get 7".to_owned(),
        "volume list --state sad".to_owned(),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    check("verbs.txt", &lines).await;
}

#[tokio::test]
async fn things_are_called_by_name_or_by_the_beginning_of_an_id() {
    let id = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";
    let create = format!("volume create --id {id} --size 10GiB --replicas 1 --name web-db");
    let lines = [
        create.as_str(),
        "volume create --size 1GiB --replicas 1 --name web-db",
        "volume create --size 1GiB --replicas 1 --name 5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a11",
        "volume get web-db",
        "volume get 5f0c",
        "volumes get WEB-DB",
        "volume get 0000",
        "volume get web",
        "volume get a/b",
        "volume resize web-db --size 20GiB",
        "volume resize web-db 30GiB --size 40GiB",
        "volume resize web-db",
        "vol set web-db --name billing",
        "snap create billing --name before --id 5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a12",
        "snap get before",
        "snapshot delete before --yes",
        "replicas list --volume billing",
        "groups list",
        "volume delete billing --yes",
    ];
    check("names.txt", &lines).await;
}

#[tokio::test]
async fn a_resize_is_waited_for() {
    let running = Running::with(cluster()).await;
    let id = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";
    running.run(&format!("volume create --id {id} --size 10GiB --replicas 1")).await;
    let grown = running.run(&format!("volume resize {id} 20GiB --wait")).await;
    assert_eq!(grown, format!("volume {id} changed\n"));
    let again = running.run(&format!("volume resize {id} 20GiB --wait")).await;
    assert!(again.contains("unchanged"), "{again}");
}

#[tokio::test]
async fn a_dump_has_everything_and_no_secret() {
    let running = Running::with(cluster()).await;
    let text = running.run("dump --to -").await;
    let dump: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(dump["volumes"].as_array().unwrap().len(), 2);
    assert_eq!(dump["devices"]["node-1"].as_array().unwrap().len(), 1);
    assert!(!text.contains("pager.example.org"), "the address of a webhook may be a secret");
    for part in ["status", "specs", "nodes", "pools", "targets", "rebuilds", "events", "metrics"] {
        assert!(!dump[part].is_null() && dump[part].get("problem").is_none(), "{part}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_named_with_what_to_do() {
    let mut text = Vec::new();
    let line = ["holdfast", "volume", "list", "--server", "127.0.0.1:1"];
    let error = Cli::parse_from(line).command.write(&mut text).await.unwrap_err();
    let said = format!("{error:#}");
    assert!(said.contains("127.0.0.1:1") && said.contains("is it running"), "{said}");
}

#[tokio::test]
async fn a_dump_of_nothing_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dump.json");
    let line = ["holdfast", "dump", "--server", "127.0.0.1:1", "--to", file.to_str().unwrap()];
    let mut text = Vec::new();
    Cli::parse_from(line).command.write(&mut text).await.unwrap();
    let said = String::from_utf8(text).unwrap();
    assert!(said.contains("could not be had, events for one"), "{said}");
    let running = Running::with(cluster()).await;
    let said = running.run(&format!("dump --to {}", file.display())).await;
    assert!(said.ends_with("it holds no secrets\n"), "{said}");
}

#[tokio::test]
async fn who_shows_no_token_is_told_how_to() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "viewer 0123456789abcdef0123456789abcdef\n").unwrap();
    let tokens = Some(Arc::new(api::Tokens::read(&file).unwrap()));
    let running = Running::guarded(cluster(), Guard { tokens, ..Guard::default() }).await;
    let said = running.run("volume list").await;
    assert!(said.contains("--token-file FILE") && said.contains("HOLDFAST_TOKEN_FILE"), "{said}");
    assert!(said.contains("viewer"), "{said}");
    let wrong = dir.path().join("wrong");
    std::fs::write(&wrong, "ffffffffffffffffffffffffffffffff\n").unwrap();
    let said = running.run(&format!("status --token-file {}", wrong.display())).await;
    assert!(said.contains("--token-file FILE"), "{said}");
}

#[test]
fn every_command_is_well_formed() {
    use clap::CommandFactory;
    crate::Cli::command().debug_assert();
}

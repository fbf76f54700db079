//! etcd's own command line cannot tell the two servers apart.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use e2e::process::Program;
use e2e::store::{KINDS, Kind, StoreServer};

/// `etcdctl` with its words for one server.
struct Ctl {
    endpoint: String,
}

impl Ctl {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").arg("--endpoints").arg(&self.endpoint).args(words);
        command
    }

    /// What it says, on both outputs; with its exit code if that is not 0.
    fn say(&self, words: &[&str]) -> String {
        self.say_with(words, "")
    }

    fn say_with(&self, words: &[&str], input: &str) -> String {
        let mut child = self
            .command(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        // Its log tells times and its own numbers; the error itself follows.
        for line in complaints.lines().filter(|line| !line.starts_with('{')) {
            said.push_str(line);
            said.push('\n');
        }
        if !output.status.success() {
            let _ = writeln!(said, "exit {:?}", output.status.code());
        }
        said.replace(&self.endpoint, "ENDPOINT")
    }

    fn start(&self, words: &[&str]) -> Program {
        Program::start(&mut self.command(words)).unwrap()
    }
}

/// Starts a server and waits until it answers.
async fn serving(kind: Kind) -> (StoreServer, Ctl) {
    let server = StoreServer::start(kind).unwrap();
    server.client().await.unwrap();
    // Without "http://": for `endpoint status` etcdctl 3.4 sends the endpoint as it is written as
    // the HTTP/2 authority, and a scheme there is a protocol error to anyone who looks.
    let endpoint = server.endpoint().replace("http://", "");
    (server, Ctl { endpoint })
}

/// Does the same with both servers; what was said must be the same, and as told here.
async fn same_on_both(act: impl Fn(&Ctl) -> Vec<String>, want: &[&str]) {
    for kind in KINDS {
        let (_server, ctl) = serving(kind).await;
        assert_eq!(act(&ctl), want, "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn put_get_del() {
    same_on_both(
        |ctl| {
            vec![
                ctl.say(&["put", "a/1", "one"]),
                ctl.say(&["put", "a/2", "two"]),
                ctl.say(&["put", "b", "three", "--prev-kv"]),
                ctl.say(&["get", "--prefix", "a/"]),
                ctl.say(&["get", "--prefix", "", "--keys-only", "--order", "DESCEND"]),
                ctl.say(&["get", "a/1", "--print-value-only"]),
                ctl.say(&["get", "a/1", "a/3", "--limit", "1"]),
                ctl.say(&["put", "a/1", "uno", "--prev-kv"]),
                ctl.say(&["get", "a/1", "--rev", "2"]),
                ctl.say(&["get", "a/1", "--rev", "999"]),
                ctl.say(&["del", "--prefix", "a/"]),
                ctl.say(&["del", "nothing"]),
                ctl.say(&["get", "--prefix", ""]),
                ctl.say(&["compact", "5"]),
                ctl.say(&["get", "a/1", "--rev", "2"]),
                ctl.say(&["put", "c", "x", "--lease", "1234"]),
            ]
        },
        &[
            "OK\n",
            "OK\n",
            "OK\n",
            "a/1\none\na/2\ntwo\n",
            "b\n\na/2\n\na/1\n\n",
            "one\n",
            "a/1\none\n",
            "OK\na/1\none\n",
            "a/1\none\n",
            "Error: etcdserver: mvcc: required revision is a future revision\nexit Some(1)\n",
            "2\n",
            "0\n",
            "b\nthree\n",
            "compacted revision 5\n",
            "Error: etcdserver: mvcc: required revision has been compacted\nexit Some(1)\n",
            "Error: etcdserver: requested lease not found\nexit Some(1)\n",
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn txn() {
    let txn =
        "value(\"k\") = \"1\"\nversion(\"k\") = \"1\"\n\nput k 2\nget k\n\nput k 3\nget k\n\n";
    same_on_both(
        |ctl| {
            vec![
                ctl.say(&["put", "k", "1"]),
                ctl.say_with(&["txn"], txn),
                ctl.say_with(&["txn"], txn),
                ctl.say_with(&["txn"], "\nput k 1\nput k 2\n\n\n"),
            ]
        },
        &[
            "OK\n",
            "SUCCESS\n\nOK\n\nk\n2\n",
            "FAILURE\n\nOK\n\nk\n3\n",
            "Error: etcdserver: duplicate key given in txn request\nexit Some(1)\n",
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases() {
    for kind in KINDS {
        let (_server, ctl) = serving(kind).await;
        let granted = ctl.say(&["lease", "grant", "600"]);
        let id = granted.split(' ').nth(1).unwrap().to_owned();
        assert_eq!(granted, format!("lease {id} granted with TTL(600s)\n"), "{kind:?}");
        assert_eq!(ctl.say(&["put", "k", "1", "--lease", &id]), "OK\n");
        let renewed = ctl.say(&["lease", "keep-alive", "--once", &id]);
        assert_eq!(renewed, format!("lease {id} keepalived with TTL(600)\n"), "{kind:?}");
        let left = ctl.say(&["lease", "timetolive", "--keys", &id]);
        assert!(left.starts_with(&format!("lease {id} granted with TTL(600s), remaining(")));
        assert!(left.ends_with("attached keys([k])\n"), "{kind:?}: {left}");
        assert_eq!(ctl.say(&["lease", "list"]), format!("found 1 leases\n{id}\n"), "{kind:?}");
        assert_eq!(ctl.say(&["lease", "revoke", &id]), format!("lease {id} revoked\n"));
        assert_eq!(ctl.say(&["get", "k"]), "", "{kind:?}");
        let gone = ctl.say(&["lease", "timetolive", &id]);
        assert_eq!(gone, format!("lease {id} already expired\n"), "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch() {
    for kind in KINDS {
        let (_server, ctl) = serving(kind).await;
        ctl.say(&["put", "w/a", "1"]);
        ctl.say(&["put", "w/a", "2"]);
        let watch = ctl.start(&["watch", "--prefix", "w/", "--rev", "3", "--prev-kv"]);
        ctl.say(&["put", "w/b", "3"]);
        ctl.say(&["del", "w/a"]);
        ctl.say(&["put", "w/end", "4"]);
        watch.wait_for("the last key", |line| (line == "w/end").then_some(())).unwrap();
        let said = watch.said();
        let want = "PUT\nw/a\n1\nw/a\n2\nPUT\nw/b\n3\nDELETE\nw/a\n2\nw/a\n\nPUT\nw/end";
        assert!(said.starts_with(want), "{kind:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_and_elect() {
    for kind in KINDS {
        let (_server, ctl) = serving(kind).await;
        assert_eq!(ctl.say(&["lock", "m", "echo", "held"]), "held\n", "{kind:?}");
        let first = ctl.start(&["elect", "e", "first"]);
        first.wait_for("its name", |line| (line == "first").then_some(())).unwrap();
        let second = ctl.start(&["elect", "e", "second"]);
        let listener = ctl.start(&["elect", "--listen", "e"]);
        listener.wait_for("the leader", |line| (line == "first").then_some(())).unwrap();
        drop(first);
        // Killed, it leaves its key to its lease: ending that is what the other waits for.
        for lease in ctl.say(&["lease", "list"]).lines().skip(1) {
            let keys = ctl.say(&["lease", "timetolive", "--keys", lease]);
            let key = keys.split("attached keys([").nth(1).and_then(|rest| rest.split(']').next());
            let value = ctl.say(&["get", key.unwrap_or(""), "--print-value-only"]);
            if value == "first\n" {
                ctl.say(&["lease", "revoke", lease]);
            }
        }
        second.wait_for("its name", |line| (line == "second").then_some(())).unwrap();
        listener.wait_for("the next leader", |line| (line == "second").then_some(())).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn health_status_members_and_snapshot() {
    for kind in KINDS {
        let (server, ctl) = serving(kind).await;
        ctl.say(&["put", "k", "1"]);
        let health = ctl.say(&["endpoint", "health"]);
        let want = "ENDPOINT is healthy: successfully committed proposal: took = ";
        assert!(health.starts_with(want), "{kind:?}: {health}");
        let status = ctl.say(&["endpoint", "status"]);
        let words: Vec<&str> = status.trim_end_matches('\n').split(", ").collect();
        // Endpoint, number, version, size, leader, learner, term, index, applied index, errors.
        assert_eq!(words.len(), 10, "{kind:?}: {status}");
        assert_eq!((words[0], words[4], words[5]), ("ENDPOINT", "true", "false"), "{status}");
        assert!(words[2].starts_with("3."), "{status}");
        let members = ctl.say(&["member", "list"]);
        assert_eq!(members.lines().count(), 1, "{kind:?}: {members}");
        assert!(members.contains(", started, "), "{kind:?}: {members}");
        let file = server.dir().join("snapshot");
        let saved = ctl.say(&["snapshot", "save", file.to_str().unwrap()]);
        assert!(saved.contains("Snapshot saved at "), "{kind:?}: {saved}");
        assert!(file.metadata().unwrap().len() > 32, "{kind:?}");
        assert_eq!(ctl.say(&["alarm", "list"]), "", "{kind:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn users_and_roles() {
    let by = |user: &'static str, words: &[&'static str]| [&["--user", user][..], words].concat();
    same_on_both(
        |ctl| {
            vec![
                ctl.say(&["user", "add", "root:pw"]),
                ctl.say(&["role", "add", "mine"]),
                ctl.say(&["role", "grant-permission", "mine", "readwrite", "--prefix", "m/"]),
                ctl.say(&["user", "add", "ann:pw"]),
                ctl.say(&["user", "grant-role", "ann", "mine"]),
                ctl.say(&["role", "get", "mine"]),
                ctl.say(&["auth", "enable"]),
                ctl.say(&["put", "a", "b"]),
                ctl.say(&by("ann:pw", &["put", "m/x", "1"])),
                ctl.say(&by("ann:pw", &["get", "a"])),
                ctl.say(&by("ann:bad", &["get", "m/x"])),
                ctl.say(&by("root:pw", &["user", "list"])),
                ctl.say(&by("root:pw", &["role", "revoke-permission", "mine", "--prefix", "m/"])),
                ctl.say(&by("ann:pw", &["get", "m/x"])),
                ctl.say(&by("ann:pw", &["user", "list"])),
                ctl.say(&by("root:pw", &["user", "delete", "root"])),
                ctl.say(&by("root:pw", &["auth", "disable"])),
                ctl.say(&["user", "delete", "ann"]),
                ctl.say(&["user", "get", "ann"]),
                ctl.say(&["role", "delete", "mine"]),
                ctl.say(&["get", "m/x"]),
            ]
        },
        &[
            "User root created\n",
            "Role mine created\n",
            "Role mine updated\n",
            "User ann created\n",
            "Role mine is granted to user ann\n",
            "Role mine\nKV Read:\n\t[m/, m0) (prefix m/)\nKV Write:\n\t[m/, m0) (prefix m/)\n",
            "Authentication Enabled\n",
            "Error: etcdserver: user name is empty\nexit Some(1)\n",
            "OK\n",
            "Error: etcdserver: permission denied\nexit Some(1)\n",
            "Error: etcdserver: authentication failed, invalid user ID or password\nexit Some(2)\n",
            "ann\nroot\n",
            "Permission of range [m/, m0) is revoked from role mine\n",
            "Error: etcdserver: permission denied\nexit Some(1)\n",
            "Error: etcdserver: permission denied\nexit Some(1)\n",
            "Error: etcdserver: invalid auth management\nexit Some(1)\n",
            "Authentication Disabled\n",
            "User ann deleted\n",
            "Error: etcdserver: user name not found\nexit Some(1)\n",
            "Role mine deleted\n",
            "m/x\n1\n",
        ],
    )
    .await;
}

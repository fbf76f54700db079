//! `holdfast up`: the first thing a newcomer types.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::process::{PATIENCE, Program, holdfast};
use serde_json::{Value, json};

/// A cluster with the addresses it printed.
pub(crate) struct Up {
    pub(crate) program: Program,
    rest: String,
    store: String,
}

fn up(dir: &Path) -> Result<Up> {
    up_with(dir, &["--nodes", "0"])
}

fn command(dir: &Path, words: &[&str]) -> Result<Command> {
    let mut command = holdfast()?;
    command.arg("up").arg("--dir").arg(dir).args(words);
    command.args(["--listen", "127.0.0.1:0", "--store-listen", "127.0.0.1:0"]);
    Ok(command)
}

/// Most tests put a load on the first volume, which would destroy a file system on it.
pub(crate) fn up_with(dir: &Path, words: &[&str]) -> Result<Up> {
    up_attached(dir, &[words, &["--no-attach"]].concat())
}

/// With the first volume mounted, as root.
fn up_attached(dir: &Path, words: &[&str]) -> Result<Up> {
    let program = Program::start(&mut command(dir, words)?)?;
    let after = |line: &str, word: &str| line.split_once(word).map(|(_, rest)| rest.to_owned());
    let rest = program.wait_for("where REST is", |line| after(line, "curl http://"))?;
    let store = program.wait_for("where the store is", |line| after(line, "etcd v3 at "))?;
    Ok(Up { program, rest, store })
}

/// What a GET of `address/path` answers.
fn get(url: &str) -> Result<String> {
    let (address, path) = url.split_once('/').context("a URL has a path")?;
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET /{path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn etcdctl(store: &str, words: &[&str]) -> Result<String> {
    let output = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", store])
        .args(words)
        .output()?;
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn one_command_gives_a_healthy_cluster_that_keeps_its_data() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let mut first = up(dir.path())?;
    let health = get(&first.rest)?;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(health.contains(r#""status":"ok""#), "{health}");
    assert_eq!(etcdctl(&first.store, &["put", "kept", "yes"])?, "OK\n");
    assert!(first.program.stop()?.success(), "{}", first.program.said());

    let second = up(dir.path())?;
    assert_eq!(etcdctl(&second.store, &["get", "kept"])?, "kept\nyes\n");
    Ok(())
}

#[test]
fn a_second_one_on_the_same_data_is_refused() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let first = up(dir.path())?;
    let error = up(dir.path()).err().context("it started")?.to_string();
    assert!(error.contains("choose another --dir"), "{error}");
    assert!(get(&first.rest)?.starts_with("HTTP/1.1 200"));
    Ok(())
}

/// Addresses that no other run of the tests uses: each process has some of its own.
pub(crate) fn address(nth: u32) -> String {
    let pid = std::process::id();
    format!("127.{}.{}.{}", 64 + pid % 128, pid / 128 % 256, 10 + 20 * nth)
}

impl Up {
    /// Where REST is.
    pub(crate) fn server(&self) -> Result<&str> {
        self.rest.split('/').next().context("an address")
    }

    /// A command of a user, for this cluster.
    pub(crate) fn command(&self, words: &[&str]) -> Result<Command> {
        let server = self.server()?;
        let mut command = holdfast()?;
        command.args(words).args(["--server", server]);
        Ok(command)
    }

    /// What REST answers at a path, without the head.
    pub(crate) fn get(&self, path: &str) -> Result<String> {
        let server = self.server()?;
        let answer = get(&format!("{server}/{path}"))?;
        let (head, body) = answer.split_once("\r\n\r\n").context("an answer")?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(body.to_owned())
    }

    /// What it prints.
    pub(crate) fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.command(words)?.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// What a command of a user answers, as JSON.
pub(crate) fn asked(up: &Up, words: &[&str]) -> Result<Value> {
    Ok(serde_json::from_str(&up.run(&[words, &["-o", "json"]].concat())?)?)
}

#[test]
fn three_nodes_have_a_volume_that_is_there_again() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(0);
    let words = ["--nodes", "3", "--pool-size", "2GiB", "--address", &address];
    let mut first = up_with(dir.path(), &words)?;
    let status = asked(&first, &["status"])?;
    assert_eq!(status["nodes"], json!({ "well": 3, "all": 3 }), "{status}");
    assert_eq!(status["pools"], json!({ "well": 3, "all": 3 }), "{status}");
    let volumes = asked(&first, &["volume", "list"])?;
    let volume = volumes[0]["id"].as_str().context("the first volume")?.to_owned();
    assert_eq!(volumes[0]["spec"]["replicas"], 2);
    let measured = asked(&first, &["bench", &volume, "--rw", "randrw", "--verify", "--time", "1"])?;
    assert_eq!(measured["failed"], 0, "{measured}");
    assert!(first.program.stop()?.success(), "{}", first.program.said());

    let second = up_with(dir.path(), &words)?;
    let again = asked(&second, &["volume", "get", &volume])?;
    assert_eq!(again["spec"], volumes[0]["spec"]);
    Ok(())
}

#[test]
fn as_root_the_first_volume_is_mounted_while_it_is_up() -> Result<()> {
    if !e2e::cluster::is_able() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let address = address(9);
    let words = ["--nodes", "3", "--pool-size", "2GiB", "--address", &address];
    let file = dir.path().join("mnt/file");
    let is_mounted = || -> Result<bool> {
        let table = std::fs::read_to_string("/proc/self/mountinfo")?;
        Ok(table.contains(&dir.path().join("mnt").display().to_string()))
    };
    let mut first = up_attached(dir.path(), &words)?;
    first.program.wait_for("where it is", |line| line.contains("mounted  ").then_some(()))?;
    ensure!(is_mounted()?, "{}", first.program.said());
    std::fs::write(&file, "kept")?;
    assert!(first.program.stop()?.success(), "{}", first.program.said());
    ensure!(!is_mounted()? && !file.exists(), "{}", first.program.said());

    let mut second = up_attached(dir.path(), &words)?;
    second.program.wait_for("where it is", |line| line.contains("mounted  ").then_some(()))?;
    assert_eq!(std::fs::read_to_string(&file)?, "kept");
    assert!(second.program.stop()?.success(), "{}", second.program.said());
    Ok(())
}

/// A volume served by each of the nodes, with copies on two of them.
fn one_on_each(up: &Up) -> Result<()> {
    for nth in 1..=3 {
        let id = format!("00000000-0000-4000-8000-00000000000{nth}");
        up.run(&["volume", "create", "--id", &id, "--size", "64MiB"])?;
        up.run(&["volume", "publish", &id, "--host", "local", "--node", &format!("node-{nth}")])?;
    }
    Ok(())
}

/// What an engine logged since it was last asked to stop.
fn last_words(dir: &Path, node: &str) -> Result<String> {
    let log = std::fs::read_to_string(dir.join(node).join("engine.log"))?;
    let (_, after) = log.rsplit_once(" stopping").context("it was never asked to stop")?;
    Ok(after.to_owned())
}

#[test]
fn every_target_ends_while_its_copies_are_there() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(4);
    let words = ["--nodes", "3", "--pool-size", "1GiB", "--address", &address];
    let mut up = up_with(dir.path(), &words)?;
    one_on_each(&up)?;
    assert!(up.program.stop()?.success(), "{}", up.program.said());
    for node in ["node-1", "node-2", "node-3"] {
        let words = last_words(dir.path(), node)?;
        assert!(words.contains("Shutdown { cause: Ordered }"), "it served nothing: {words}");
        assert!(!words.contains("ConnectionLost"), "it waited for a copy: {words}");
    }
    Ok(())
}

#[test]
fn a_killed_one_takes_its_engines_along() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(6);
    let words = ["--nodes", "3", "--pool-size", "1GiB", "--address", &address];
    let mut up = up_with(dir.path(), &words)?;
    up.program.kill()?;
    let nodes = ["node-1", "node-2", "node-3"];
    let pids = nodes.map(|node| std::fs::read_to_string(dir.path().join(node).join("engine.pid")));
    let deadline = Instant::now() + PATIENCE;
    for pid in pids {
        // The number may be somebody else's by then.
        let line = format!("/proc/{}/cmdline", pid?);
        let place = dir.path().to_string_lossy();
        let is_here = |words: Vec<u8>| String::from_utf8_lossy(&words).contains(&*place);
        let runs = || std::fs::read(&line).is_ok_and(is_here);
        while runs() {
            ensure!(Instant::now() < deadline, "an engine is left behind: {line}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

#[test]
fn a_pool_that_was_exported_stays_so_and_a_lost_store_is_noticed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(5);
    let words = ["--nodes", "3", "--pool-size", "1GiB", "--address", &address];
    let mut first = up_with(dir.path(), &words)?;
    let volumes = asked(&first, &["volume", "list"])?;
    let volume = volumes[0]["id"].as_str().context("the first volume")?;
    first.run(&["volume", "delete", volume, "--yes"]).unwrap_err();
    first.run(&["volume", "unpublish", volume])?;
    first.run(&["volume", "delete", volume, "--yes"])?;
    first.run(&["pool", "export", "pool-2"])?;
    assert!(first.program.stop()?.success(), "{}", first.program.said());

    let mut second = up_with(dir.path(), &words)?;
    let said = |program: &Program, text: &str| {
        program.wait_for(text, |line| line.contains(text).then_some(()))
    };
    said(&second.program, "holdfast pool import pool-2 --node node-2 --disk")?;
    assert_eq!(asked(&second, &["status"])?["pools"], json!({ "well": 2, "all": 3 }));
    assert!(second.program.stop()?.success(), "{}", second.program.said());

    std::fs::remove_dir_all(dir.path().join("store"))?;
    let third = up_with(dir.path(), &words)?;
    said(&third.program, "the store knows no pool of node-1")?;
    third.run(&["recover", "--apply"])?;
    assert_eq!(asked(&third, &["pool", "get", "pool-1"])?["spec"]["node"], "node-1");
    Ok(())
}

#[test]
fn the_demo_loses_a_node_and_no_write() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(1);
    let words = ["--demo", "--pool-size", "2GiB", "--address", &address];
    let output = command(dir.path(), &words)?.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let trouble = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{trouble}");
    assert!(said.contains("one node lost, no write lost"), "{said}");
    Ok(())
}

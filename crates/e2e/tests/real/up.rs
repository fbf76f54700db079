//! `holdfast up`: the first thing a newcomer types.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use e2e::process::{Program, holdfast};

/// A cluster without nodes, with the addresses it printed.
struct Up {
    program: Program,
    rest: String,
    store: String,
}

fn up(dir: &Path) -> Result<Up> {
    let mut command = holdfast()?;
    command.arg("up").arg("--dir").arg(dir);
    command.args(["--nodes", "0", "--listen", "127.0.0.1:0", "--store-listen", "127.0.0.1:0"]);
    let program = Program::start(&mut command)?;
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

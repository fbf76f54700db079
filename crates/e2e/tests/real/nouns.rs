//! Every noun of the command line, against a real cluster of `holdfast up`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use e2e::process::PATIENCE;
use serde_json::Value;

use crate::up::{Up, address, asked, up_with};

/// The id of a thing in an answer.
fn id(value: &Value) -> Result<String> {
    value["id"].as_str().map(str::to_owned).context("an id")
}

/// In every form: people get a table without colours, programs what REST answers.
fn every_form(up: &Up, words: &[&str]) -> Result<Value> {
    for form in ["table", "wide"] {
        let text = up.run(&[words, &["-o", form]].concat())?;
        ensure!(!text.is_empty() && !text.contains('\x1b'), "{words:?} -o {form}: {text:?}");
    }
    let yaml = up.run(&[words, &["-o", "yaml"]].concat())?;
    ensure!(!yaml.is_empty() && !yaml.contains('\x1b'), "{words:?} -o yaml: {yaml:?}");
    asked(up, words)
}

/// What is posted next to an address that watches.
fn posted(pager: &TcpListener) -> Result<Value> {
    pager.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    let mut stream = loop {
        match pager.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(Instant::now() < deadline, "nobody called");
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => bail!(error),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(&stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    write!(stream, "HTTP/1.1 204 X\r\nconnection: close\r\n\r\n")?;
    Ok(serde_json::from_slice(&body)?)
}

/// An address is called when something happens, and no more when the watch is gone.
fn webhooks(up: &Up) -> Result<()> {
    let pager = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/holdfast", pager.local_addr()?);
    up.run(&["webhook", "create", "pager", "--url", &url, "--node", "node-1"])?;
    up.run(&["node", "label", "node-2", "rack=8"])?;
    up.run(&["node", "label", "node-1", "rack=7"])?;
    // The node may have something of its own to tell first, such as that it answers.
    loop {
        let call = posted(&pager)?;
        ensure!(call["webhook"] == "pager" && call["missed"] == 0, "{call}");
        let subject = &call["event"]["subject"];
        ensure!(subject["kind"] == "node" && subject["id"] == "node-1", "{call}");
        if call["event"]["name"] == "changed" {
            break;
        }
    }
    every_form(up, &["webhook", "list"])?;
    let got = every_form(up, &["webhook", "get", "pager"])?;
    ensure!(got["spec"]["url"] == url.as_str(), "{got}");
    ensure!(up.run(&["webhook", "delete", "pager", "--yes"])?.contains("deleted"));
    ensure!(up.run(&["webhook", "delete", "pager", "--yes"])?.contains("was not there"));
    Ok(())
}

/// For each pool whether a copy could go there, best first, or why not.
fn placement(up: &Up, volume: &str) -> Result<()> {
    let placement = every_form(up, &["volume", "placement", volume])?;
    let pools = placement.as_array().context("a list")?;
    ensure!(pools.len() == 3, "{placement}");
    let (has, free): (Vec<&Value>, Vec<&Value>) =
        pools.iter().partition(|pool| pool["replica"].is_string());
    ensure!(has.len() == 2 && free.len() == 1, "{placement}");
    ensure!(free[0]["rank"] == 1 && free[0]["refused"].is_null(), "{placement}");
    for pool in has {
        let why = pool["refused"].as_str().context("a reason")?;
        ensure!(pool["rank"].is_null() && why.contains("copy"), "{placement}");
    }
    Ok(())
}

/// A copy is left alone and used again.
fn offline(up: &Up, volume: &str) -> Result<()> {
    let copies = asked(up, &["volume", "get", volume])?;
    let copies = copies["status"]["replicas"].as_object().context("copies")?.clone();
    let (copy, _) = copies.iter().next().context("a copy")?;
    let is = |wanted: &str| -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = asked(up, &["volume", "get", volume])?;
            if seen["status"]["state"] == wanted {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {wanted}: {seen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    is("online")?;
    up.run(&["volume", "offline", volume, copy])?;
    is("degraded")?;
    up.run(&["volume", "online", volume, copy])?;
    is("online")
}

/// Rebuilds take orders: those that ended stay as they are, and say so.
fn paces(up: &Up, volume: &str) -> Result<()> {
    let waited = up.run(&["rebuild", "wait", "--volume", volume])?;
    ensure!(!waited.contains("degraded"), "{waited}");
    let deadline = Instant::now() + PATIENCE;
    // That the copy is in sync may be known before that its rebuild has ended.
    let rebuild = loop {
        let rebuilds = asked(up, &["rebuild", "list", "--volume", volume])?;
        match rebuilds.get(0).filter(|it| it["state"]["name"] == "completed") {
            Some(rebuild) => break id(rebuild)?,
            None => ensure!(Instant::now() < deadline, "no rebuild ended: {rebuilds}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    for verb in ["pause", "resume", "cancel"] {
        let said = up.run(&["rebuild", verb, &rebuild])?;
        ensure!(said.contains("unchanged"), "{verb}: {said}");
    }
    Ok(())
}

#[test]
fn every_noun_against_a_real_cluster() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(2);
    let words = ["--nodes", "3", "--pool-size", "2GiB", "--address", &address];
    let mut up = up_with(dir.path(), &words)?;

    // One of everything.
    let volume = asked(&up, &["volume", "list"])?;
    let volume = id(&volume[0])?;
    let snapshot = asked(&up, &["snapshot", "create", &volume])?;
    let snapshot = id(&snapshot["now"])?;
    let group = asked(&up, &["group", "create", &volume])?;
    let group = id(&group["now"])?;
    webhooks(&up)?;
    placement(&up, &volume)?;
    offline(&up, &volume)?;
    paces(&up, &volume)?;
    up.run(&["volume", "resize", &volume, "2GiB", "--wait"])?;
    ensure!(asked(&up, &["volume", "get", &volume])?["spec"]["size"] == 2u64 << 30);

    let lists = ["volume", "node", "pool", "snapshot", "group", "replica", "target", "host"];
    for noun in lists {
        let list = every_form(&up, &[noun, "list"])?;
        ensure!(list.as_array().is_some_and(|list| !list.is_empty()), "there is no {noun}: {list}");
        let one = id(&list[0])?;
        let got = every_form(&up, &[noun, "get", &one])?;
        ensure!(got["id"] == list[0]["id"], "{noun} {one}: {got}");
    }
    for words in [
        &["status"][..],
        &["rebuild", "list"],
        &["failover", "list"],
        &["spec", "list"],
        &["device", "list", "node-1"],
        &["event", "list"],
        &["volume", "rebuilds", &volume],
        &["volume", "list", "--node", "node-1"],
        &["node", "list", "--label", "rack=7"],
    ] {
        every_form(&up, words)?;
    }

    // Everything that is stored, by key.
    let specs: Value = serde_json::from_str(&up.get("v1/specs?limit=1000")?)?;
    let specs = specs["items"].as_array().context("a list")?;
    let stored = |key: &str| specs.iter().find(|spec| spec["key"] == key);
    let record = stored(&format!("/holdfast/volume/{volume}")).context("the volume is stored")?;
    ensure!(record["record"]["record"]["spec"]["size"] == 2u64 << 30, "{record}");
    ensure!(record["revision"].as_i64().is_some_and(|revision| revision > 0), "{record}");
    for key in ["node/node-1", "pool/pool-1", &format!("targetRecord/{volume}")] {
        ensure!(stored(&format!("/holdfast/{key}")).is_some(), "{key} is not stored");
    }

    // What support and the careful ask for.
    let dump = up.run(&["dump", "--to", "-"])?;
    let dump: Value = serde_json::from_str(&dump)?;
    ensure!(dump["volumes"][0]["id"] == volume.as_str() && dump["metrics"].is_string());
    let file = dir.path().join("backup");
    let file = file.to_str().context("a path in UTF-8")?;
    up.run(&["backup", file])?;
    let saved = std::fs::read(file)?;
    ensure!(String::from_utf8_lossy(&saved).contains(&volume), "the backup lacks the volume");
    let again = up.command(&["backup", file])?.output()?;
    ensure!(String::from_utf8_lossy(&again.stderr).contains("choose another"), "it was replaced");

    // And all of it can go.
    up.run(&["snapshot", "delete", &snapshot, "--yes"])?;
    up.run(&["group", "delete", &group, "--yes"])?;
    up.run(&["volume", "unpublish", &volume])?;
    up.run(&["volume", "delete", &volume, "--yes"])?;
    ensure!(up.run(&["volume", "delete", &volume, "--yes"])?.contains("was not there"));
    ensure!(up.program.stop()?.success(), "{}", up.program.said());
    Ok(())
}

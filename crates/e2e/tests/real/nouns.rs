//! Every noun of the command line, against a real cluster of `holdfast up`.

use anyhow::{Context, Result, ensure};
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
    up.run(&["node", "label", "node-1", "rack=7"])?;
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
        &["device", "list", "node-1"],
        &["event", "list"],
        &["volume", "placement", &volume],
        &["volume", "rebuilds", &volume],
        &["volume", "list", "--node", "node-1"],
        &["node", "list", "--label", "rack=7"],
    ] {
        every_form(&up, words)?;
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

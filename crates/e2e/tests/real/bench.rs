//! `holdfast bench` while its target dies.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::process::PATIENCE;
use serde_json::Value;

use crate::up::{Up, address, asked, up_with};

/// The target of the only volume, once it says so of itself that a host is connected.
fn connected_target(up: &Up) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let targets = asked(up, &["target", "list"])?;
        let hosts = targets[0]["status"]["connected"].as_array().map_or(0, Vec::len);
        if hosts > 0 {
            let node = targets[0]["spec"]["node"].as_str().context("its node")?;
            return Ok(node.to_owned());
        }
        ensure!(Instant::now() < deadline, "nobody connected: {targets}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// It does what a host does: it looks for the volume, sends again what was under way, and every
/// write that was acknowledged is read back.
#[test]
fn a_load_follows_its_volume_when_the_engine_of_its_target_is_killed() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(7);
    let words = ["--nodes", "3", "--pool-size", "1GiB", "--address", &address];
    let up = up_with(dir.path(), &words)?;
    let volumes = asked(&up, &["volume", "list"])?;
    let volume = volumes[0]["id"].as_str().context("the first volume")?;
    let load = ["bench", volume, "--rw", "randrw", "--verify", "--time", "20", "-o", "json"];
    let mut command = up.command(&load)?;
    let bench = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let node = connected_target(&up)?;
    let pid = std::fs::read_to_string(dir.path().join(&node).join("engine.pid"))?;
    let killed = std::process::Command::new("kill").args(["-9", pid.trim()]).status()?;
    ensure!(killed.success(), "engine {pid} of {node} was not killed");
    let output = bench.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}");
    let seen: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!((&seen["failed"], &seen["wrong"]), (&0.into(), &0.into()), "{seen}\n{said}");
    assert!(seen["reconnects"].as_u64() > Some(0), "{seen}\n{said}");
    assert!(seen["resent"].as_u64() > Some(0), "{seen}\n{said}");
    assert!(seen["longest_stall_ms"].as_u64() > Some(0), "{seen}\n{said}");
    assert!(said.contains("looking for the volume"), "{said}");
    Ok(())
}

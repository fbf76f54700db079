//! Pools of a real cluster: made, carried to another node with what is in them, enlarged, emptied.

use anyhow::{Context, Result, ensure};
use api::rest::{Control as _, Remote};
use model::{Heartbeat, HostAddress, HostName, VolumeId};
use serde_json::Value;

use crate::engine::rig::{Disk, HOST, disk};
use crate::up::{Up, address, asked, up_with};

/// Registers the host that the tests' initiator says it is.
async fn register(up: &Up) -> Result<()> {
    let remote = Remote::plain(up.server()?.parse()?)?;
    let heartbeat = Heartbeat {
        instance: "00000000-0000-4000-8000-000000000009".parse()?,
        version: "test".to_owned(),
        address: HostAddress { nqn: HOST.parse()?, agent: None },
    };
    let host: HostName = "tester".parse()?;
    remote.host_heartbeat(host, heartbeat).await?;
    Ok(())
}

/// The volume, as its host has it.
fn attached(up: &Up, volume: &str) -> Result<Disk> {
    up.run(&["volume", "publish", volume, "--host", "tester"])?;
    let seen = asked(up, &["volume", "get", volume])?;
    let address = seen["status"]["target"]["addresses"][0].as_str().context("an address")?;
    let id: VolumeId = volume.parse()?;
    Disk::attach(address.parse()?, id)
}

fn capacity(up: &Up) -> Result<u64> {
    let pool = asked(up, &["pool", "get", "extra"])?;
    pool["status"]["capacity"].as_u64().context("a capacity")
}

/// What a command that must fail says.
fn refused(up: &Up, words: &[&str]) -> Result<String> {
    let output = up.command(words)?.output()?;
    ensure!(!output.status.success(), "{words:?} was taken");
    Ok(String::from_utf8(output.stderr)?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_is_carried_to_another_node_with_its_data() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let address = address(4);
    let words = ["--nodes", "2", "--pool-size", "1GiB", "--address", &address];
    let up = up_with(dir.path(), &words)?;
    register(&up).await?;
    let here = disk(dir.path(), "extra.img", 512);
    let there = dir.path().join("carried.img");
    let path = |path: &std::path::Path| path.to_str().map(str::to_owned).context("UTF-8");
    let (from, to) = (path(&here)?, path(&there)?);

    up.run(&["pool", "create", "extra", "--node", "node-1", "--disk", &from, "-l", "tier=extra"])?;
    let make = ["volume", "create", "--size", "64MiB", "--replicas", "1"];
    let made = asked(&up, &[&make[..], &["--pool-label", "tier=extra"]].concat())?;
    let volume = made["now"]["id"].as_str().context("an id")?.to_owned();
    let mut host = attached(&up, &volume)?;
    for block in 0..16 {
        host.write(block, 7);
    }
    drop(host);

    // What is in use stays where it is, and is not opened twice.
    let said = refused(&up, &["pool", "export", "extra"])?;
    ensure!(said.contains("unpublish it, or move the copy"), "{said}");
    let import = ["pool", "import", "extra", "--node", "node-2", "--disk", &to];
    let said = refused(&up, &import)?;
    ensure!(said.contains("export the pool first"), "{said}");
    up.run(&["volume", "unpublish", &volume])?;
    up.run(&["pool", "export", "extra"])?;
    ensure!(up.run(&["pool", "list"])?.contains("exported"), "it does not say so");
    // The disks are not there yet.
    let said = refused(&up, &import)?;
    ensure!(said.contains(&to), "{said}");
    std::fs::rename(&here, &there)?;
    up.run(&import)?;
    let pool = asked(&up, &["pool", "get", "extra"])?;
    ensure!(pool["spec"]["node"] == "node-2" && pool["spec"]["disks"][0] == to.as_str(), "{pool}");
    let mut host = attached(&up, &volume)?;
    for block in 0..16 {
        ensure!(host.read(block) == 7, "block {block} is another");
    }
    drop(host);

    // It grows with its disk, and by one more.
    let before = capacity(&up)?;
    disk(dir.path(), "carried.img", 768);
    up.run(&["pool", "grow", "extra"])?;
    let grown = capacity(&up)?;
    ensure!(grown >= before + (200 << 20), "{before} became {grown}");
    let second = path(&disk(dir.path(), "second.img", 256))?;
    up.run(&["pool", "add-disk", "extra", &second])?;
    let larger = capacity(&up)?;
    ensure!(larger >= grown + (200 << 20), "{grown} became {larger}");
    let seen: Value = asked(&up, &["pool", "get", "extra"])?;
    ensure!(seen["status"]["disks"].as_array().is_some_and(|disks| disks.len() == 2), "{seen}");

    // What holds something is not destroyed.
    let said = refused(&up, &["pool", "delete", "extra", "--yes"])?;
    ensure!(said.contains("holds 1 replicas"), "{said}");
    up.run(&["volume", "unpublish", &volume])?;
    up.run(&["volume", "delete", &volume, "--yes"])?;
    up.run(&["pool", "delete", "extra", "--yes"])?;
    ensure!(!up.run(&["pool", "list"])?.contains("extra"), "it is still there");
    Ok(())
}

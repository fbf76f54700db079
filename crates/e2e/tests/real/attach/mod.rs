//! Volumes attached to this machine by FUSE, as root: what programs on them see while parts die.

mod chaos;
mod postgres;

use std::fs;

use anyhow::{Context as _, Result, ensure};

use e2e::cluster::{Cluster, is_able, until};
use e2e::committer::{Committer, check};

/// A writer that syncs every commit goes on, without an error, whatever is killed.
fn a_writer_goes_on(filesystem: &str) -> Result<()> {
    let mut cluster = Cluster::start()?;
    let volume = cluster.volume(1, "512MiB")?;
    let point = cluster.mount_point("mnt");
    let mount = point.display().to_string();
    let words = ["attach", &volume, "--transport", "fuse", "--mount", &mount, "--fs", filesystem];
    let said = cluster.run(&words)?;
    ensure!(said.contains(&format!("mounted at {mount}")), "{said}");
    let writer = Committer::start(point.join("log"))?;
    writer.go_on("the start", 50)?;

    let nth = cluster.kill_target(&volume)?;
    writer.go_on("the death of the target", 50)?;
    let attached = cluster.json(&["attached"])?;
    ensure!(attached[0]["worker"]["usable"] == true, "{attached}");
    cluster.start_engine(nth)?;

    cluster.kill_worker_of(&volume)?;
    writer.go_on("the death of the worker", 50)?;

    cluster.kill_control()?;
    writer.go_on("the death of the control plane", 50)?;
    cluster.start_control()?;

    // Worker and target at once: the successor has to ask where the volume is.
    cluster.until_in_sync(&volume)?;
    let nth = cluster.kill_target(&volume)?;
    cluster.kill_worker_of(&volume)?;
    writer.go_on("the death of target and worker", 50)?;
    cluster.start_engine(nth)?;

    let (acknowledged, longest) = writer.stop()?;
    println!("{acknowledged} commits, the longest took {longest:?}");
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()?;
    ensure!(!point.exists(), "the folder was made for the mount");

    // Not out of any cache of this machine.
    cluster.run(&["attach", &volume, "--mount", &mount, "--read-only"])?;
    check(&point.join("log"), acknowledged)?;
    ensure!(fs::write(point.join("new"), "x").is_err(), "it was attached read-only");
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()
}

#[test]
fn a_writer_on_xfs_goes_on_whatever_is_killed() -> Result<()> {
    if is_able() { a_writer_goes_on("xfs") } else { Ok(()) }
}

#[test]
fn a_writer_on_ext4_goes_on_whatever_is_killed() -> Result<()> {
    if is_able() { a_writer_goes_on("ext4") } else { Ok(()) }
}

/// A device of a volume that nobody mounted, and what the kernel can do with it.
#[test]
fn a_device_reads_writes_discards_zeroes_and_grows() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let volume = cluster.volume(1, "64MiB")?;
    let attached = cluster.json(&["attach", &volume])?;
    let device = attached["device"].as_str().context("a device")?.to_owned();
    let shell = |script: &str| -> Result<String> {
        let output = std::process::Command::new("sh").args(["-ec", script]).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{script}: {said}");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // The largest requests there are, and whole blocks of every size.
    shell(&format!(
        "head -c 64M /dev/urandom > /tmp/holdfast-$$; \
         dd if=/tmp/holdfast-$$ of={device} bs=4M oflag=direct status=none; sync {device}; \
         cmp /tmp/holdfast-$$ {device}; rm /tmp/holdfast-$$"
    ))?;
    let zeros = |from: u64, to: u64| {
        let count = (to - from) * 256;
        format!(
            "test $(dd if={device} bs=4k skip={} count={count} iflag=direct status=none \
             | tr -d '\\0' | wc -c) -eq 0",
            from * 256
        )
    };
    let not_zeros = format!("! ({})", zeros(0, 1));
    shell(&format!("blkdiscard -o 8M -l 8M {device}; {}; {not_zeros}", zeros(8, 16)))?;
    shell(&format!("blkdiscard -z -o 32M -l 16M {device}; {}; {not_zeros}", zeros(32, 48)))?;

    let again = cluster.run(&["attach", &volume])?;
    ensure!(again.contains("was attached before"), "{again}");
    cluster.run(&["volume", "resize", &volume, "96MiB"])?;
    until("the device has grown", || {
        Ok(shell(&format!("blockdev --getsize64 {device}"))? == (96 << 20).to_string())
    })?;
    shell(&format!("dd if=/dev/zero of={device} bs=1M seek=95 count=1 oflag=direct status=none"))?;
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()?;
    // What attach published is published no more.
    let found = cluster.json(&["volume", "get", &volume])?;
    ensure!(found["status"]["target"]["hosts"].as_array().is_none_or(Vec::is_empty), "{found}");
    Ok(())
}

/// Each refusal is one sentence with a remedy, and leaves nothing behind.
#[test]
fn what_cannot_be_attached_is_refused_and_leaves_nothing() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let refused = |words: &[&str], expected: &str| -> Result<()> {
        let said = cluster.refused(words)?;
        ensure!(said.contains(expected) && said.lines().count() == 1, "{words:?}: {said}");
        Ok(())
    };
    let point = cluster.mount_point("mnt");
    let mount = point.display().to_string();
    let nowhere = "00000000-0000-4000-8000-000000000099";
    refused(&["attach", nowhere], "holdfast volume list")?;
    refused(&["detach", nowhere], "holdfast attached")?;
    let volume = cluster.volume(1, "64MiB")?;
    refused(&["attach", &volume, "--fs", "ext4"], "give --mount DIR")?;
    refused(&["attach", &volume, "--mount", "mnt"], "absolute path")?;
    if !std::path::Path::new("/sys/module/nvme_tcp").exists() {
        refused(&["attach", &volume, "--transport", "nvme"], "leave --transport out")?;
    }
    fs::create_dir(&point)?;
    fs::write(point.join("file"), "x")?;
    refused(&["attach", &volume, "--mount", &mount], "is not empty")?;
    refused(&["attach", &volume, "--mount", &format!("{mount}/file")], "is not a folder")?;
    fs::remove_file(point.join("file"))?;
    refused(&["attach", &volume, "--mount", &mount, "--read-only"], "leave --read-only out once")?;
    // XFS wants 300 MiB: mkfs fails when the device is there already.
    refused(&["attach", &volume, "--mount", &mount, "--fs", "xfs"], "mkfs.xfs")?;
    cluster.check_nothing_left()?;
    ensure!(point.exists(), "a folder that was there stays");

    let made = cluster.json(&["attach", &volume, "--mount", &mount])?;
    let device = made["device"].as_str().context("a device")?;
    refused(&["attach", &volume, "--mount", &format!("{mount}2")], "holdfast detach")?;
    refused(&["attach", &volume, "--read-only"], "attached already, writable")?;
    refused(&["attach", &volume, "--host", "host-1", "--transport", "nvme"], "by fuse")?;
    let elsewhere = cluster.mount_point("elsewhere").display().to_string();
    fs::create_dir(&elsewhere)?;
    rustix::mount::mount(device, &elsewhere, "ext4", rustix::mount::MountFlags::empty(), c"")?;
    refused(&["detach", &volume], &format!("mounted at {elsewhere}"))?;
    rustix::mount::unmount(&elsewhere, rustix::mount::UnmountFlags::empty())?;
    cluster.run(&["attach", &volume, "--mount", &mount])?;
    let busy = fs::File::open(point.join("lost+found"))?;
    refused(&["detach", &volume], "end the programs that use it")?;
    drop(busy);
    cluster.run(&["detach", &volume])?;
    let other = ["attach", &volume, "--mount", &mount, "--fs", "xfs"];
    refused(&other, "not xfs: leave --fs out")?;
    cluster.check_nothing_left()?;

    cluster.run(&["attach", &volume])?;
    let run = cluster.mount_point("another-run").display().to_string();
    let stranger = ["attach", &volume, "--host", "host-2", "--run-dir", &run];
    refused(&stranger, "published to host host-1: detach it there")?;
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()
}

/// A host that was dismissed and is admitted again does not go on with what it had mounted: others
/// may have written meanwhile.
#[test]
fn what_was_mounted_before_its_host_was_dismissed_stays_shut_out() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let volume = cluster.volume(1, "64MiB")?;
    let point = cluster.mount_point("mnt");
    let mount = point.display().to_string();
    cluster.run(&["attach", &volume, "--mount", &mount, "--fs", "ext4"])?;
    let kept = fs::File::create(point.join("kept"))?;
    kept.sync_all()?;
    drop(kept);
    let admitted = || -> Result<serde_json::Value> {
        let found = cluster.json(&["volume", "get", &volume])?;
        Ok(found["status"]["target"]["hostNqns"]["host-1"].clone())
    };
    let first = admitted()?;
    cluster.run(&["volume", "unpublish", &volume, "--host", "host-1", "--force"])?;
    cluster.run(&["volume", "publish", &volume, "--host", "host-1"])?;
    let second = admitted()?;
    ensure!(first.is_string() && second.is_string() && first != second, "{first} {second}");

    until("the worker knows that its publication is over", || {
        Ok(cluster.json(&["attached"])?[0]["worker"]["dismissed"] == true)
    })?;
    let late = fs::write(point.join("late"), "x")
        .and_then(|()| fs::File::open(point.join("late"))?.sync_all());
    ensure!(late.is_err(), "a write of the earlier publication was acknowledged");
    let said = cluster.refused(&["attach", &volume, "--mount", &mount])?;
    ensure!(said.contains("earlier publication") && said.contains("holdfast detach"), "{said}");
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()?;
    ensure!(admitted()? == second, "the later publication is not the earlier one's to end");

    cluster.run(&["attach", &volume, "--mount", &mount])?;
    ensure!(point.join("kept").exists() && !point.join("late").exists());
    cluster.run(&["detach", &volume])?;
    ensure!(admitted()? == second, "attach did not publish it");
    cluster.check_nothing_left()
}

/// A command that was killed in the middle is finished by the next.
#[test]
fn what_an_interrupted_command_left_is_cleaned_up() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let volume = cluster.volume(1, "64MiB")?;
    let attached = cluster.json(&["attach", &volume])?;
    // As if it had been killed before it knew the device.
    let record = cluster.run_dir().join("attachments").join(format!("{volume}.json"));
    let mut left: serde_json::Value = serde_json::from_str(&fs::read_to_string(&record)?)?;
    left.as_object_mut().context("a record")?.remove("device");
    fs::write(&record, left.to_string())?;
    let again = cluster.json(&["attach", &volume])?;
    ensure!(again["device"].is_string(), "{again}");
    ensure!(again["since"] != attached["since"], "it was attached anew");
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()
}

#[test]
fn an_agent_shows_that_its_host_is_there() -> Result<()> {
    let cluster = Cluster::start()?;
    let state = || -> Result<String> {
        let found = cluster.json(&["host", "get", "host-1"])?;
        Ok(found["status"]["liveness"]["state"].as_str().unwrap_or_default().to_owned())
    };
    let mut agent = cluster.agent()?;
    until("the host is there", || Ok(state().is_ok_and(|state| state == "online")))?;
    ensure!(agent.stop()?.success(), "{}", agent.said());
    ensure!(state()? == "offline", "it said goodbye");
    Ok(())
}

//! The guest as a host of a cluster on this machine, with our agent: the kernel's paths follow
//! targets that die and targets that are moved, and programs in the guest notice nothing but time.

use anyhow::{Context, Result, bail, ensure};
use e2e::cluster::{Cluster, until};
use e2e::process::holdfast;
use e2e::vm::{Job, Vm};
use serde_json::Value;

use crate::lab::PATIENCE;
use crate::shared::with_vm;

const MOUNT: &str = "/mnt/volume";

/// The guest, which the cluster knows as a host.
struct Guest<'a> {
    vm: &'a Vm,
    server: String,
    agent: Option<Job>,
}

impl<'a> Guest<'a> {
    /// Brings our program into the guest, and a way to this machine's loopback.
    fn new(vm: &'a Vm, cluster: &Cluster) -> Result<Guest<'a>> {
        vm.install("holdfast", holdfast()?.get_program().as_ref())?;
        // Engines say to everybody that they are at 127.0.0.1, and mean this machine's.
        vm.run(
            "set -e; echo guest > /proc/sys/kernel/hostname; \
             tr -d - < /proc/sys/kernel/random/uuid > /etc/machine-id; \
             echo 1 > /proc/sys/net/ipv4/conf/all/route_localnet; \
             ip addr del 127.0.0.1/8 dev lo",
            PATIENCE,
        )?
        .ok()?;
        let mut guest = Guest { vm, server: cluster.server().to_owned(), agent: None };
        guest.start_agent()?;
        Ok(guest)
    }

    fn start_agent(&mut self) -> Result<()> {
        let script = "exec holdfast agent run > /tmp/agent.log 2>&1";
        self.agent = Some(self.vm.spawn(&self.with_cluster(script))?);
        Ok(())
    }

    fn with_cluster(&self, script: &str) -> String {
        format!("set -e; export HOLDFAST_SERVER={}; {script}", self.server)
    }

    /// Runs a script in the guest; it must succeed.
    fn sh(&self, script: &str) -> Result<String> {
        self.vm.run(&self.with_cluster(script), PATIENCE)?.ok()
    }

    /// The paths that `nvme list-subsys` shows: address and state of each.
    fn paths(&self) -> Result<Vec<(String, String)>> {
        let shown: Value = serde_json::from_str(&self.sh("nvme list-subsys -o json")?)?;
        let hosts = shown.as_array().cloned().unwrap_or_else(|| vec![shown.clone()]);
        let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let subsystems = hosts.iter().flat_map(|host| list(host, "Subsystems"));
        let paths = subsystems.flat_map(|subsystem| list(&subsystem, "Paths"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Ok(paths.map(|path| (text(&path["Address"]), text(&path["State"]))).collect())
    }

    /// Waits until the kernel has one path, which is live and leads to the target.
    fn until_replaced(&self, cluster: &Cluster, volume: &str) -> Result<()> {
        let mut last = Vec::new();
        let replaced = until("the path is replaced", || {
            let target = cluster.target(volume)?;
            let port = target.1.rsplit(':').next().unwrap_or_default().to_owned();
            last = self.paths()?;
            let [(address, state)] = &last[..] else { return Ok(false) };
            let leads_there = address.split(',').any(|word| word == format!("trsvcid={port}"));
            Ok(leads_there && state == "live")
        });
        replaced.with_context(|| format!("the paths are {last:?}"))
    }

    /// Writes and verifies files in a file system until it is told to end.
    fn start_fio(&self) -> Result<Job> {
        self.vm.spawn(&format!(
            "rm -f /tmp/enough; n=0; echo 0 > /tmp/rounds; while [ ! -e /tmp/enough ]; do \
               fio --name=steady --directory={MOUNT} --direct=1 --ioengine=libaio --iodepth=8 \
                   --rw=randwrite --bs=4k --size=2m --fsync=16 --verify=crc32c --verify_fatal=1 \
                   --output=/tmp/steady || {{ status=$?; cat /tmp/steady; exit $status; }}; \
               n=$((n + 1)); echo $n > /tmp/rounds; \
             done"
        ))
    }

    /// Waits for a round of [`Guest::start_fio`] that began after now to be written and verified.
    fn go_on(&self, job: &mut Job) -> Result<()> {
        let two_more = "n=$(($(cat /tmp/rounds) + 2)); \
                        while [ $(cat /tmp/rounds || echo 0) -lt $n ]; do sleep 0.2; done";
        let went_on = self.sh(two_more);
        ensure!(job.is_running()?, "fio ended");
        went_on?;
        self.sh(&format!("date > {MOUNT}/file; sync {MOUNT}/file")).map(drop)
    }

    fn end_fio(&self, job: Job) -> Result<()> {
        self.sh("touch /tmp/enough")?;
        job.wait(PATIENCE)?.ok().context("fio saw an error")?;
        let errors = self.sh("dmesg | grep -E 'I/O error|XFS.*(error|shut)' || true")?;
        if !errors.is_empty() {
            bail!("the kernel reported errors:\n{errors}");
        }
        Ok(())
    }

    /// As the guest was before.
    fn leave(mut self) -> Result<()> {
        self.agent = None;
        self.sh("ip addr add 127.0.0.1/8 dev lo; rm /usr/bin/holdfast /etc/machine-id").map(drop)
    }

    fn said(&self) -> String {
        let log = self.vm.run("cat /tmp/agent.log; dmesg | tail -40", PATIENCE);
        log.and_then(e2e::vm::Output::ok).unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// The target's engine is killed; another node serves the volume, and the agent replaces the path.
/// Then the target is moved on purpose.
#[test]
fn paths_follow_a_target_that_dies_and_one_that_is_moved() -> Result<()> {
    with_vm(|vm| {
        let mut cluster = Cluster::start()?;
        let volume = cluster.volume(1, "512MiB")?;
        let guest = Guest::new(vm, &cluster)?;
        let outcome = follow(&guest, &mut cluster, &volume);
        outcome.with_context(|| format!("the agent said:\n{}", guest.said()))?;
        guest.leave()
    })
}

fn follow(guest: &Guest, cluster: &mut Cluster, volume: &str) -> Result<()> {
    let said =
        guest.sh(&format!("holdfast attach {volume} --transport nvme --mount {MOUNT} --fs xfs"))?;
    ensure!(said.contains(&format!("mounted at {MOUNT}")), "{said}");
    guest.until_replaced(cluster, volume)?;
    let mut fio = guest.start_fio()?;
    guest.go_on(&mut fio)?;

    let killed = cluster.kill_target(volume)?;
    guest.go_on(&mut fio).context("after the death of the target")?;
    guest.until_replaced(cluster, volume)?;
    cluster.start_engine(killed)?;
    cluster.until_in_sync(volume)?;

    let node = format!("node-{killed}");
    cluster.run(&["volume", "republish", volume, "--to", &node])?;
    guest.until_replaced(cluster, volume)?;
    ensure!(cluster.target(volume)?.0 == node, "it was moved to {node}");
    guest.go_on(&mut fio).context("after a planned move")?;

    guest.end_fio(fio)?;
    cluster.run(&["volume", "check", volume, "--compare"])?;
    guest.sh(&format!("holdfast detach {volume}"))?;
    ensure!(guest.paths()?.is_empty(), "nothing is connected any more");
    Ok(())
}

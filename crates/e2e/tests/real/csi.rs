//! The CSI driver on a cluster of three nodes, with real mounts on volumes behind FUSE.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, is_able};
use e2e::process::Program;

/// Specs of csi-sanity that pass, for mounts and for block devices alike. The others of its 103 are
/// one that it never runs, and those of what the driver does not offer: publishing read-only,
/// snapshots that only some nodes see, and a limit of volumes for each node.
const PASSED: usize = 99;

struct Driver {
    controller: Program,
    node: Program,
    sockets: [String; 2],
}

impl Driver {
    /// Both roles. Nobody has told the control plane of this host before.
    fn start(cluster: &Cluster, folder: &Path) -> Result<Driver> {
        let socket = |name: &str| folder.join(name).display().to_string();
        let sockets = [socket("controller.sock"), socket("node.sock")];
        let alone = ["--no-attacher", "--no-orphans"];
        let words = ["csi", "controller", "--socket", &sockets[0]];
        let controller = cluster.start_program(&[&words[..], &alone].concat())?;
        let node = cluster.start_program(&["csi", "node", "--socket", &sockets[1]])?;
        let serves = |what: &'static str| move |line: &str| line.contains(what).then_some(());
        controller.wait_for("that it serves", serves("CSI controller services"))?;
        node.wait_for("that it serves", serves("CSI node services"))?;
        Ok(Driver { controller, node, sockets })
    }
}

/// Runs csi-sanity; how many specs passed.
fn sanity(program: &Path, driver: &Driver, (folder, access): (&Path, &str)) -> Result<usize> {
    let parameters = folder.join("parameters.yaml");
    fs::write(&parameters, "repl: \"2\"\n")?;
    let mutable = folder.join("mutable.yaml");
    fs::write(&mutable, "iops: \"5000\"\n")?;
    let path = |name: &str| folder.join(format!("{access}-{name}")).display().to_string();
    let [controller, node] = &driver.sockets;
    let mut command = Command::new(program);
    command.args([
        "-csi.endpoint",
        &format!("unix://{node}"),
        "-csi.controllerendpoint",
        &format!("unix://{controller}"),
        "-csi.mountdir",
        &path("mount"),
        "-csi.stagingdir",
        &path("staging"),
        "-csi.testvolumesize",
        &(64 << 20).to_string(),
        "-csi.testvolumeexpandsize",
        &(128 << 20).to_string(),
        "-csi.testvolumeaccesstype",
        access,
        "-csi.testvolumeparameters",
        &parameters.display().to_string(),
        "-csi.testvolumemutableparameters",
        &mutable.display().to_string(),
        "-ginkgo.no-color",
    ]);
    let output = command.output().context("cannot run csi-sanity")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let (node, controller) = (driver.node.said(), driver.controller.said());
    ensure!(output.status.success(), "{said}\n--- node:\n{node}\n--- controller:\n{controller}");
    // SUCCESS! -- 99 Passed | 0 Failed | 1 Pending | 3 Skipped
    let passed = said.lines().rev().find_map(|line| {
        let (before, _) = line.split_once(" Passed")?;
        before.rsplit(' ').next()?.parse().ok()
    });
    let passed = passed.with_context(|| format!("no number of specs in {said}"))?;
    println!("csi-sanity, {access}: {passed} specs passed");
    Ok(passed)
}

#[test]
fn csi_sanity_passes_for_mounts_and_for_block_devices() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let Some(program) = e2e::csi_sanity::program()? else { return Ok(()) };
    let cluster = Cluster::start()?;
    let folder = tempfile::tempdir()?;
    let mut driver = Driver::start(&cluster, folder.path())?;
    for access in ["mount", "block"] {
        let passed = sanity(&program, &driver, (folder.path(), access))?;
        ensure!(passed >= PASSED, "{passed} specs passed for {access}, and {PASSED} did before");
    }
    ensure!(driver.node.stop()?.success(), "{}", driver.node.said());
    ensure!(driver.controller.stop()?.success(), "{}", driver.controller.said());
    cluster.check_nothing_left()
}

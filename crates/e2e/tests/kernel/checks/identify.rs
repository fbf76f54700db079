//! What a target says about itself.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::lab::{Lab, SIZE, Way, expect_eq};

/// `nvme list-subsys` shows one subsystem with two live paths.
pub(super) fn subsystems(lab: &mut Lab) -> Result<()> {
    lab.connect(Way::First, "")?;
    lab.connect(Way::Second, "")?;
    let hosts = lab.json("nvme list-subsys -o json")?;
    let ours: Vec<&Value> = hosts
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|host| host["Subsystems"].as_array().into_iter().flatten())
        .filter(|subsystem| subsystem["NQN"] == lab.target.nqn())
        .collect();
    let [subsystem] = ours.as_slice() else { bail!("not one subsystem in {hosts}") };
    let paths = subsystem["Paths"].as_array().context("a subsystem has paths")?;
    expect_eq("number of paths", paths.len(), 2)?;
    for path in paths {
        expect_eq("state of a path", path["State"].as_str(), Some("live"))?;
    }
    let shared = lab.sh("disks | wc -l")?;
    expect_eq("number of disks over both paths", shared.trim(), "1")
}

/// `nvme id-ctrl`: what Linux needs is there.
pub(super) fn controller(lab: &mut Lab) -> Result<()> {
    let controller = lab.connect(Way::First, "")?;
    let id = lab.json(&format!("nvme id-ctrl /dev/{controller} -o json"))?;
    expect_eq("subnqn", id["subnqn"].as_str(), Some(lab.target.nqn()))?;
    let number = |field: &str| id[field].as_u64().with_context(|| format!("{field} in {id}"));
    let seen = lab.sh(&format!("cat /sys/class/nvme/{controller}/cntlid"))?;
    expect_eq("cntlid", number("cntlid")?.to_string().as_str(), seen.trim())?;
    for (field, bits, meaning) in [
        ("sgls", 0b11, "scatter-gather lists"),
        ("kas", 0xffff, "keep alive"),
        ("oncs", 0b1100, "dataset management and write zeroes"),
        ("cmic", 0b1010, "several controllers, and ANA"),
    ] {
        if number(field)? & bits == 0 {
            bail!("{field} does not offer {meaning}: {id}");
        }
    }
    Ok(())
}

/// `nvme id-ns`: the size is right, and the namespace may be shared by paths.
pub(super) fn namespace(lab: &mut Lab) -> Result<()> {
    let disk = lab.connected_disk()?;
    let id = lab.json(&format!("nvme id-ns {disk} -o json"))?;
    let number = |field: &str| id[field].as_u64().with_context(|| format!("{field} in {id}"));
    let format = usize::try_from(number("flbas")? & 0xf)?;
    let shift = id["lbafs"][format]["ds"].as_u64().context("block size")?;
    expect_eq("bytes", number("nsze")? << shift, SIZE)?;
    expect_eq("shared bit of nmic", number("nmic")? & 1, 1)?;
    let sectors = lab.sh(&format!("cat /sys/class/block/{}/size", &disk["/dev/".len()..]))?;
    expect_eq("bytes of the block device", sectors.trim().parse::<u64>()? * 512, SIZE)
}

/// `nvme ana-log`: one group with our namespace, optimized.
pub(super) fn ana_log(lab: &mut Lab) -> Result<()> {
    let controller = lab.connect(Way::First, "")?;
    lab.disk()?;
    let log = lab.json(&format!("nvme ana-log /dev/{controller} -o json"))?;
    let groups = log["ANA DESC LIST "].as_array().context("the log has groups")?;
    let states: Vec<&Value> = groups
        .iter()
        .filter(|group| group["NSIDS"][0]["nsid"] == 1)
        .map(|group| &group["state"])
        .collect();
    match states.as_slice() {
        [state] if *state == "optimized" => Ok(()),
        _ => bail!("namespace 1 is not optimized in {log}"),
    }
}

//! Reservations: who may write.
//!
//! One guest plays two hosts: it connects twice with different names, and sends commands through
//! the controllers, so that multipath does not choose the path.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::lab::{Lab, Way, expect_eq};

const OTHER: &str = "--hostid=0b3e1dbb-6a40-4c5c-9d0e-0c6f5ce3a3aa \
    --hostnqn=nqn.2014-08.org.nvmexpress:uuid:0b3e1dbb-6a40-4c5c-9d0e-0c6f5ce3a3aa";

/// Register, acquire and report, as seen by `nvme resv-report`.
pub(super) fn register_acquire_report(lab: &mut Lab) -> Result<()> {
    let controller = lab.connect(Way::First, "")?;
    lab.disk()?;
    let report = report(lab, &controller)?;
    expect_eq("registrants at first", report["regctl"].as_u64(), Some(0))?;

    reserve(lab, &controller, "resv-register --nrkey=0x11 --rrega=0")?;
    reserve(lab, &controller, "resv-acquire --crkey=0x11 --rtype=1 --racqa=0")?;
    let held = self::report(lab, &controller)?;
    expect_eq("registrants", held["regctl"].as_u64(), Some(1))?;
    expect_eq("type", held["rtype"].as_u64(), Some(1))?;
    let registrant = &held["regctlext"][0];
    expect_eq("key", registrant["rkey"].as_u64(), Some(0x11))?;
    expect_eq("holder bit", registrant["rcsts"].as_u64().map(|status| status & 1), Some(1))?;

    reserve(lab, &controller, "resv-release --crkey=0x11 --rtype=1 --rrela=0")?;
    expect_eq("type", self::report(lab, &controller)?["rtype"].as_u64(), Some(0))?;
    reserve(lab, &controller, "resv-register --crkey=0x11 --rrega=1")?;
    expect_eq("registrants", self::report(lab, &controller)?["regctl"].as_u64(), Some(0))
}

/// The holder writes, the other host does not; after a preempt it is the other way round.
pub(super) fn preempt(lab: &mut Lab) -> Result<()> {
    let first = lab.connect(Way::First, "")?;
    lab.disk()?;
    let other = lab.connect(Way::Second, OTHER)?;
    reserve(lab, &first, "resv-register --nrkey=0x11 --rrega=0")?;
    reserve(lab, &other, "resv-register --nrkey=0x22 --rrega=0")?;
    expect_eq("registrants", report(lab, &first)?["regctl"].as_u64(), Some(2))?;

    reserve(lab, &first, "resv-acquire --crkey=0x11 --rtype=1 --racqa=0")?;
    may_write(lab, &first, true)?;
    may_write(lab, &other, false)?;

    let preempt = "resv-acquire --crkey=0x22 --prkey=0x11 --rtype=1 --racqa=2";
    reserve(lab, &other, preempt)?;
    may_write(lab, &other, true)?;
    may_write(lab, &first, false).context("the former holder is fenced")?;
    let after = report(lab, &other)?;
    expect_eq("registrants", after["regctl"].as_u64(), Some(1))?;
    expect_eq("key", after["regctlext"][0]["rkey"].as_u64(), Some(0x22))
}

fn reserve(lab: &Lab, controller: &str, command: &str) -> Result<()> {
    lab.sh(&format!("nvme {command} /dev/{controller} --namespace-id=1")).map(drop)
}

fn report(lab: &Lab, controller: &str) -> Result<Value> {
    lab.json(&format!("nvme resv-report /dev/{controller} --namespace-id=1 --eds -o json"))
}

/// A conflict is status 83h; nvme-cli prints it.
fn may_write(lab: &Lab, controller: &str, expected: bool) -> Result<()> {
    let write = lab.try_sh(&format!(
        "dd if=/dev/urandom of=/tmp/block bs=4k count=1 2>/dev/null; \
         nvme io-passthru /dev/{controller} --opcode=1 --namespace-id=1 --data-len=4096 --write \
           --cdw10=0 --cdw12=0 --input-file=/tmp/block"
    ))?;
    let conflict = write.stderr.contains("0x83") || write.stderr.contains("83)");
    match (expected, write.status == 0, conflict) {
        (true, true, _) | (false, false, true) => Ok(()),
        _ => bail!("{controller} should write: {expected}; it got {write:?}"),
    }
}

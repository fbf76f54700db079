//! What goes wrong with the copies of a mirrored volume and with its target; a Linux host notices
//! nothing but time, and all copies are equal at the end.

use anyhow::{Context, Result, ensure};
use api::node::{JobControl, Node as _};
use e2e::fleet::{Fleet, Machine, damage, id, repaired, told};
use e2e::vm::Kernel;
use model::{
    ChildState, Epoch, EventName, FaultReason, Generation, ProblemKind, Size, StopCause,
    TargetState, VersionedSpec,
};
use rustix::process::Signal;

use super::paths::{TIMERS, end_fio, start_fio};
use crate::lab::{Lab, Target as _, Way};
use crate::mirrored::Mirrored;
use crate::shared::with_kernel;

/// Blocks from the first that any check here has written.
const WRITTEN: u64 = 2048;

/// Runs a check with a volume that has copies in three engines, and compares these.
fn with_copies(check: impl FnOnce(&mut Lab<Mirrored>) -> Result<()>) -> Result<()> {
    with_kernel(Kernel::V6_12, |vm| {
        let mut lab = Lab { vm, target: Box::new(Mirrored::start(vm)?), secrets: None };
        let outcome = check(&mut lab).and_then(|()| {
            lab.disconnect()?;
            lab.target.compare(WRITTEN).context("compare the copies")
        });
        outcome.with_context(|| format!("the target said:\n{}", lab.target.said()))?;
        lab.close()
    })
}

/// Writes 4 MiB behind those of [`start_fio`], or verifies that they are there.
fn still(lab: &Lab<Mirrored>, disk: &str, more: &str) -> Result<()> {
    lab.sh(&format!(
        "fio --name=still --filename={disk} --direct=1 --ioengine=libaio --iodepth=16 --minimal \
         --rw=write --bs=4k --offset=4m --size=4m --verify=crc32c --verify_fatal=1 {more}"
    ))
    .map(drop)
}

/// A block as fio makes them for [`still`]: magic, kind, length, seed, offset.
fn is_still(block: &[u8]) -> bool {
    let word = |at: usize| block.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    let offset = word(16).map_or(0, u64::from_le_bytes);
    block.starts_with(&[0xCA, 0xAC]) && (4 << 20..8 << 20).contains(&offset)
}

/// With requests on the way, a copy has no room for what is written elsewhere; then it has.
#[test]
fn a_full_copy_fails_no_request() -> Result<()> {
    with_copies(|lab| {
        lab.connect(Way::First, TIMERS)?;
        let disk = lab.disk()?;
        let job = start_fio(lab, &disk)?;
        lab.await_requests(&disk, 1024).context("the copies have room for these")?;
        let mut events = lab.target.with(async |fleet, _| {
            fleet.fill(2, Size::ZERO).await?;
            Ok(fleet.remote(0)?.events(None).await?)
        })?;
        still(lab, &disk, "").context("the other copies have room")?;
        lab.target.with(async |fleet, target| {
            let lost = told(&mut events, |event| event.name == EventName::ChildLost).await?;
            ensure!(lost.message.ends_with("is lost: NoSpace"), "{lost:?}");
            let full = ChildState::Faulted { reason: FaultReason::NoSpace };
            fleet.until_child((target, 0), 2, |state| state == full).await?;
            fleet.make_room(2).await?;
            fleet.until_open(target, 0).await
        })?;
        still(lab, &disk, "--verify_only")?;
        end_fio(lab, job)
    })
}

/// With requests on the way, the copy that is read first holds other bytes than were written to it.
#[test]
fn a_spoiled_copy_is_never_seen_and_is_healed() -> Result<()> {
    with_copies(|lab| {
        lab.connect(Way::First, TIMERS)?;
        let disk = lab.disk()?;
        still(lab, &disk, "--do_verify=0 --end_fsync=1")?;
        let job = start_fio(lab, &disk)?;
        lab.await_requests(&disk, 200)?;
        let (damaged, mut events) = lab.target.with(async |fleet, _| {
            let damaged = damage(&fleet.machine(0)?.disk, 200, is_still)?;
            Ok((damaged, fleet.remote(0)?.events(None).await?))
        })?;
        ensure!(damaged == 200, "only {damaged} blocks were found on the disk");
        still(lab, &disk, "--verify_only").context("other copies are asked")?;
        lab.target.with(async |fleet, target| {
            // Of a burst of bad blocks, reads repair as many as are checked at once; a scrub finds
            // the others.
            let scrub =
                VersionedSpec { generation: Generation::FIRST, spec: JobControl::default() };
            fleet.remote(0)?.put_scrub(fleet.machine(0)?.replica, scrub).await?;
            repaired(&mut events, damaged).await?;
            fleet.until_open(target, 0).await
        })?;
        still(lab, &disk, "--verify_only")?;
        end_fio(lab, job)
    })
}

/// With requests on the way, the target dies with its node and is made anew on another, before its
/// node is back.
#[test]
fn a_killed_target_moves_and_fails_no_request() -> Result<()> {
    with_copies(|lab| {
        let old = lab.connect(Way::First, TIMERS)?;
        let disk = lab.disk()?;
        let job = start_fio(lab, &disk)?;
        lab.await_requests(&disk, 200)?;
        lab.target.with(async |fleet, _| first(fleet)?.kill())?;
        lab.await_state(&old, "connecting")?;
        lab.target.move_to(1)?;
        let new = lab.connect(Way::First, TIMERS)?;
        lab.await_state(&new, "live")?;
        lab.await_requests(&disk, 200).context("the new target carries on")?;
        lab.target.with(async |fleet, target| {
            fleet.restart(0).await?;
            let late = fleet.spec(Epoch::FIRST, 0)?;
            let refused = fleet.put(id(40)?, 0, late).await?.map_err(|no| no.kind);
            ensure!(
                refused.is_err_and(|kind| kind == ProblemKind::Fenced),
                "the old target was made anew"
            );
            fleet.until_open(target, 1).await
        })?;
        lab.sh(&format!("nvme disconnect -d {old}"))?;
        lab.await_requests(&disk, 200)?;
        end_fio(lab, job)
    })
}

/// With requests on the way, the target hangs, is replaced by one on another node, and wakes up:
/// the host has both paths then.
#[test]
fn a_target_that_hangs_moves_and_stays_away() -> Result<()> {
    with_copies(|lab| {
        let old = lab.connect(Way::First, TIMERS)?;
        let disk = lab.disk()?;
        let job = start_fio(lab, &disk)?;
        lab.await_requests(&disk, 200)?;
        lab.target.with(async |fleet, _| first(fleet)?.engine()?.program.signal(Signal::STOP))?;
        lab.target.move_to(1)?;
        let new = lab.connect(Way::First, TIMERS)?;
        lab.await_state(&new, "live")?;
        lab.target.with(async |fleet, _| first(fleet)?.engine()?.program.signal(Signal::CONT))?;
        let fenced = TargetState::Shutdown { cause: StopCause::Fenced };
        lab.target.with(async |fleet, target| {
            let old = id(40)?;
            fleet.until(old, 0, |status| status.state == fenced).await?;
            fleet.until_open(target, 1).await
        })?;
        lab.await_requests(&disk, 200).context("the new target carries on")?;
        lab.sh(&format!("nvme disconnect -d {old}"))?;
        end_fio(lab, job)
    })
}

fn first(fleet: &mut Fleet) -> Result<&mut Machine> {
    fleet.machines.first_mut().context("there is no node")
}

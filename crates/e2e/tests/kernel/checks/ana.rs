//! Paths become better, worse and useless under load; the disk stays, and no request fails.

use anyhow::{Context, Result};
use e2e::vm::{Kernel, Vm};

use super::paths::{TIMERS, end_fio, path_disk, start_fio};
use crate::lab::{Lab, Target, Way};
use crate::nvmet::Nvmet;
use crate::pair::Pair;
use crate::shared::with_kernel;

/// States of both paths as sysfs calls them, and the path that is used then.
const STATES: [(&str, &str, Way); 6] = [
    ("optimized", "inaccessible", Way::First),
    ("inaccessible", "optimized", Way::Second),
    ("non-optimized", "optimized", Way::Second),
    ("non-optimized", "inaccessible", Way::First),
    ("optimized", "non-optimized", Way::First),
    ("inaccessible", "non-optimized", Way::Second),
];

/// The kernel's own target: if this fails, the check is wrong.
#[test]
fn reference_states_are_switched_under_load() -> Result<()> {
    with_kernel(Kernel::V6_12, |vm| {
        let nvmet = Nvmet::start(vm, None)?;
        let target = nvmet.clone();
        switch(vm, Box::new(nvmet), &|way, state| target.set_ana(vm, way, state))
    })
}

#[test]
fn holdfast_states_are_switched_under_load() -> Result<()> {
    with_kernel(Kernel::V6_12, |vm| {
        let pair = Pair::start()?;
        let switches = pair.switches()?;
        switch(vm, Box::new(pair), &|way, state| switches.set_ana(way, state))
    })
}

/// Goes through all states twice while fio writes and verifies.
fn switch(vm: &Vm, target: Box<dyn Target>, set: &dyn Fn(Way, &str) -> Result<()>) -> Result<()> {
    let lab = Lab { vm, target, secrets: None };
    let first = lab.connect(Way::First, TIMERS)?;
    let second = lab.connect(Way::Second, TIMERS)?;
    let disk = lab.disk()?;
    let paths = [path_disk(&lab, &first)?, path_disk(&lab, &second)?];
    let job = start_fio(&lab, &disk)?;
    lab.await_requests(&disk, 50)?;
    for (one, other, used) in STATES.iter().chain(&STATES) {
        // In between, both may be useless: then requests wait.
        set(Way::First, one)?;
        set(Way::Second, other)?;
        let states = [(&paths[0], one), (&paths[1], other)];
        for (path, state) in states {
            await_ana(&lab, path, state)?;
        }
        let path = if *used == Way::First { &paths[0] } else { &paths[1] };
        lab.await_requests(path, 50)
            .with_context(|| format!("with {one} and {other} the {used:?} path is used"))?;
    }
    end_fio(&lab, job)?;
    lab.close()
}

/// Waits until Linux knows of a state.
fn await_ana(lab: &Lab, path: &str, state: &str) -> Result<()> {
    lab.sh(&format!("await '[ \"$(cat /sys/class/block/{path}/ana_state)\" = {state} ]'"))
        .with_context(|| format!("wait for {path} to be {state}"))?;
    Ok(())
}

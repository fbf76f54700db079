//! Paths and targets come and go; the disk stays, and no request fails.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::vm::Job;

use crate::lab::{Lab, PATIENCE, Target, Way};

/// So short that a test need not wait; a lost controller is never given up.
pub(super) const TIMERS: &str = "--keep-alive-tmo=2 --reconnect-delay=1 --ctrl-loss-tmo=600";

/// How long fio goes on after everything is well again.
const LONGEST: Duration = Duration::from_mins(4);

/// With requests going both ways, one way is cut and mended.
pub(super) fn lose_one_of_two(lab: &mut Lab) -> Result<()> {
    let first = lab.connect(Way::First, TIMERS)?;
    let second = lab.connect(Way::Second, TIMERS)?;
    let disk = lab.disk()?;
    lab.sh("for s in /sys/class/nvme-subsystem/*; do \
           if [ $(cat $s/subsysnqn) = $NQN ]; then echo round-robin > $s/iopolicy; fi; done")?;
    let job = start_fio(lab, &disk)?;
    for controller in [&first, &second] {
        let path = path_disk(lab, controller)?;
        lab.await_requests(&path, 50).context("both paths are used")?;
    }
    let vm = lab.vm;
    lab.target.set_second_way(vm, false)?;
    lab.await_state(&second, "connecting")?;
    lab.await_requests(&disk, 200).context("the first path carries on alone")?;
    lab.target.set_second_way(vm, true)?;
    lab.await_state(&second, "live")?;
    let path = path_disk(lab, &second)?;
    lab.await_requests(&path, 50).context("the mended path is used again")?;
    end_fio(lab, job)
}

/// With requests on the way, the target is killed and comes back. It has a volatile cache, but what
/// it acknowledged does not die with it.
pub(super) fn kill_and_revive(lab: &mut Lab) -> Result<()> {
    let controller = lab.connect(Way::First, TIMERS)?;
    let disk = lab.disk()?;
    let job = start_fio(lab, &disk)?;
    for _ in 0..2 {
        lab.await_requests(&disk, 200)?;
        let vm = lab.vm;
        lab.target.kill(vm)?;
        lab.await_state(&controller, "connecting")?;
        lab.target.revive(vm)?;
        lab.await_state(&controller, "live")?;
    }
    lab.await_requests(&disk, 200)?;
    end_fio(lab, job)
}

/// With requests on the way, a copy of the volume dies and comes back; the path stays.
pub(super) fn lose_a_copy(lab: &mut Lab) -> Result<()> {
    let controller = lab.connect(Way::First, TIMERS)?;
    let disk = lab.disk()?;
    let job = start_fio(lab, &disk)?;
    for _ in 0..2 {
        lab.await_requests(&disk, 200)?;
        let vm = lab.vm;
        lab.target.kill(vm)?;
        lab.await_requests(&disk, 200).context("the other copies carry on")?;
        lab.target.revive(vm)?;
    }
    lab.await_requests(&disk, 200)?;
    lab.await_state(&controller, "live")?;
    end_fio(lab, job)
}

/// Writes and verifies until a file appears.
pub(super) fn start_fio(lab: &Lab<impl Target + ?Sized>, disk: &str) -> Result<Job> {
    lab.spawn(&format!(
        "rm -f /tmp/enough; while [ ! -e /tmp/enough ]; do \
           fio --name=steady --filename={disk} --direct=1 --ioengine=libaio --iodepth=8 \
               --rw=randwrite --bs=4k --size=2m --verify=crc32c --verify_fatal=1 \
               --output=/tmp/steady || {{ status=$?; cat /tmp/steady; exit $status; }}; \
         done"
    ))
}

pub(super) fn end_fio(lab: &Lab<impl Target + ?Sized>, job: Job) -> Result<()> {
    lab.vm.run("touch /tmp/enough", PATIENCE)?.ok()?;
    job.wait(LONGEST)?.ok().context("fio saw an error")?;
    let errors = lab.try_sh("dmesg | grep -E 'I/O error|Buffer I/O|blk_update_request'")?;
    if errors.status == 0 {
        bail!("the kernel reported errors:\n{}", errors.stdout);
    }
    Ok(())
}

/// The hidden block device of one path, for example `nvme0c1n1`.
pub(super) fn path_disk(lab: &Lab, controller: &str) -> Result<String> {
    let find = format!("ls /sys/class/nvme/{controller} | grep -E '^nvme[0-9]+c[0-9]+n[0-9]+$'");
    let name = lab.sh(&format!("await '{find} > /tmp/path'; cat /tmp/path"))?;
    Ok(name.trim().to_owned())
}

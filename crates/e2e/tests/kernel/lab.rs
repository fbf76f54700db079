//! A guest, a target and a connection between them: what a check works with.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use e2e::vm::{Job, Output, Vm};
use serde_json::Value;

/// More than any command needs on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// The size of every namespace: XFS wants at least 300 MiB.
pub(crate) const SIZE: u64 = 320 << 20;

/// Where a target listens, as the guest sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portal {
    pub(crate) address: &'static str,
    pub(crate) port: u16,
}

/// The two ways from the guest to the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    First,
    Second,
}

/// Keys of DH-HMAC-CHAP in their text form.
#[derive(Debug, Clone)]
pub(crate) struct Secrets {
    pub(crate) host_nqn: String,
    /// Proves the host to the target.
    pub(crate) host: String,
    /// Proves the target to the host.
    pub(crate) controller: String,
}

/// A target with one namespace of [`SIZE`], reachable two ways.
pub(crate) trait Target {
    fn nqn(&self) -> &str;
    fn portal(&self, way: Way) -> Portal;
    /// Cuts the second way, so that nothing gets through, and mends it.
    fn set_second_way(&mut self, vm: &Vm, open: bool) -> Result<()>;
    /// Ends the target at once, without a word to its hosts.
    fn kill(&mut self, vm: &Vm) -> Result<()>;
    /// Starts it again, where it was, with the data it had.
    fn revive(&mut self, vm: &Vm) -> Result<()>;
    /// What it said, for a failed test.
    fn said(&self) -> String;
    /// Removes it.
    fn remove(self: Box<Self>, vm: &Vm) -> Result<()>;
}

/// Functions that every script of a check may use; `$NQN` is the target's.
pub(crate) const FUNCTIONS: &str = r#"
await() { until eval "$1"; do sleep 0.1; done; }
controllers() {
    for c in /sys/class/nvme/nvme*; do
        if [ "$(cat $c/subsysnqn 2>/dev/null)" = "$NQN" ]; then echo ${c##*/}; fi
    done
}
disks() {
    for s in /sys/class/nvme-subsystem/nvme-subsys*; do
        if [ "$(cat $s/subsysnqn 2>/dev/null)" = "$NQN" ]; then
            ls $s | grep -E '^nvme[0-9]+n[0-9]+$' || true
        fi
    done
}
"#;

/// What a check gets; one that is about one kind of target gets just that.
pub(crate) struct Lab<'a, T: Target + ?Sized = dyn Target> {
    pub(crate) vm: &'a Vm,
    pub(crate) target: Box<T>,
    /// What the target was told, if this is about authentication.
    pub(crate) secrets: Option<Secrets>,
}

impl<T: Target + ?Sized> Lab<'_, T> {
    /// Runs a script in the guest and returns what it printed; it must succeed.
    pub(crate) fn sh(&self, script: &str) -> Result<String> {
        self.try_sh(script)?.ok()
    }

    /// Runs a script in the guest that may fail.
    pub(crate) fn try_sh(&self, script: &str) -> Result<Output> {
        self.vm.run(&self.with_functions(script), PATIENCE)
    }

    /// Starts a script in the guest.
    pub(crate) fn spawn(&self, script: &str) -> Result<Job> {
        self.vm.spawn(&self.with_functions(script))
    }

    fn with_functions(&self, script: &str) -> String {
        format!("set -e; . /run/functions.sh; NQN={}; {script}", self.target.nqn())
    }

    /// Runs a command that prints JSON.
    pub(crate) fn json(&self, command: &str) -> Result<Value> {
        let text = self.sh(command)?;
        serde_json::from_str(&text).with_context(|| format!("{command} printed {text}"))
    }

    /// `nvme connect`, and the name of the controller it made.
    pub(crate) fn connect(&self, way: Way, options: &str) -> Result<String> {
        let Portal { address, port } = self.target.portal(way);
        let script = format!(
            "controllers > /tmp/before; \
             nvme connect -t tcp -a {address} -s {port} -n $NQN {options} >&2; \
             controllers | grep -v -x -f /tmp/before"
        );
        Ok(self.sh(&script)?.trim().to_owned())
    }

    /// Waits for the block device of the target's namespace.
    pub(crate) fn disk(&self) -> Result<String> {
        let script = "await '[ -n \"$(disks)\" ]'; D=$(disks); await \"[ -b /dev/$D ]\"; echo $D";
        let name = self.sh(script)?;
        Ok(format!("/dev/{}", name.trim()))
    }

    /// Connects one way without options; the block device's name.
    pub(crate) fn connected_disk(&self) -> Result<String> {
        self.connect(Way::First, "")?;
        self.disk()
    }

    /// Waits until a controller is in this state.
    pub(crate) fn await_state(&self, controller: &str, state: &str) -> Result<()> {
        let file = format!("/sys/class/nvme/{controller}/state");
        let script = format!("await '[ \"$(cat {file} 2>/dev/null)\" = {state} ]'");
        self.sh(&script).with_context(|| format!("wait for {controller} to be {state}"))?;
        Ok(())
    }

    /// Waits until this many more requests have ended on a block device, as proof of progress.
    pub(crate) fn await_requests(&self, disk: &str, more: u32) -> Result<()> {
        let name = disk.trim_start_matches("/dev/");
        let script = format!(
            "ended() {{ awk '{{ print $1 + $5 }}' /sys/class/block/{name}/stat; }}; \
             goal=$(($(ended) + {more})); await '[ $(ended) -ge $goal ]'"
        );
        self.sh(&script).with_context(|| format!("wait for {more} more requests on {disk}"))?;
        Ok(())
    }

    /// Disconnects from the target.
    pub(crate) fn disconnect(&self) -> Result<()> {
        self.sh("nvme disconnect -n $NQN; await '[ -z \"$(controllers)\" ]'").map(drop)
    }

    /// Disconnects and removes the target.
    pub(crate) fn close(self) -> Result<()> {
        self.disconnect()?;
        self.target.remove(self.vm)
    }
}

/// Fails with a clear text unless both are equal.
#[expect(clippy::needless_pass_by_value, reason = "callers compare what they just made")]
pub(crate) fn expect_eq<T: PartialEq + std::fmt::Debug>(
    what: &str,
    found: T,
    right: T,
) -> Result<()> {
    if found == right { Ok(()) } else { bail!("{what} is {found:?}, not {right:?}") }
}

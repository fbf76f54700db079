//! A mirrored volume with copies in three engines on this machine.

use anyhow::{Context, Result};
use e2e::fleet::{Fleet, Machine, Plan, id};
use e2e::store::Kind;
use e2e::vm::{HOST, Link, SECOND_HOST, Vm};
use model::{Nqn, TargetId};
use tokio::runtime::Runtime;

use crate::lab::{PATIENCE, Portal, SIZE, Target, Way};

/// The last copy.
const LAST: usize = 2;

/// Three engines; the first one has the target, until it moves. What dies and is revived is the
/// last copy.
pub(crate) struct Mirrored {
    fleet: Fleet,
    target: TargetId,
    /// The node that has the target.
    on: usize,
    nqn: String,
    runtime: Runtime,
}

impl Mirrored {
    pub(crate) fn start(vm: &Vm) -> Result<Mirrored> {
        let runtime = Runtime::new().context("start a runtime")?;
        let host = vm.run("cat /etc/nvme/hostnqn", PATIENCE)?.ok()?;
        let mut plan = Plan::default_for(Kind::Embedded, host.trim());
        // The loopback that the guest reaches.
        plan.addresses.fill(([127, 0, 0, 1], 0).into());
        let plan = Plan { pool: 1024, volume: u32::try_from(SIZE >> 20)?, ..plan };
        let target = id(40)?;
        let fleet = runtime.block_on(async {
            let mut fleet = Fleet::start(plan).await?;
            fleet.open(target, 0).await?;
            fleet.until_open(target, 0).await?;
            anyhow::Ok(fleet)
        })?;
        let nqn = Nqn::volume(fleet.volume).to_string();
        Ok(Mirrored { fleet, target, on: 0, nqn, runtime })
    }

    /// Lets something happen to the engines.
    pub(crate) fn with<T>(
        &mut self,
        happens: impl AsyncFnOnce(&mut Fleet, TargetId) -> Result<T>,
    ) -> Result<T> {
        self.runtime.block_on(happens(&mut self.fleet, self.target))
    }

    /// Opens a target of the next epoch on another node, as the control plane does when the one
    /// before is gone.
    pub(crate) fn move_to(&mut self, nth: usize) -> Result<()> {
        let next = id(41)?;
        self.runtime.block_on(self.fleet.open(next, nth))?;
        (self.target, self.on) = (next, nth);
        Ok(())
    }

    /// Shuts the target down and compares the first blocks of all copies.
    pub(crate) fn compare(&mut self, blocks: u64) -> Result<()> {
        self.runtime.block_on(self.fleet.close(self.target, self.on))?;
        self.fleet.copies_agree(blocks)
    }
}

impl Target for Mirrored {
    fn nqn(&self) -> &str {
        &self.nqn
    }

    fn portal(&self, way: Way) -> Portal {
        let port = self.fleet.machine(self.on).map_or(0, |machine| machine.listen().port());
        match way {
            Way::First => Portal { address: HOST, port },
            Way::Second => Portal { address: SECOND_HOST, port },
        }
    }

    fn set_second_way(&mut self, vm: &Vm, open: bool) -> Result<()> {
        vm.set_link(Link::Second, open)
    }

    fn kill(&mut self, _: &Vm) -> Result<()> {
        self.fleet.machines.get_mut(LAST).context("the last node")?.kill()?;
        self.runtime.block_on(self.fleet.until_lost((self.target, self.on), LAST))
    }

    fn revive(&mut self, _: &Vm) -> Result<()> {
        self.runtime.block_on(async {
            self.fleet.restart(LAST).await?;
            self.fleet.until_open(self.target, self.on).await
        })
    }

    fn said(&self) -> String {
        self.fleet.machine(self.on).map_or_else(|error| error.to_string(), Machine::said)
    }

    fn remove(self: Box<Self>, _: &Vm) -> Result<()> {
        let Mirrored { mut fleet, .. } = *self;
        // The target first, so that it ends cleanly.
        fleet.machines.iter_mut().try_for_each(Machine::stop)
    }
}

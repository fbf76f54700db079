//! A mirrored volume with copies in three engines on this machine.

use anyhow::{Context, Result};
use e2e::copies;
use e2e::fleet::{Fleet, Plan, id};
use e2e::netns::Netns;
use e2e::store::Kind;
use e2e::vm::{HOST, Link, SECOND_HOST, Vm};
use model::{Nqn, TargetId};
use tokio::runtime::Runtime;

use crate::lab::{PATIENCE, Portal, SIZE, Target, Trouble, Way};
use crate::troubles::Troubled;

/// The last copy: what dies and is revived, hangs or is full.
pub(crate) const LAST: usize = 2;

/// Three engines, one of which has the target.
pub(crate) struct Mirrored {
    fleet: Fleet,
    target: TargetId,
    /// Where it is.
    on: usize,
    host: String,
    nqn: String,
    runtime: Runtime,
}

impl Mirrored {
    pub(crate) fn start(vm: &Vm) -> Result<Mirrored> {
        let runtime = Runtime::new().context("start a runtime")?;
        let host = vm.run("cat /etc/nvme/hostnqn", PATIENCE)?.ok()?;
        let host = host.trim().to_owned();
        // The loopback that the guest reaches.
        let addresses = vec![([127, 0, 0, 1], 0).into(); 3];
        let plan = Plan {
            addresses,
            pool: 1024,
            volume: u32::try_from(SIZE >> 20)?,
            ..Plan::usual(Kind::Embedded, &host)
        };
        let plan = plan.with_network(Netns::new()?);
        let target = id(40)?;
        let fleet = runtime.block_on(async {
            let mut fleet = Fleet::start(plan).await?;
            fleet.open(target, 0).await?;
            fleet.until_open(target, 0).await?;
            anyhow::Ok(fleet)
        })?;
        let nqn = Nqn::volume(fleet.volume).to_string();
        Ok(Mirrored { fleet, target, on: 0, host, nqn, runtime })
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

    fn trouble(&mut self, trouble: Trouble) -> Result<()> {
        let mut troubled = Troubled { fleet: &mut self.fleet, target: self.target, on: self.on };
        self.runtime.block_on(troubled.meet(trouble))?;
        (self.target, self.on) = (troubled.target, troubled.on);
        Ok(())
    }

    fn said(&self) -> String {
        self.fleet
            .machine(self.on)
            .map_or_else(|error| error.to_string(), e2e::fleet::Machine::said)
    }

    fn remove(self: Box<Self>, _: &Vm) -> Result<()> {
        let Mirrored { mut fleet, target, on, host, nqn, runtime } = *self;
        runtime.block_on(fleet.until_open(target, on))?;
        // What a disk still has wrong is mended when it is read.
        let mut volume = copies::connect(fleet.machine(on)?.listen(), (&host, &nqn))?;
        copies::sum(&mut volume, SIZE)?;
        drop(volume);
        // It ends cleanly, with copies that are equal to the last byte.
        runtime.block_on(fleet.close(target, on))?;
        copies::compare(&fleet, &host, SIZE)?;
        fleet.machines.iter_mut().try_for_each(e2e::fleet::Machine::stop)
    }
}

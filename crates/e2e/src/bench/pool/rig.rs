//! A reactor with a pool and a bare file side by side, and loads on them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use block::{BlockSize, Blocks, Bytes, Command};
use engine::device::{Data, DeviceId, Devices, Finished, Job, Task, TokenKinds};
use engine::pools::{NewDisk, NewPool, PoolRequest, PoolResponse, Ticket};
use pool::{Change, ClusterSize, Id, Label, NewReplica};
use reactor::{Buffer, Config, Event, Handler, Io, Reactor, SharedBuffer};

const FILES: u8 = 1;
const POOLS: u8 = 2;

/// The pool of every rig.
pub(super) const POOL: Id = Id(1);

/// A reactor with devices.
pub(in crate::bench) struct Rig {
    reactor: Reactor<()>,
    inner: Inner,
    /// What every write writes.
    payload: SharedBuffer,
    spare: Vec<Buffer>,
}

struct Inner {
    devices: Devices<Instant>,
}

impl Handler for Inner {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        if let Event::Done { token, outcome } = event {
            match token.parts() {
                (POOLS, key) => self.devices.pools.on(key, outcome, io),
                (_, key) => self.devices.on(key, outcome, io),
            }
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = ()>) -> bool {
        self.devices.retry(io);
        true
    }
}

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) enum Until {
    /// After so long.
    Time(Duration),
    /// After so many commands.
    Count(u64),
}

/// What was seen of a load.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Seen {
    pub(super) commands: u64,
    pub(super) elapsed: Duration,
}

impl Seen {
    pub(in crate::bench) fn iops(self) -> f64 {
        super::real(self.commands) / self.elapsed.as_secs_f64()
    }
}

impl Rig {
    pub(in crate::bench) fn new() -> Result<Rig> {
        let mut reactor = Reactor::new(&Config::default()).context("cannot set up a reactor")?;
        let mut payload = reactor.take(4096).context("no buffer")?;
        payload.fill(0x5A);
        let devices = Devices::new(TokenKinds { files: FILES, pools: POOLS });
        let payload = payload.freeze();
        Ok(Rig { reactor, inner: Inner { devices }, payload, spare: Vec::new() })
    }

    /// Carries out an order.
    pub(super) fn order(&mut self, order: PoolRequest) -> Result<PoolResponse> {
        self.inner.devices.pools.request(Ticket(0), order, &mut self.reactor);
        loop {
            if let Some((_, answer)) = self.inner.devices.pools.poll_answer() {
                return answer.context("the pool refused an order");
            }
            self.reactor.turn(&mut self.inner)?;
        }
    }

    /// Sets the memory for the cache of pools that are opened from now on.
    pub(super) fn set_cache(&mut self, bytes: Bytes) {
        self.inner.devices.pools.set_cache(bytes);
    }

    /// Makes a pool on a file, whatever is on it.
    pub(super) fn create(&mut self, path: &Path) -> Result<()> {
        let disks = vec![NewDisk { path: path.into(), id: Id(2) }];
        let (name, cluster) = ("bench".to_owned(), ClusterSize::DEFAULT);
        self.order(PoolRequest::Create(NewPool { id: POOL, name, cluster, disks, force: true }))?;
        Ok(())
    }

    pub(super) fn import(&mut self, path: &Path) -> Result<()> {
        self.order(PoolRequest::Import { paths: vec![PathBuf::from(path)] })?;
        Ok(())
    }

    /// Closes the pool.
    pub(super) fn leave(&mut self) -> Result<()> {
        self.order(PoolRequest::Export(POOL))?;
        Ok(())
    }

    /// Waits until the pool has no more than so many clusters in use.
    pub(super) fn wait_for_space(&mut self, clusters: u64) -> Result<()> {
        let begun = Instant::now();
        loop {
            let PoolResponse::Pool(status) = self.order(PoolRequest::Status(POOL))? else {
                bail!("no status")
            };
            let used = (status.usage.own.0 + status.usage.pending.0) / status.cluster.0;
            if used <= clusters {
                return Ok(());
            }
            if begun.elapsed() > Duration::from_secs(20) {
                bail!("{used} clusters are in use where {clusters} are needed");
            }
            self.reactor.turn(&mut self.inner)?;
        }
    }

    pub(super) fn change(&mut self, change: Change) -> Result<()> {
        self.order(PoolRequest::Change { pool: POOL, change })?;
        Ok(())
    }

    /// Makes a thin replica.
    pub(super) fn replica(&mut self, id: Id, size: Blocks) -> Result<DeviceId> {
        let (origin, label, key) = (Id::NONE, Label::default(), Vec::new());
        let new = NewReplica { id, origin, size, thick: false, created: 0, label, key };
        self.change(Change::Create(new))?;
        self.attach(id)
    }

    /// A replica that the pool has.
    pub(super) fn attach(&mut self, id: Id) -> Result<DeviceId> {
        Ok(self.inner.devices.add_replica(POOL, id)?)
    }

    /// A file as it is.
    pub(in crate::bench) fn file(&mut self, path: &Path) -> Result<DeviceId> {
        Ok(self.inner.devices.add_file(path, BlockSize::B4096, &mut self.reactor)?)
    }

    fn start(&mut self, device: DeviceId, command: Command) -> Result<()> {
        let data = match command {
            Command::Read { .. } => {
                let spare = self.spare.pop().or_else(|| self.reactor.take(4096));
                Data::Fill(spare.context("no buffer")?)
            }
            Command::Write { .. } => Data::Bytes(self.payload.clone()),
            _ => Data::None,
        };
        let job = Job { owner: Instant::now(), task: Task::Command(command), data };
        let started = self.inner.devices.start(device, job, &mut self.reactor);
        started.map_err(|_| anyhow!("the device takes no more commands"))
    }

    /// Waits for a command to end; answers how long it took.
    fn finish(&mut self) -> Result<Duration> {
        loop {
            if let Some(Finished { owner, completion, data }) =
                self.inner.devices.poll(&mut self.reactor)
            {
                if let Err(fault) = completion {
                    bail!("a command failed: {fault}");
                }
                if let Data::Fill(buffer) = data {
                    self.spare.push(buffer);
                }
                return Ok(owner.elapsed());
            }
            self.reactor.turn(&mut self.inner)?;
        }
    }

    /// Keeps `depth` commands under way.
    pub(in crate::bench) fn load(
        &mut self,
        device: DeviceId,
        depth: u64,
        until: Until,
        mut next: impl FnMut() -> Command,
    ) -> Result<Seen> {
        let begun = Instant::now();
        let (mut started, mut commands) = (0, 0);
        let goes_on = |started: u64| match until {
            // The clock is looked at only now and then.
            Until::Time(time) => !started.is_multiple_of(64) || begun.elapsed() < time,
            Until::Count(count) => started < count,
        };
        let mut is_going = true;
        while is_going || started > commands {
            while is_going && started - commands < depth {
                self.start(device, next())?;
                started += 1;
                is_going = goes_on(started);
            }
            self.finish()?;
            commands += 1;
        }
        Ok(Seen { commands, elapsed: begun.elapsed() })
    }

    /// Runs commands one after another, and answers how long they took.
    pub(super) fn one_by_one(
        &mut self,
        device: DeviceId,
        commands: &[Command],
    ) -> Result<Duration> {
        let begun = Instant::now();
        for command in commands {
            self.start(device, *command)?;
            self.finish()?;
        }
        Ok(begun.elapsed())
    }
}

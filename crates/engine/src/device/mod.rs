//! What namespaces are made of: memory, files, block devices and replicas of pools, all taking
//! block commands.
//!
//! A [`Job`] is one command on its way through a device. It goes in by [`Devices::start`] and comes
//! out of [`Devices::poll`] when it is finished, at once or after some events of the reactor.
//!
//! Invariants:
//! - Every job that was started comes out exactly once, with its data.
//! - Compare-and-write runs alone on its device: nothing that was started later overtakes it.
//! - Data is never copied here, except into memory that is the device itself and, if it is little,
//!   out of it, and out of receive buffers, which must be free again soon.

mod block_service;
mod change;
mod file;
mod job;
mod memory;

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use block::{BadGeometry, BlockSize, Bytes, Command, Completion, Geometry};
use model::VolumeId;
use reactor::{Access, Io, Key, Outcome, Refused, Slab, Token};

pub use job::{Both, Data, Job, Task};
use job::{Progress, Running, Stage};
use memory::Memory;

use crate::pools::{CompletedCommand, Pools, Replica};

/// One of the devices of a reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(Key);

/// All devices of one reactor, and the jobs on them. `O` is what the owner of a job knows it by.
#[derive(Debug)]
pub struct Devices<O> {
    devices: Slab<Device>,
    running: Slab<Running<O>>,
    /// Jobs that could not go on for want of a buffer or an operation of the reactor.
    stalled: VecDeque<Key>,
    finished: VecDeque<Finished<O>>,
    token_kind: u8,
    /// The pools that replicas are in.
    pub pools: Pools,
    /// Commands on their way to mirrored volumes.
    for_volumes: VecDeque<ForVolume>,
}

/// A command for a mirrored volume; it comes back by [`Devices::ended`].
#[derive(Debug)]
pub(crate) struct ForVolume {
    /// Which volume.
    pub(crate) volume: VolumeId,
    /// Whose it is.
    pub(crate) owner: Key,
    /// What to do.
    pub(crate) command: Command,
    /// With which bytes.
    pub(crate) data: Data,
}

/// A job that came out.
#[derive(Debug)]
pub struct Finished<O> {
    /// Who started it.
    pub owner: O,
    /// How it went.
    pub completion: Completion,
    /// The data that went in; of a read, filled or found.
    pub data: Data,
}

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot open {path}")]
    Open {
        /// Which file.
        path: String,
        /// What it said.
        source: io::Error,
    },
    /// Its size makes no device.
    #[error("{path} cannot be a device")]
    Geometry {
        /// Which file.
        path: String,
        /// Why.
        source: BadGeometry,
    },
    /// Direct I/O on it needs larger blocks.
    #[error("{path} needs I/O in units of {alignment} bytes; use block={alignment}")]
    Alignment {
        /// Which file.
        path: String,
        /// The unit.
        alignment: u32,
    },
    /// As many devices as a reactor has room for.
    #[error("there is no room for another device; give the engine more cores")]
    Full,
    /// There is no such replica.
    #[error(
        "no pool of this core has the replica; import the pool and create the replica, and keep \
         the namespaces of one subsystem in one pool"
    )]
    NoReplica,
}

/// Kinds of the tokens of a reactor's operations.
#[derive(Clone, Copy, Debug)]
pub struct TokenKinds {
    /// Of operations on files: they come back by [`Devices::on`].
    pub files: u8,
    /// Of operations of pools: they come back by [`Pools::on`].
    pub pools: u8,
}

#[derive(Debug)]
struct Device {
    backing: Backing,
    geometry: Geometry,
    /// Jobs at work.
    active: u32,
    /// Whether the one at work must be alone.
    exclusive: bool,
    /// Jobs that wait for an exclusive one, in order.
    waiting: VecDeque<Key>,
}

#[derive(Debug)]
enum Backing {
    Memory(Memory),
    File(reactor::FileId),
    Replica(Replica),
    Volume(VolumeId),
}

impl<O> Devices<O> {
    /// No devices, no pools.
    pub fn new(tokens: TokenKinds) -> Devices<O> {
        const DEVICES: u32 = 4096;
        // More jobs than operations of a reactor are of no use.
        const JOBS: u32 = 16 * 1024;
        Devices {
            devices: Slab::new(DEVICES),
            running: Slab::new(JOBS),
            stalled: VecDeque::new(),
            finished: VecDeque::new(),
            token_kind: tokens.files,
            pools: Pools::new(tokens.pools),
            for_volumes: VecDeque::new(),
        }
    }

    /// Adds a device of zeros in memory. Memory is used as it is written.
    pub fn add_memory(&mut self, geometry: Geometry) -> Result<DeviceId, OpenError> {
        self.add(Backing::Memory(Memory::new(geometry.bytes())), geometry)
    }

    /// Adds a file or block device.
    pub fn add_file(
        &mut self,
        path: &Path,
        block_size: BlockSize,
        io: &mut impl Io,
    ) -> Result<DeviceId, OpenError> {
        let name = || path.display().to_string();
        let opened = io
            .open(path, Access::ReadWrite)
            .map_err(|source| OpenError::Open { path: name(), source })?;
        if opened.alignment > block_size.bytes() {
            io.close_file(opened.file);
            return Err(OpenError::Alignment { path: name(), alignment: opened.alignment });
        }
        let geometry = Geometry::of_bytes(block_size, Bytes(opened.bytes))
            .map_err(|source| OpenError::Geometry { path: name(), source });
        match geometry {
            Ok(geometry) => self.add(Backing::File(opened.file), geometry),
            Err(error) => {
                io.close_file(opened.file);
                Err(error)
            }
        }
    }

    /// Adds a replica or snapshot of an open pool.
    pub fn add_replica(&mut self, pool: pool::Id, id: pool::Id) -> Result<DeviceId, OpenError> {
        let replica = self.pools.replica(pool, id).ok_or(OpenError::NoReplica)?;
        let blocks = self.pools.size(replica).ok_or(OpenError::NoReplica)?;
        let bad = |source| OpenError::Geometry { path: format!("replica {:032x}", id.0), source };
        let geometry = Geometry::new(BlockSize::B4096, blocks).map_err(bad)?;
        self.add(Backing::Replica(replica), geometry)
    }

    /// Adds a mirrored volume. Its commands come out by [`Devices::for_volume`].
    pub(crate) fn add_volume(
        &mut self,
        id: VolumeId,
        geometry: Geometry,
    ) -> Result<DeviceId, OpenError> {
        self.add(Backing::Volume(id), geometry)
    }

    /// The next command for a mirrored volume.
    pub(crate) fn for_volume(&mut self) -> Option<ForVolume> {
        self.for_volumes.pop_front()
    }

    /// A command on a pool or a volume has ended.
    pub(crate) fn ended(&mut self, ended: CompletedCommand, io: &mut impl Io) {
        let CompletedCommand { owner, completion, data } = ended;
        if let Some(running) = self.running.get_mut(owner) {
            running.stage = Stage::Ended(completion, data);
            self.advance(owner, io);
        }
    }

    /// The shape of a device.
    pub fn geometry(&self, device: DeviceId) -> Option<Geometry> {
        self.devices.get(device.0).map(|device| device.geometry)
    }

    /// Puts a job in; hands it back if there are as many as there may be, or no such device.
    pub fn start(&mut self, device: DeviceId, job: Job<O>, io: &mut impl Io) -> Result<(), Job<O>> {
        if self.devices.get(device.0).is_none() {
            return Err(job);
        }
        let key = self.running.insert(Running::new(device, job)).map_err(Running::into_job)?;
        self.admit(key, io);
        Ok(())
    }

    /// Takes a finished job out.
    pub fn poll(&mut self, io: &mut impl Io) -> Option<Finished<O>> {
        while let Some(ended) = self.pools.poll_ended() {
            self.ended(ended, io);
        }
        self.finished.pop_front()
    }

    /// An operation with a token of our kind came back.
    pub fn on(&mut self, key: Key, outcome: Outcome, io: &mut impl Io) {
        if let Some(running) = self.running.get_mut(key) {
            running.absorb(outcome);
            self.advance(key, io);
        }
    }

    /// Tries again what had to wait for buffers. Returns whether something still waits.
    pub fn retry(&mut self, io: &mut impl Io) -> bool {
        let pools_wait = self.pools.retry(io);
        for _ in 0..self.stalled.len() {
            if let Some(key) = self.stalled.pop_front() {
                self.advance(key, io);
            }
        }
        pools_wait || !self.stalled.is_empty()
    }

    /// Jobs that are in.
    pub fn at_work(&self) -> usize {
        self.running.len()
    }

    fn add(&mut self, backing: Backing, geometry: Geometry) -> Result<DeviceId, OpenError> {
        let waiting = VecDeque::new();
        let device = Device { backing, geometry, active: 0, exclusive: false, waiting };
        self.devices.insert(device).map(DeviceId).map_err(|_| OpenError::Full)
    }

    /// Begins a job, or lines it up behind one that must be alone.
    fn admit(&mut self, key: Key, io: &mut impl Io) {
        let Some(running) = self.running.get(key) else { return };
        let alone = running.must_be_alone();
        let Some(device) = self.devices.get_mut(running.device().0) else { return };
        if device.exclusive || !device.waiting.is_empty() || (alone && device.active > 0) {
            device.waiting.push_back(key);
            return;
        }
        device.active += 1;
        device.exclusive = alone;
        self.advance(key, io);
    }

    fn advance(&mut self, key: Key, io: &mut impl Io) {
        let Some(running) = self.running.get_mut(key) else { return };
        let Some(device) = self.devices.get_mut(running.device().0) else { return };
        let progress = match &mut device.backing {
            Backing::Memory(memory) => {
                Progress::Finished(running.in_memory(memory, device.geometry))
            }
            Backing::File(file) => running.in_file(*file, device.geometry, io),
            Backing::Replica(replica) => {
                let mut pools = (*replica, &mut self.pools);
                running.forward(key, &mut pools, io)
            }
            Backing::Volume(volume) => {
                let mut volumes = (*volume, &mut self.for_volumes);
                running.forward(key, &mut volumes, io)
            }
        };
        match progress {
            Progress::Finished(completion) => self.finish(key, completion, io),
            Progress::Stalled => self.stalled.push_back(key),
            Progress::Waits => {}
            Progress::Submit(op) => match io.submit(op, Token::of(self.token_kind, key)) {
                Ok(_) => {}
                Err(Refused::Busy(op)) => {
                    if let Some(running) = self.running.get_mut(key) {
                        running.keep(op);
                    }
                    self.stalled.push_back(key);
                }
                Err(Refused::Closed(_) | Refused::NoSocket(_)) => {
                    self.finish(key, Err(block::IoError::Unreachable), io);
                }
            },
        }
    }

    fn finish(&mut self, key: Key, completion: Completion, io: &mut impl Io) {
        let Some(running) = self.running.remove(key) else { return };
        let device_id = running.device();
        let (owner, data) = running.into_parts();
        self.finished.push_back(Finished { owner, completion, data });
        let Some(device) = self.devices.get_mut(device_id.0) else { return };
        device.active = device.active.saturating_sub(1);
        device.exclusive = false;
        self.admit_waiting(device_id, io);
    }

    fn admit_waiting(&mut self, id: DeviceId, io: &mut impl Io) {
        while let Some(device) = self.devices.get_mut(id.0)
            && !device.exclusive
            && let Some(key) = device.waiting.front().copied()
            && let Some(running) = self.running.get(key)
        {
            let alone = running.must_be_alone();
            if alone && device.active > 0 {
                return;
            }
            device.waiting.pop_front();
            device.active += 1;
            device.exclusive = alone;
            self.advance(key, io);
        }
    }
}

#[cfg(test)]
mod tests;

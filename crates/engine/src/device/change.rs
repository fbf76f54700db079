//! Devices that grow, and devices that go.

use block::Geometry;
use reactor::Io;

use super::{Backing, DeviceId, Devices};

impl<O> Devices<O> {
    /// Lets a device have more blocks. What it is made of must have them already. Returns whether
    /// that was possible: the device is there, and neither shrinks nor gets other blocks.
    pub fn grow(&mut self, device: DeviceId, geometry: Geometry) -> bool {
        let Some(device) = self.devices.get_mut(device.0) else { return false };
        let has = device.geometry;
        if geometry.block_size() != has.block_size() || geometry.blocks() < has.blocks() {
            return false;
        }
        match &mut device.backing {
            Backing::Memory(memory) => memory.grow(geometry.bytes()),
            Backing::File(_) | Backing::Volume(_) => {}
            Backing::Replica(replica) => {
                if self.pools.size(*replica).is_none_or(|blocks| blocks < geometry.blocks()) {
                    return false;
                }
            }
        }
        device.geometry = geometry;
        true
    }

    /// Removes a device; not while it has jobs. Returns whether it is gone.
    pub fn remove(&mut self, device: DeviceId, io: &mut impl Io) -> bool {
        let Some(found) = self.devices.get(device.0) else { return true };
        if found.active > 0 || !found.waiting.is_empty() {
            return false;
        }
        if let Some(gone) = self.devices.remove(device.0)
            && let Backing::File(file) = gone.backing
        {
            io.close_file(file);
        }
        true
    }
}

//! How much room a copy needs, and whether a pool has it.

use model::{Size, VolumeId, VolumeSpec};

use super::Refusal;
use crate::view::PoolView;
use crate::{Budget, View};

/// The room that a copy takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// What will be written soon, or is set aside at once.
    pub(crate) bytes: Size,
    /// What must be free beside that.
    pub(crate) slack: Size,
    /// The least that the pool must hold in all.
    pub(crate) capacity: Size,
    /// What is promised.
    pub(crate) committed: Size,
}

impl Need {
    /// For a copy of a new volume that begins with so much.
    pub(crate) fn of_new(view: &View<'_>, spec: &VolumeSpec, written: Size) -> Need {
        Need::of(view, spec, written, view.settings.volume_commitment_initial)
    }

    /// For one more copy of a volume.
    pub(crate) fn of_more(view: &View<'_>, spec: &VolumeSpec, volume: VolumeId) -> Need {
        Need::of(view, spec, view.written(volume), view.settings.volume_commitment)
    }

    fn of(view: &View<'_>, spec: &VolumeSpec, written: Size, commitment: u32) -> Need {
        let (size, watermark) = (spec.size, view.settings.watermark);
        if !spec.thin {
            return Need { bytes: size, slack: Size::ZERO, capacity: size, committed: size };
        }
        // No more than the volume itself can ever be written.
        let wanted = written.plus(size.percent(commitment)).min(size.max(written));
        let slack = wanted.minus(written).plus(watermark);
        Need { bytes: written, slack, capacity: size, committed: size }
    }

    /// For a snapshot: what is written afterwards is written beside what it holds.
    pub(crate) fn of_snapshot(view: &View<'_>, size: Size) -> Need {
        let slack = size.percent(view.settings.snapshot_commitment).plus(view.settings.watermark);
        Need { bytes: Size::ZERO, slack, capacity: Size::ZERO, committed: size }
    }

    /// For a copy that grows by so much.
    pub(crate) fn of_growth(view: &View<'_>, spec: &VolumeSpec, more: Size) -> Need {
        if !spec.thin {
            return Need { bytes: more, slack: Size::ZERO, capacity: Size::ZERO, committed: more };
        }
        let slack = more.percent(view.settings.volume_commitment).plus(view.settings.watermark);
        Need { bytes: Size::ZERO, slack, capacity: Size::ZERO, committed: more }
    }
}

/// Whether a pool with one more copy is no fuller than this, in hundredths.
pub(crate) fn stays_below(
    budget: &Budget,
    pool: &PoolView<'_>,
    (need, most): (Need, u32),
) -> Result<(), Refusal> {
    let used = pool.used.plus(budget.taken(pool.pool.id()).bytes).plus(need.bytes);
    let most = pool.capacity.percent(most);
    if used <= most { Ok(()) } else { Err(Refusal::TooFull { used, most }) }
}

/// Whether a pool has the room, with what this round has given away of it.
pub(crate) fn fits(
    view: &View<'_>,
    budget: &Budget,
    pool: &PoolView<'_>,
    need: Need,
) -> Result<(), Refusal> {
    if pool.capacity < need.capacity {
        return Err(Refusal::TooSmall(pool.capacity));
    }
    let taken = budget.taken(pool.pool.id());
    let free = pool.free().minus(taken.bytes);
    let needed = need.bytes.plus(need.slack);
    if free < needed {
        return Err(Refusal::NoSpace { free, needed });
    }
    let committed = pool.committed.plus(taken.committed).plus(need.committed);
    let most = pool.capacity.percent(view.settings.pool_commitment);
    if committed > most {
        return Err(Refusal::OverCommitted { committed, most });
    }
    Ok(())
}

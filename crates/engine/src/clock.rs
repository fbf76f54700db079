//! The reactor's time, as the machines of the protocols know it.

use std::time::Duration;

use block::Instant;
use model::Timestamp;
use reactor::Io;

/// Now.
pub(crate) fn instant(io: &impl Io) -> Instant {
    Instant::since_start(Duration::from_nanos(io.now().nanos()))
}

/// The time of day.
pub(crate) fn wall() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let millis = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX));
    Timestamp::from_millis(millis)
}

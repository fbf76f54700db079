//! The reactor's time, as the machines of the protocols know it.

use std::time::Duration;

use block::Instant;
use reactor::Io;

/// Now.
pub(crate) fn instant(io: &impl Io) -> Instant {
    Instant::since_start(Duration::from_nanos(io.now().nanos()))
}

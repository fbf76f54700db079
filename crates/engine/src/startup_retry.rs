//! Patience with what is in use when an engine starts: the kernel closes the files and sockets of
//! an engine that was killed a moment after the engine is gone.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// How long it is waited for something to be free.
pub(crate) struct StartupRetry(Instant);

impl StartupRetry {
    /// It begins now.
    pub(crate) fn begin() -> StartupRetry {
        StartupRetry(Instant::now())
    }

    /// How long to wait before the next look; nothing when it is at its end.
    pub(crate) fn pause(&self) -> Option<Duration> {
        const MOST: Duration = Duration::from_secs(10);
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        (self.0.elapsed() < MOST).then_some(LOOK_AGAIN)
    }
}

/// Waits, with patience, while somebody listens there. Whether it may be used is seen later.
pub(crate) fn wait_until_free(address: SocketAddr) {
    let patience = StartupRetry::begin();
    let taken =
        || TcpListener::bind(address).is_err_and(|why| why.kind() == io::ErrorKind::AddrInUse);
    while address.port() != 0 && taken() {
        let Some(pause) = patience.pause() else { return };
        tracing::debug!(%address, "is in use; perhaps by an engine that was killed a moment ago");
        std::thread::sleep(pause);
    }
}

//! Patience with what is in use when an engine starts or imports a pool: the kernel closes files
//! and sockets of an engine that was killed, or that exported a pool, a moment later.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// How long it is waited for something to be free.
pub(crate) struct StartupRetry {
    began: Instant,
    most: Duration,
}

impl StartupRetry {
    /// It begins now, as the engine starts.
    pub(crate) fn begin() -> StartupRetry {
        StartupRetry { began: Instant::now(), most: Duration::from_secs(10) }
    }

    /// It begins now, for an order whose caller waits.
    pub(crate) fn for_order() -> StartupRetry {
        StartupRetry { began: Instant::now(), most: Duration::from_secs(2) }
    }

    /// How long to wait before the next look; nothing when it is at its end.
    pub(crate) fn pause(&self) -> Option<Duration> {
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        (self.began.elapsed() < self.most).then_some(LOOK_AGAIN)
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

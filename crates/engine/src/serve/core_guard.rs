//! A core that ends although nobody told it to: its pools, volumes and hosts are stuck, and only a
//! new process can take them up again.

use tokio::sync::watch;

/// Says when a core of an engine ended by itself.
pub type CoreFailures = watch::Receiver<Option<usize>>;

/// Kept by the thread of a core. If it is dropped before [`CoreGuard::expected`], by a panic or an
/// error, the failure of the core is told.
pub(super) struct CoreGuard {
    core: usize,
    failed: watch::Sender<Option<usize>>,
    is_expected: bool,
}

impl CoreGuard {
    pub(super) fn new(core: usize, failed: &watch::Sender<Option<usize>>) -> CoreGuard {
        CoreGuard { core, failed: failed.clone(), is_expected: false }
    }

    /// The core has ended as it was told.
    pub(super) fn expected(mut self) {
        self.is_expected = true;
    }
}

impl Drop for CoreGuard {
    fn drop(&mut self) {
        if !self.is_expected {
            self.failed.send_replace(Some(self.core));
        }
    }
}

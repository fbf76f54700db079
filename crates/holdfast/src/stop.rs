//! When a program is asked to stop.

use tokio::signal::unix::{SignalKind, signal};

/// Ends when the process gets an interrupt (Ctrl-C) or a request to terminate.
pub(crate) async fn asked() {
    let wait = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => {
                signal.recv().await;
            }
            // Without a handler the signal ends the process by itself.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = wait(SignalKind::interrupt()) => {}
        () = wait(SignalKind::terminate()) => {}
    }
}

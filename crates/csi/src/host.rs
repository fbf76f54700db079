//! This machine as a host of the control plane: known before the first volume is staged.

use std::time::Duration;

use api::rest::Control;
use model::{HostName, ProblemKind};

/// Between questions.
const AGAIN: Duration = Duration::from_millis(250);
/// Questions between two lines of the log.
const QUIET: u32 = 40;

/// Waits until the control plane knows a host. Volumes are published to hosts only, so a node that
/// served before that would fail its first stagings.
pub async fn wait_for_host<C: Control>(control: &C, host: &HostName) {
    for attempt in 0_u32.. {
        let Err(problem) = control.host(host.clone()).await else { return };
        if attempt % QUIET == 0 {
            let is_new = problem.kind == ProblemKind::NotFound;
            let waits_for = if is_new { "the first heartbeat" } else { "the control plane" };
            tracing::info!(%host, %problem, waits_for, "the node services wait for registration");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{add_host, control_plane};

    #[tokio::test]
    async fn a_node_waits_until_its_host_is_known() {
        let fake = control_plane().await;
        let host: HostName = "n1".parse().unwrap();
        let mut waiting = Box::pin(wait_for_host(&fake, &host));
        assert!(futures::poll!(&mut waiting).is_pending(), "a node of that name is no host");
        add_host(&fake, "n1").await;
        waiting.await;
    }
}

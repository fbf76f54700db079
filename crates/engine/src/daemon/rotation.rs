//! Looks at the file of the cluster secret from time to time, so that a new one is used without a
//! restart.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::engine::Inner;
use super::problems::chain;
use crate::replication::ClusterSecret;

/// How often it looks.
const EVERY: Duration = Duration::from_secs(10);

/// What an operator should not forget.
const OPEN: &str = "engines without a cluster secret are accepted; remove the line `none` from the \
                    file of the secret when all engines have it";

/// Looks until the engine is gone.
pub(super) async fn run(engine: Weak<Inner>, secret: Arc<ClusterSecret>) {
    let mut is_told = false;
    if !secret.is_required() {
        tracing::warn!("{OPEN}");
    }
    while engine.strong_count() > 0 {
        tokio::time::sleep(EVERY).await;
        let of = Arc::clone(&secret);
        let Ok(looked) = tokio::task::spawn_blocking(move || of.reload()).await else { return };
        match looked {
            Ok(Some(_)) if !secret.is_required() => tracing::warn!("{OPEN}"),
            Ok(Some(accepted)) => tracing::info!(
                accepted,
                "the cluster secret was replaced; connections that are up stay, new ones use it"
            ),
            Err(ref error) if !is_told => {
                let error = chain(error);
                tracing::warn!(error, "the cluster secret is used as it was before");
            }
            Ok(None) | Err(_) => {}
        }
        is_told = looked.is_err();
    }
}

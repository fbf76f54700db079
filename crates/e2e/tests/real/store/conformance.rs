//! One suite, two servers.

use std::fmt::Write as _;
use std::sync::Arc;

use e2e::store::{Kind, StoreServer};
use store::contract::Store;
use store::testing::conformance::{CONTRACT, Failure, WIRE};

/// Runs every case and reports all that failed.
async fn conforms(kind: Kind) {
    let server = StoreServer::start(kind).unwrap();
    let client: Arc<dyn Store> = Arc::new(server.client().await.unwrap());
    let mut report = String::new();
    let mut note = |name: &str, failure: Failure| {
        let mut line = format!("{name}: {failure}");
        let mut cause = std::error::Error::source(&failure);
        while let Some(error) = cause {
            let _ = write!(line, ": {error}");
            cause = error.source();
        }
        let _ = writeln!(report, "{line}");
    };
    for case in WIRE {
        if let Err(failure) = case.run(&server.endpoint()).await {
            note(case.name, failure);
        }
    }
    for case in CONTRACT {
        if let Err(failure) = case.run(Arc::clone(&client)).await {
            note(case.name, failure);
        }
    }
    assert!(report.is_empty(), "{kind:?} does not conform:\n{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_conforms() {
    conforms(Kind::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_server_conforms() {
    conforms(Kind::Embedded).await;
}

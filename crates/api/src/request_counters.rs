//! How many requests were answered, by route and status, and how long that took.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What is counted of one route and one status.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    requests: u64,
    micros: u64,
}

/// Counters of the requests of a server. There are no more of them than routes times statuses.
#[derive(Debug, Default)]
pub struct RequestCounters(Mutex<BTreeMap<(&'static str, u16), Counted>>);

impl RequestCounters {
    pub(crate) fn count(&self, route: &'static str, status: u16, took: Duration) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let one = all.entry((route, status)).or_default();
        one.requests = one.requests.saturating_add(1);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        one.micros = one.micros.saturating_add(micros);
    }

    /// For Prometheus.
    pub fn metrics(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::from("# TYPE holdfast_requests_total counter\n");
        // Writing into a string does not fail.
        for ((route, status), one) in &*all {
            let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
            let _ = writeln!(text, "holdfast_requests_total{labels} {}", one.requests);
        }
        text.push_str("# TYPE holdfast_request_seconds_total counter\n");
        for ((route, status), one) in &*all {
            let labels = format!("{{route=\"{route}\",status=\"{status}\"}}");
            let seconds = Duration::from_micros(one.micros).as_secs_f64();
            let _ = writeln!(text, "holdfast_request_seconds_total{labels} {seconds}");
        }
        text
    }
}

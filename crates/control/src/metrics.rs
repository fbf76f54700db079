//! What this process did, counted since it started: whether it leads or not.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use model::Severity;

use crate::controller::CommitResult;

/// The upper bounds of the buckets of latencies, in seconds.
const BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// How often something took how long.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, text: &mut String, name: &str) {
        // Writing into a string does not fail.
        let _ = writeln!(text, "# TYPE {name} histogram");
        for (bucket, bound) in self.buckets.iter().zip(BUCKETS) {
            let count = bucket.load(Ordering::Relaxed);
            let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {count}");
        }
        let count = self.count.load(Ordering::Relaxed);
        let sum = Duration::from_micros(self.micros.load(Ordering::Relaxed)).as_secs_f64();
        let _ = writeln!(text, "{name}_bucket{{le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "{name}_sum {sum}\n{name}_count {count}");
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) terms: AtomicU64,
    store_seconds: Histogram,
    written: AtomicU64,
    conflicts: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    order_seconds: Histogram,
    orders_done: AtomicU64,
    orders_failed: AtomicU64,
    events: [AtomicU64; 3],
    pub(crate) events_lost: AtomicU64,
    pub(crate) webhook_failures: AtomicU64,
    pub(crate) backups: AtomicU64,
    pub(crate) backup_failures: AtomicU64,
    /// When the last backup was made, in seconds since 1970; zero: none was.
    pub(crate) backed_up_at: AtomicU64,
}

pub(crate) fn add_one(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Metrics {
    pub(crate) fn count_write(&self, result: &CommitResult, took: Duration) {
        self.store_seconds.observe(took);
        add_one(match result {
            CommitResult::Committed(_) => &self.written,
            CommitResult::Conflict(_) => &self.conflicts,
            CommitResult::Denied(_) => &self.refused,
            CommitResult::Unknown(_) => &self.unknown,
        });
    }

    pub(crate) fn count_order(&self, is_done: bool, took: Duration) {
        self.order_seconds.observe(took);
        add_one(if is_done { &self.orders_done } else { &self.orders_failed });
    }

    pub(crate) fn count_event(&self, severity: Severity) {
        let [info, warning, error] = &self.events;
        add_one(match severity {
            Severity::Info => info,
            Severity::Warning => warning,
            Severity::Error => error,
        });
    }

    /// For Prometheus.
    pub(crate) fn write(&self, text: &mut String) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [info, warning, error] = &self.events;
        let labelled = [
            (
                "holdfast_store_writes_total",
                "outcome",
                vec![
                    ("committed", &self.written),
                    ("conflict", &self.conflicts),
                    ("refused", &self.refused),
                    ("unknown", &self.unknown),
                ],
            ),
            (
                "holdfast_orders_total",
                "outcome",
                vec![("done", &self.orders_done), ("failed", &self.orders_failed)],
            ),
            (
                "holdfast_events_total",
                "severity",
                vec![("info", info), ("warning", warning), ("error", error)],
            ),
        ];
        for (name, label, values) in labelled {
            let _ = writeln!(text, "# TYPE {name} counter");
            for (value, counter) in values {
                let _ = writeln!(text, "{name}{{{label}=\"{value}\"}} {}", get(counter));
            }
        }
        for (name, counter) in [
            ("terms", &self.terms),
            ("events_lost", &self.events_lost),
            ("webhook_failures", &self.webhook_failures),
            ("backups", &self.backups),
            ("backup_failures", &self.backup_failures),
        ] {
            let value = get(counter);
            let _ = writeln!(
                text,
                "# TYPE holdfast_{name}_total counter\nholdfast_{name}_total {value}"
            );
        }
        let at = get(&self.backed_up_at);
        let name = "holdfast_last_backup_timestamp_seconds";
        let _ = writeln!(text, "# TYPE {name} gauge\n{name} {at}");
        self.store_seconds.write(text, "holdfast_store_write_seconds");
        self.order_seconds.write(text, "holdfast_order_seconds");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_written_for_prometheus() {
        let metrics = Metrics::default();
        metrics.count_order(true, Duration::from_millis(7));
        metrics.count_order(false, Duration::from_secs(2));
        metrics.count_event(Severity::Error);
        add_one(&metrics.terms);
        let mut text = String::new();
        metrics.write(&mut text);
        for line in [
            "holdfast_orders_total{outcome=\"done\"} 1",
            "holdfast_orders_total{outcome=\"failed\"} 1",
            "holdfast_events_total{severity=\"error\"} 1",
            "holdfast_terms_total 1",
            "holdfast_order_seconds_bucket{le=\"0.005\"} 0",
            "holdfast_order_seconds_bucket{le=\"0.01\"} 1",
            "holdfast_order_seconds_bucket{le=\"+Inf\"} 2",
            "holdfast_order_seconds_count 2",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in:\n{text}");
        }
    }
}

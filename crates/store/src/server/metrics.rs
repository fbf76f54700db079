//! What `/metrics` tells, in Prometheus' text format, under the names that etcd uses: dashboards
//! and alerts for etcd work.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use super::server_state::ServerState;

/// Upper bounds of the histogram of syncs: 1 ms, doubled up to 8 s, as etcd has them.
const BOUNDS: usize = 14;

/// How long syncs of the journal took.
#[derive(Debug, Default)]
pub(crate) struct SyncTimes {
    /// How many took at most the bound of each place, and not the one before.
    buckets: [AtomicU64; BOUNDS],
    count: AtomicU64,
    micros: AtomicU64,
}

impl SyncTimes {
    /// Counts one sync.
    pub(crate) fn note(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bounds = (0..BOUNDS).map(|place| 1000 << place);
        if let Some((_, bucket)) = bounds.zip(&self.buckets).find(|(bound, _)| micros <= *bound) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String) {
        const NAME: &str = "etcd_disk_wal_fsync_duration_seconds";
        let mut sum = 0;
        let mut line = |suffix: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{NAME}_{suffix} {value}");
        };
        for (place, bucket) in self.buckets.iter().enumerate() {
            sum += bucket.load(Ordering::Relaxed);
            line(&format!("bucket{{le=\"{}\"}}", seconds(1000 << place)), sum.to_string());
        }
        let count = self.count.load(Ordering::Relaxed).to_string();
        line("bucket{le=\"+Inf\"}", count.clone());
        line("sum", seconds(self.micros.load(Ordering::Relaxed)));
        line("count", count);
    }
}

fn seconds(micros: u64) -> String {
    Duration::from_micros(micros).as_secs_f64().to_string()
}

/// Memory of this process, as the kernel tells it in KiB.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// All of it.
pub(crate) fn text(state: &ServerState, quota: usize) -> String {
    let (keys, compacted, bytes) = {
        let index = state.index();
        (index.keys(), index.compacted(), index.bytes())
    };
    let healthy = u8::from(state.failure().is_none());
    let alarms = state.settings().alarms.len();
    let resident = resident_bytes().unwrap_or(0);
    let gauges = [
        ("etcd_server_has_leader", "Whether the store can be written.", healthy.to_string()),
        ("etcd_server_is_leader", "Always 1: it is the only member.", "1".to_owned()),
        (
            "etcd_server_quota_backend_bytes",
            "Bytes of keys and history past which writes are refused.",
            quota.to_string(),
        ),
        (
            "etcd_mvcc_db_total_size_in_bytes",
            "Bytes of the journal.",
            state.disk_bytes().to_string(),
        ),
        (
            "etcd_mvcc_db_total_size_in_use_in_bytes",
            "Bytes of keys and history.",
            bytes.to_string(),
        ),
        ("etcd_debugging_mvcc_keys_total", "Keys.", keys.to_string()),
        (
            "etcd_debugging_mvcc_current_revision",
            "The newest revision.",
            state.published().to_string(),
        ),
        (
            "etcd_debugging_mvcc_compact_revision",
            "The first revision that can be read.",
            compacted.to_string(),
        ),
        (
            "process_resident_memory_bytes",
            "Memory of the process that serves the store.",
            resident.to_string(),
        ),
        ("holdfast_store_alarms", "Alarms that are up.", alarms.to_string()),
    ];
    let mut out = String::new();
    for (name, help, value) in gauges {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
    out.push_str(
        "# HELP etcd_disk_wal_fsync_duration_seconds How long syncs of the journal took.\n",
    );
    out.push_str("# TYPE etcd_disk_wal_fsync_duration_seconds histogram\n");
    state.sync_times().write(&mut out);
    out
}

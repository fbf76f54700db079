//! Metrics as Prometheus reads them.

use std::fmt::Write as _;

use api::node::{Answered, Found};
use model::{PoolSpec, PoolState};

use super::engine::{Engine, now};

impl Engine {
    /// Everything that can be counted.
    pub(super) async fn metrics_text(&self) -> Answered<String> {
        let names: Vec<_> = self.state().pools.keys().cloned().collect();
        let mut pools = Vec::with_capacity(names.len());
        for name in names {
            // One that went away meanwhile has no metrics.
            if let Ok(found) = self.find_pool(&name).await {
                pools.push(found);
            }
        }
        let (replicas, shared) = {
            let state = self.state();
            let shared = state.replicas.values().filter(|one| !one.hosts.is_empty()).count();
            (state.replicas.len(), shared)
        };
        let info = &self.0.info;
        let mut text = Exposition::default();
        let labels = format!("node=\"{}\",version=\"{}\"", info.name, info.version);
        text.gauge("holdfast_engine_info", "Which engine this is.", [(labels, 1)]);
        let uptime = now().since(info.started_at).as_secs();
        let help = "Seconds since this run of the engine began.";
        text.gauge("holdfast_engine_uptime_seconds", help, [(String::new(), uptime)]);
        let count = |number: usize| [(String::new(), u64::try_from(number).unwrap_or(u64::MAX))];
        text.gauge("holdfast_replicas", "Replicas in open pools.", count(replicas));
        text.gauge("holdfast_replicas_shared", "Replicas that are exported.", count(shared));
        pool_metrics(&mut text, &pools);
        Ok(text.0)
    }
}

fn pool_metrics(text: &mut Exposition, pools: &[Found<PoolSpec>]) {
    let mut each = |name: &str, help: &str, value: fn(&Found<PoolSpec>) -> u64| {
        let samples = pools.iter().map(|found| (format!("pool=\"{}\"", found.id), value(found)));
        text.gauge(name, help, samples);
    };
    each("holdfast_pool_capacity_bytes", "What can be allocated in all.", |found| {
        found.status.capacity.bytes().0
    });
    each("holdfast_pool_used_bytes", "What is allocated.", |found| found.status.used.bytes().0);
    each("holdfast_pool_committed_bytes", "What has been promised.", |found| {
        found.status.committed.bytes().0
    });
    each("holdfast_pool_online", "1 if the pool is well, else 0.", |found| {
        u64::from(found.status.state == PoolState::Online)
    });
}

/// Text in the exposition format. Names and values of labels here need no escapes.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (String, u64)>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (labels, value) in samples {
            let _ = if labels.is_empty() {
                writeln!(self.0, "{name} {value}")
            } else {
                writeln!(self.0, "{name}{{{labels}}} {value}")
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_stand_under_their_type() {
        let mut text = Exposition::default();
        text.gauge("a", "One.", [(String::new(), 7)]);
        text.gauge("b", "Two.", [("pool=\"tank\"".to_owned(), 1)]);
        let expected = "# HELP a One.\n# TYPE a gauge\na 7\n# HELP b Two.\n# TYPE b gauge\n\
                        b{pool=\"tank\"} 1\n";
        assert_eq!(text.0, expected);
    }
}

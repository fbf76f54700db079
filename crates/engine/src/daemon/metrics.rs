//! Metrics as Prometheus reads them.

use std::fmt::Write as _;

use api::node::{ApiResult, Observed, StatisticsOf};
use model::{PoolSpec, PoolState};

use super::engine::{DamageTotals, Engine, now};
use super::statistics::Reading;
use crate::counters::{BUCKETS, Counter};

impl Engine {
    /// Everything that can be counted.
    pub(super) async fn metrics_text(&self) -> ApiResult<String> {
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
        let targets = count(self.open_targets().len());
        text.gauge("holdfast_targets", "Targets that are open.", targets);
        let found = self.state().damage;
        damage_metrics(&mut text, found);
        traffic_metrics(&mut text, &self.measure().await?);
        Ok(text.0)
    }
}

fn pool_metrics(text: &mut Exposition, pools: &[Observed<PoolSpec>]) {
    let mut each = |name: &str, help: &str, value: fn(&Observed<PoolSpec>) -> u64| {
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

/// What targets found damaged, and what became of it.
fn damage_metrics(text: &mut Exposition, found: DamageTotals) {
    let samples = [
        ("repaired", found.repaired),
        ("accepted", found.accepted),
        ("unreadable", found.unreadable),
        ("differing", found.differing),
    ];
    let samples = samples.map(|(outcome, blocks)| (format!("outcome=\"{outcome}\""), blocks));
    let help = "Blocks that targets found damaged, by what became of them.";
    text.counter("holdfast_damaged_blocks_total", help, samples);
}

/// What was done by target, child, replica and disk.
fn traffic_metrics(text: &mut Exposition, all: &[Reading]) {
    let each = || {
        all.iter().flat_map(|one| {
            let of = labels_of(&one.of);
            one.counters.each().map(|(sort, counter)| (format!("{of},op=\"{sort}\""), counter))
        })
    };
    let mut total = |name: &str, help: &str, value: fn(&Counter) -> u64| {
        text.counter(name, help, each().map(|(labels, counter)| (labels, value(counter))));
    };
    total("holdfast_io_commands_total", "Commands that ended well.", |one| one.commands);
    total("holdfast_io_bytes_total", "What they moved.", |one| one.bytes);
    total("holdfast_io_errors_total", "Commands that ended with an error.", |one| one.errors);
    let of_targets = all.iter().filter(|one| matches!(one.of, StatisticsOf::Target { .. }));
    let throttled = of_targets.map(|one| (labels_of(&one.of), one.counters.throttled));
    let help = "Commands that had to wait for a limit of their target.";
    text.counter("holdfast_io_throttled_total", help, throttled);
    let at_work = all.iter().filter_map(|one| Some((labels_of(&one.of), one.oldest?.as_secs())));
    let help = "How long the oldest command has been at work, in whole seconds; 0 if none is.";
    text.gauge("holdfast_io_oldest_seconds", help, at_work);
    let help = "How long commands took that ended well, in seconds.";
    text.head("holdfast_io_seconds", help, "histogram");
    for (labels, counter) in each().filter(|(_, counter)| counter.commands > 0) {
        text.histogram("holdfast_io_seconds", &labels, counter);
    }
}

fn labels_of(of: &StatisticsOf) -> String {
    match of {
        StatisticsOf::Target { target } => format!("of=\"target\",target=\"{target}\""),
        StatisticsOf::Child { target, replica } => {
            format!("of=\"child\",target=\"{target}\",replica=\"{replica}\"")
        }
        StatisticsOf::Replica { replica } => format!("of=\"replica\",replica=\"{replica}\""),
        StatisticsOf::Disk { pool, disk } => {
            // A path may hold anything but a zero.
            let disk = disk.as_str().replace('\\', "\\\\").replace('"', "\\\"");
            let disk = disk.replace('\n', "\\n");
            format!("of=\"disk\",pool=\"{pool}\",disk=\"{disk}\"")
        }
    }
}

/// Text in the exposition format. Names and values of labels here need no escapes.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (String, u64)>) {
        self.head(name, help, "gauge");
        self.samples(name, samples);
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (String, u64)>,
    ) {
        self.head(name, help, "counter");
        self.samples(name, samples);
    }

    /// One histogram: buckets count all that took no longer.
    fn histogram(&mut self, name: &str, labels: &str, counter: &Counter) {
        let mut below = 0_u64;
        let bounds = (0_u32..).map(|power| 1_u64.checked_shl(power).unwrap_or(u64::MAX));
        // The last has no bound.
        for (bound, count) in bounds.zip(counter.buckets).take(BUCKETS - 1) {
            below = below.saturating_add(count);
            // Nobody waits for less, and each costs a line.
            if bound >= 16 {
                let bound = in_seconds(bound);
                let _ = writeln!(self.0, "{name}_bucket{{{labels},le=\"{bound}\"}} {below}");
            }
        }
        let (count, sum) = (counter.commands, in_seconds(counter.micros));
        let _ = writeln!(self.0, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(self.0, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(self.0, "{name}_count{{{labels}}} {count}");
    }

    fn samples(&mut self, name: &str, samples: impl IntoIterator<Item = (String, u64)>) {
        for (labels, value) in samples {
            let _ = if labels.is_empty() {
                writeln!(self.0, "{name} {value}")
            } else {
                writeln!(self.0, "{name}{{{labels}}} {value}")
            };
        }
    }
}

/// Microseconds as seconds.
fn in_seconds(micros: u64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{Counters, OpClass, OpTimer};
    use std::time::Duration;

    #[test]
    fn a_histogram_counts_all_that_took_no_longer() {
        let at = |micros| block::Instant::since_start(Duration::from_micros(micros));
        let mut counters = Counters::default();
        for micros in [3, 20, 1_500_000, 900_000_000] {
            counters.ended(OpTimer::of(OpClass::Write, 4096, at(0)), Ok(()), at(micros));
        }
        counters.ended(OpTimer::of(OpClass::Write, 4096, at(0)), Err(block::IoError::Busy), at(5));
        let target = StatisticsOf::Target {
            target: "00000000-0000-4000-8000-000000000001".parse().unwrap(),
        };
        let mut text = Exposition::default();
        let oldest = Some(Duration::from_millis(31_900));
        traffic_metrics(&mut text, &[Reading { of: target, counters, oldest }]);
        let of = "of=\"target\",target=\"00000000-0000-4000-8000-000000000001\",op=\"write\"";
        for line in [
            format!("holdfast_io_bytes_total{{{of}}} 16384"),
            format!("holdfast_io_errors_total{{{of}}} 1"),
            format!("holdfast_io_seconds_bucket{{{of},le=\"0.000016\"}} 1"),
            format!("holdfast_io_seconds_bucket{{{of},le=\"0.000032\"}} 2"),
            format!("holdfast_io_seconds_bucket{{{of},le=\"2.097152\"}} 3"),
            format!("holdfast_io_seconds_bucket{{{of},le=\"+Inf\"}} 4"),
            format!("holdfast_io_seconds_sum{{{of}}} 901.500023"),
            format!("holdfast_io_seconds_count{{{of}}} 4"),
        ] {
            assert!(text.0.lines().any(|found| found == line), "{line} is not in {}", text.0);
        }
        assert!(!text.0.contains("le=\"+Inf\"} 0"), "{}", text.0);
        let oldest = "holdfast_io_oldest_seconds{of=\"target\",target=\
                      \"00000000-0000-4000-8000-000000000001\"} 31\n";
        assert!(text.0.contains(oldest), "{}", text.0);
    }

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

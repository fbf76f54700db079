//! The lane `kubernetes`: a cluster of several nodes on this machine, with our image and chart.
//!
//! API server, controller manager, scheduler, kubelets, proxies and sidecars are the real programs,
//! which `cargo xtask test kubernetes` builds once and keeps in its cache. Each node is a set of
//! namespaces with a containerd of its own. What a scenario claims is checked from inside its pods.
//!
//! All scenarios run in one cluster, one after the other, each in a namespace of its own. One that
//! fails does not end the run. Needs root. The directory of a cluster in which something failed is
//! kept, with the logs of all its programs.

#![expect(clippy::print_stderr, reason = "a run of minutes says how far it is")]

mod authority;
mod cluster;
mod disruptions;
mod machine;
mod node;
mod pods;
mod pools;
mod snapshots;
mod space;
mod upgrades;
mod volumes;
mod wait;

use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Parser;

use cluster::Cluster;

/// One thing to prove.
type Scenario = (&'static str, fn(&Cluster) -> Result<()>);

macro_rules! scenarios {
    ($($module:ident::$name:ident,)*) => { &[$((stringify!($name), $module::$name)),*] };
}

/// In this order: what breaks more comes later.
const SCENARIOS: &[Scenario] = scenarios![
    upgrades::the_chart_is_linted_and_its_objects_are_accepted,
    pools::disk_pools_come_online_and_are_shown,
    volumes::a_pod_keeps_its_data_when_it_moves_to_another_node,
    snapshots::a_snapshot_is_restored_and_a_volume_cloned,
    volumes::a_volume_grows_while_a_pod_writes,
    volumes::a_block_device_keeps_its_bytes,
    volumes::a_claim_for_one_pod_refuses_a_second_twice,
    volumes::attributes_of_a_volume_in_use_are_changed,
    snapshots::a_group_is_snapshotted_at_one_moment,
    volumes::a_stateful_set_has_a_volume_for_each_replica,
    disruptions::the_kill_of_the_engine_that_serves_a_volume_is_not_noticed,
    disruptions::the_loss_of_the_engine_that_serves_a_volume_is_not_noticed,
    disruptions::restarts_under_load_lose_nothing,
    pools::a_pool_deleted_from_outside_is_not_made_again,
    volumes::a_volume_without_a_persistent_volume_is_deleted,
    disruptions::a_pod_of_a_lost_node_runs_elsewhere_and_nobody_else_writes,
    upgrades::roles_have_the_rights_they_need_and_no_more,
    upgrades::an_engine_speaks_for_its_own_node_only,
    upgrades::idle_roles_ask_the_api_server_little,
    upgrades::the_chart_is_upgraded_and_rolled_back_under_load,
    pools::a_pool_that_holds_copies_is_kept_until_they_are_gone,
    upgrades::an_uninstallation_keeps_definitions_and_removes_the_rest,
];

#[derive(Parser)]
#[command(about = "Scenarios in a Kubernetes of three nodes on this machine")]
struct Arguments {
    /// Run only scenarios whose name contains one of these
    names: Vec<String>,
    /// Print the names of the scenarios
    #[arg(long)]
    list: bool,
    /// Only start a cluster with Holdfast, and keep it until standard input ends
    #[arg(long)]
    keep: bool,
    /// Run in the cluster that `--keep` started in this directory
    #[arg(long = "in", value_name = "DIR")]
    dir: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let is_asked = |name: &str| {
        arguments.names.is_empty() || arguments.names.iter().any(|part| name.contains(part))
    };
    let asked: Vec<&Scenario> = SCENARIOS.iter().filter(|(name, _)| is_asked(name)).collect();
    if arguments.list {
        for (name, _) in asked {
            eprintln!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    match run(&arguments, &asked) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} of {} scenarios failed", asked.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the cluster does not start: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs scenarios; the answer is how many failed.
fn run(arguments: &Arguments, asked: &[&Scenario]) -> Result<usize> {
    let mut cluster = match &arguments.dir {
        Some(dir) => Cluster::attach(dir)?,
        None => start(arguments.keep)?,
    };
    if arguments.keep {
        eprintln!("the cluster is in {}", cluster.paths.run.display());
        let mut end = Vec::new();
        std::io::stdin().read_to_end(&mut end).context("wait for the end")?;
        return Ok(0);
    }
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut failed = 0;
    for (name, scenario) in asked {
        eprintln!("--- {name}");
        let since = Instant::now();
        let outcome = scenario(&cluster);
        let seconds = since.elapsed().as_secs();
        if let Err(error) = &outcome {
            failed += 1;
            eprintln!("--- {name} failed: {error:#}");
            cluster.explain();
        }
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        lines.push(format!("{name} ... {word} ({seconds} s)"));
        eprintln!("{}", lines.last().map_or("", String::as_str));
    }
    eprintln!("\n{}\n{} s in all", lines.join("\n"), started.elapsed().as_secs());
    if failed > 0 {
        cluster.keep();
    }
    Ok(failed)
}

/// A cluster with Holdfast.
fn start(keep: bool) -> Result<Cluster> {
    let since = Instant::now();
    let mut cluster = Cluster::start(3)?;
    eprintln!("the cluster has started after {} s", since.elapsed().as_secs());
    let installed = pools::give_disks(&cluster).and_then(|()| cluster.install());
    if let Err(error) = installed {
        cluster.explain();
        if !keep {
            cluster.keep();
            return Err(error);
        }
        eprintln!("not installed: {error:#}");
    }
    eprintln!("Holdfast is installed after {} s", since.elapsed().as_secs());
    Ok(cluster)
}

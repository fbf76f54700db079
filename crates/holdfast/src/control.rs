//! `holdfast control`: the control plane.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use api::{TlsClient, Token};
use clap::{Args, Subcommand};
use control::{BackupConfig, Config, ControlConfig, EngineAuth, Service};
use model::Size;
use operator::{EngineAccount, EngineTokens};
use store::client::Client;

use crate::arg_parsers::{Interval, ServerAuth, ServerAuthArgs, every, some_time, time};
use crate::stop;
use crate::store::{Certificates, LOCAL};

/// Where REST is served unless told otherwise.
pub(crate) const LISTEN: &str = "127.0.0.1:7440";

/// Commands of the control plane.
#[derive(Subcommand)]
pub(crate) enum ControlCommand {
    /// Run the control plane
    Serve(Serve),
}

/// Options of `control serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// Where to serve REST
    #[arg(long, value_name = "ADDR:PORT", default_value = LISTEN, help_heading = "REST")]
    listen: SocketAddr,
    #[command(flatten, next_help_heading = "REST")]
    guarded: ServerAuthArgs,
    /// Servers of the store, separated by commas
    #[arg(
        long, value_name = "URL,…", value_delimiter = ',', env = "HOLDFAST_STORE",
        default_value = LOCAL, help_heading = "Store"
    )]
    store: Vec<String>,
    #[command(flatten)]
    certificates: Certificates,
    /// Use TLS for engines, and believe only those with a certificate of these authorities (PEM)
    #[arg(long, value_name = "FILE", help_heading = "Engines")]
    engine_ca: Option<PathBuf>,
    /// The name in the certificates of all engines; left out: each is certified for its address
    #[arg(long, value_name = "NAME", requires = "engine_ca", help_heading = "Engines")]
    engine_server_name: Option<String>,
    /// A file with the token for engines, of an admin
    #[arg(long, value_name = "FILE", help_heading = "Engines")]
    engine_token_file: Option<PathBuf>,
    /// Believe engines that show the token of their pod's service account in Kubernetes: each is
    /// the engine of the node on which its pod runs. Needs the right to create TokenReviews
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "token_file", help_heading = "Engines")]
    engine_service_account: Option<EngineAccount>,
    /// Call webhooks over TLS too, and believe only servers with a certificate of these authorities
    /// (PEM)
    #[arg(long, value_name = "FILE", help_heading = "Webhooks")]
    webhook_ca: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Backups")]
    backups: BackupArgs,
    #[command(flatten, next_help_heading = "Policy")]
    policy: PolicyArgs,
}

/// Scheduled backups of the store.
#[derive(Args)]
struct BackupArgs {
    /// Back up what Holdfast keeps in the store into this folder, while this control plane leads;
    /// `holdfast store import` reads the files
    #[arg(long, value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// How often
    #[arg(
        long, value_name = "TIME", default_value = "1h", value_parser = some_time,
        requires = "backup_dir"
    )]
    backup_every: Duration,
    /// How many are kept: older ones are removed
    #[arg(
        long, value_name = "COUNT", default_value_t = 48,
        value_parser = clap::value_parser!(u32).range(1..), requires = "backup_dir"
    )]
    backup_keep: u32,
}

impl BackupArgs {
    fn config(self) -> Option<BackupConfig> {
        let (every, keep) = (self.backup_every, self.backup_keep);
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        self.backup_dir.map(|dir| BackupConfig { dir, every, keep })
    }
}

/// What operators decide; whatever is left out stays as usual.
#[derive(Args)]
struct PolicyArgs {
    /// How long a lost copy may stay away before another is made, unless its volume says otherwise
    /// [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = time)]
    replace_after: Option<Duration>,
    /// How many rebuilds may run at once in the cluster [default: 16]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rebuilds: Option<u32>,
    /// How many rebuilds may run at once from or to one node [default: 4]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rebuilds_per_node: Option<u32>,
    /// How often a copy may fail to be rebuilt before another takes its place [default: 3]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    rebuild_attempts: Option<u32>,
    /// If no more than this share of all nodes, or of the nodes of a zone, answers, and two or more
    /// are away, their copies are waited for and not replaced; 0: they always are [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    heal_share: Option<u32>,
    /// How full a pool may become by copies that replace lost ones [default: 90]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    heal_fill: Option<u32>,
    /// How much may be promised in a pool, in percent of its capacity [default: 250]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(100..))]
    pool_commitment: Option<u32>,
    /// Free room a thin copy needs beyond what is written, in percent of its size [default: 40]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    volume_commitment: Option<u32>,
    /// The same for the copies of a new volume [default: 40]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    volume_commitment_initial: Option<u32>,
    /// Free room a snapshot needs, in percent of the size of its volume [default: 40]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    snapshot_commitment: Option<u32>,
    /// Room in a pool that nothing new may take [default: 16MiB]
    #[arg(long, value_name = "SIZE")]
    watermark: Option<Size>,
    /// How long something must be seen to be unwanted before it is destroyed or set aside
    /// [default: 5m]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    second_look: Option<Duration>,
    /// How long a copy that its volume does not count is set aside, if it is not certain that
    /// nothing is lost with it [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    quarantine: Option<Duration>,
    /// How often every copy is read and checked; or `never` [default: 30d]
    #[arg(long, value_name = "TIME", value_parser = every)]
    scrub_every: Option<Interval>,
    /// How many copies of one node may be checked at once [default: 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    scrubs_per_node: Option<u32>,
    /// How often the copies of every volume are compared with each other; or `never` [default: 90d]
    #[arg(long, value_name = "TIME", value_parser = every)]
    compare_every: Option<Interval>,
    /// Move copies when the fill of two pools differs by more than this [default: only when asked]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    rebalance_above: Option<u32>,
    /// How often daemons show that they are there [default: 2s]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    heartbeat: Option<Duration>,
    /// When one that does not is taken for gone [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    heartbeat_deadline: Option<Duration>,
}

impl PolicyArgs {
    fn policy(self) -> Result<ControlConfig> {
        let mut policy = ControlConfig::default();
        let ControlConfig { settings, pace, .. } = &mut policy;
        // What was typed replaces what is usual, and nothing else does.
        macro_rules! set {
            ($($typed:ident => $place:expr;)+) => {$(
                if let Some(typed) = self.$typed {
                    $place = typed.into();
                }
            )+};
        }
        set! {
            replace_after => settings.replace_after;
            rebuilds => settings.rebuilds;
            rebuilds_per_node => settings.rebuilds_per_node;
            rebuild_attempts => settings.rebuild_attempts;
            heal_share => settings.heal_share;
            heal_fill => settings.heal_fill;
            pool_commitment => settings.pool_commitment;
            volume_commitment => settings.volume_commitment;
            volume_commitment_initial => settings.volume_commitment_initial;
            snapshot_commitment => settings.snapshot_commitment;
            watermark => settings.watermark;
            second_look => settings.second_look;
            quarantine => settings.quarantine;
            scrub_every => settings.scrub_every;
            compare_every => settings.compare_every;
            scrubs_per_node => settings.scrubs_per_node;
            rebalance_above => settings.rebalance_above;
            heartbeat => pace.heartbeat;
            heartbeat_deadline => pace.deadline;
        }
        ensure!(
            pace.deadline >= pace.heartbeat * 2,
            "--heartbeat-deadline ({:?}) must be twice --heartbeat ({:?}) or more: one that is \
             late once is not gone",
            pace.deadline,
            pace.heartbeat
        );
        Ok(policy)
    }
}

impl From<Interval> for Option<Duration> {
    fn from(Interval(time): Interval) -> Option<Duration> {
        time
    }
}

impl Serve {
    fn config(self, engines: Option<EngineTokens>) -> Result<Config> {
        let ServerAuth { tls, tokens } = self.guarded.read(self.listen)?;
        let tokens = tokens.map(|tokens| match engines {
            Some(engines) => tokens.reviewed_by(Arc::new(engines)),
            None => tokens,
        });
        let tokens = tokens.map(Arc::new);
        let mut engine_tls = self.engine_ca.as_deref().map(TlsClient::read).transpose()?;
        if let Some(name) = &self.engine_server_name {
            engine_tls = engine_tls.map(|tls| tls.expecting(name)).transpose()?;
        }
        let reach = EngineAuth {
            tls: engine_tls,
            token: self.engine_token_file.as_deref().map(Token::read).transpose()?,
        };
        let webhook_tls = self.webhook_ca.as_deref().map(TlsClient::read).transpose()?;
        let backups = self.backups.config();
        let policy = ControlConfig { backups, ..self.policy.policy()? };
        Ok(Config { listen: self.listen, tls, tokens, reach, webhook_tls, policy })
    }
}

impl ControlCommand {
    pub(crate) async fn run(self) -> Result<()> {
        let ControlCommand::Serve(typed) = self;
        let options = typed.certificates.options()?;
        let endpoints = typed.store.clone();
        let engines = match typed.engine_service_account.clone() {
            Some(account) => Some(EngineTokens::of(account).await?),
            None => None,
        };
        let config = typed.config(engines)?;
        let secure = config.tls.is_some();
        let store = Arc::new(Client::connect(&endpoints, options).await?);
        let service = Service::bind(&config, store).await?;
        let scheme = if secure { "https" } else { "http" };
        tracing::info!("listening on {scheme}://{}", service.local_addr()?);
        service.run(stop::asked()).await;
        tracing::info!("stopped");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        serve: Serve,
    }

    fn config(words: &[&str]) -> Result<Config, String> {
        let words = ["serve"].into_iter().chain(words.iter().copied());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        cli.serve.config(None).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn what_is_typed_replaces_what_is_usual() {
        let usual = config(&[]).unwrap();
        assert_eq!(format!("{:?}", usual.policy), format!("{:?}", ControlConfig::default()));
        let words = ["--replace-after", "1h", "--rebuilds", "7", "--scrub-every", "never"];
        let more = ["--watermark", "1GiB", "--heartbeat", "1s", "--heartbeat-deadline", "3s"];
        let policy = config(&[words, more].concat()).unwrap().policy;
        assert_eq!(policy.settings.replace_after, Duration::from_hours(1));
        assert_eq!(policy.settings.rebuilds, 7);
        assert_eq!(policy.settings.scrub_every, None);
        assert_eq!(policy.settings.watermark, Size::gib(1));
        assert_eq!(policy.pace.deadline, Duration::from_secs(3));
    }

    #[test]
    fn what_the_help_calls_usual_is_usual() {
        let command = Cli::command();
        let mut words = Vec::new();
        for argument in command.get_arguments() {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            let usual = help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
            // Some are usually not set at all, which has no value to type.
            match (argument.get_long(), usual) {
                (Some("rebalance-above") | None, _) | (_, None) => {}
                (Some(name), Some((value, _))) => {
                    words.extend([format!("--{name}"), value.to_owned()]);
                }
            }
        }
        assert_eq!(words.len(), 2 * 18, "{words:?}");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let policy = config(&words).unwrap().policy;
        assert_eq!(format!("{policy:?}"), format!("{:?}", ControlConfig::default()));
    }

    #[test]
    fn what_cannot_work_is_refused_with_what_to_do() {
        for (words, says) in [
            (&["--heartbeat", "9s"][..], "--heartbeat-deadline"),
            (&["--replace-after", "10"], "30s, 10m"),
            (&["--rebuilds", "0"], "--rebuilds"),
            (&["--pool-commitment", "99"], "--pool-commitment"),
            (&["--cert", "x.pem"], "--key"),
            (&["--store-cert", "x.pem"], "--store-ca"),
            (&["--cert", "/nonexistent.pem", "--key", "/nonexistent.key"], "/nonexistent"),
            (&["--token-file", "/nonexistent"], "/nonexistent"),
            (&["--engine-token-file", "/nonexistent"], "/nonexistent"),
            (&["--engine-ca", "/nonexistent"], "/nonexistent"),
            (&["--webhook-ca", "/nonexistent"], "/nonexistent"),
        ] {
            let refused = config(words).unwrap_err();
            assert!(refused.contains(says), "{words:?}: {refused}");
        }
    }
}

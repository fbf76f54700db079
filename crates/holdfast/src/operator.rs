//! `holdfast operator`: disk pools as custom resources of Kubernetes.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};

use crate::arg_parsers::some_time;
use crate::cli::ClientArgs;
use crate::stop;

/// Commands of the operator.
#[derive(Subcommand)]
pub(crate) enum OperatorCommand {
    /// Run the operator: create and destroy pools as DiskPool resources say
    Run(Run),
    /// Print the custom resource definitions, for `kubectl apply --filename -`
    Crds,
}

/// Options of `operator run`.
#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    ask: Box<ClientArgs>,
    /// The namespace of the lease that elects one of several operators
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "holdfast")]
    namespace: String,
    /// The name of this operator among several; left out: the name of the machine
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    identity: Option<String>,
    /// How often a pool is looked at when nothing happens
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = some_time)]
    poll: Duration,
}

impl OperatorCommand {
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            OperatorCommand::Run(run) => run.run().await,
            OperatorCommand::Crds => Ok(std::io::stdout().write_all(crds()?.as_bytes())?),
        }
    }
}

impl Run {
    async fn run(self) -> Result<()> {
        self.ask.once()?;
        let identity = self.identity.or_else(|| {
            let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
            Some(name).filter(|name| !name.is_empty())
        });
        let identity = identity.context("this machine has no name: give --identity")?;
        let config = operator::Config { namespace: self.namespace, identity, poll: self.poll };
        let control = Arc::new(self.ask.remote()?);
        Ok(operator::run(control, config, stop::asked()).await?)
    }
}

/// The definitions as YAML documents.
fn crds() -> Result<String> {
    let mut text = String::new();
    for definition in operator::custom_resource_definitions()? {
        text.push_str("---\n");
        crate::cli::yaml(&definition, 0, &mut text);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chart_has_the_current_definitions() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../chart/crds/holdfast.io.yaml");
        let current = crds().unwrap();
        if std::env::var_os("HOLDFAST_BLESS").is_some() {
            std::fs::write(path, &current).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(found, current, "run the test with HOLDFAST_BLESS=1 to write {path}");
    }
}

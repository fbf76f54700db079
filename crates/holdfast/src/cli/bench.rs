//! `holdfast bench`: a load on a volume, over our initiator.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::rest::{Control, Remote};
use clap::Args;
use model::{HostName, VolumeId};

use super::client_args::ClientArgs;
use super::reference::VolumeReference;
use crate::arg_parsers::some_time;
use crate::nvme::{Place, Work, measure};

/// Options of `bench`.
#[derive(Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    ask: ClientArgs,
    /// Which volume; it must be published
    volume: VolumeReference,
    /// The host to be; left out: the one it is published to
    #[arg(long, value_name = "HOST")]
    host: Option<HostName>,
    /// How long to look for the volume when its path is lost
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = some_time)]
    patience: Duration,
    #[command(flatten)]
    work: Work,
}

impl BenchArgs {
    pub(crate) async fn run(self) -> Result<()> {
        self.ask.once()?;
        let remote = self.ask.remote()?;
        let volume = self.volume.find(&remote).await?;
        let json = self.ask.wants_json();
        let first = place(&remote, volume, self.host.clone(), json).await?;
        let (work, patience, host) = (self.work, self.patience, self.host);
        let runtime = tokio::runtime::Handle::current();
        // Whoever serves the volume next is known to the control plane first.
        let find = move || runtime.block_on(place(&remote, volume, host.clone(), json));
        tokio::task::spawn_blocking(move || measure(&first, &work, patience, find)).await?
    }
}

pub(crate) async fn place(
    remote: &Remote,
    volume: VolumeId,
    host: Option<HostName>,
    json: bool,
) -> Result<Place> {
    let target = remote.volume(volume).await?.status.and_then(|status| status.target);
    let unpublished = || {
        format!("volume {volume} is not published; holdfast volume publish {volume} --host HOST")
    };
    let target = target.with_context(unpublished)?;
    let host = match host.or_else(|| target.hosts.first().cloned()) {
        Some(host) if target.hosts.contains(&host) => host,
        Some(host) => bail!("volume {volume} is not published to host {host}"),
        None => bail!("{}", unpublished()),
    };
    let known = remote.host(host.clone()).await.with_context(|| {
        format!("cannot be host {host}; `holdfast host list` shows those that have registered")
    })?;
    let host_nqn = target.host_nqns.get(&host).unwrap_or(&known.spec().address.nqn).to_string();
    let address = target.addresses.first().copied();
    let address = address.with_context(|| format!("volume {volume} has no address yet"))?;
    Ok(Place { address, nqn: target.nqn.to_string(), host_nqn, json })
}

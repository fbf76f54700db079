//! `holdfast control`: the control plane.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, Subcommand};
use control::{Config, Service};

use crate::{stop, store::Reach};

/// Where REST is served unless told otherwise.
pub(crate) const LISTEN: &str = "127.0.0.1:7440";

/// Commands of the control plane.
#[derive(Subcommand)]
pub(crate) enum Typed {
    /// Run the control plane
    Serve(Serve),
}

/// Options of `control serve`.
#[derive(Args)]
pub(crate) struct Serve {
    #[command(flatten)]
    reach: Reach,
    /// Where to serve REST
    #[arg(long, value_name = "ADDR:PORT", default_value = LISTEN)]
    listen: SocketAddr,
}

impl Typed {
    pub(crate) async fn run(self) -> Result<()> {
        let Typed::Serve(typed) = self;
        let store = Arc::new(typed.reach.connect().await?);
        let service = Service::bind(&Config::plain(typed.listen), store).await?;
        tracing::info!("listening on {}", service.local_addr()?);
        service.run(stop::asked()).await;
        tracing::info!("stopped");
        Ok(())
    }
}

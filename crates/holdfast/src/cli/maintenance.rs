//! `holdfast maintenance`.

use std::time::Duration;

use anyhow::Result;
use api::rest::{Control, MaintenanceRequest, MaintenanceStatus, Remote};
use clap::Subcommand;

use super::format;
use super::out::Out;
use crate::arg_parsers::some_time;

/// Commands about maintenance of the whole cluster.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Pause automatic failover and the replacement of lost copies for a while
    Begin {
        /// How long, at most 24h; begun again it is counted anew
        #[arg(long = "for", value_name = "TIME", value_parser = some_time)]
        lasts: Duration,
        /// Why, for those who look at the status meanwhile
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
    },
    /// Go on with failover and healing now
    End,
    /// Whether there is a pause, and until when
    Get,
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let status = match self {
            Verb::Begin { lasts, reason } => {
                let request = MaintenanceRequest { seconds: lasts.as_secs(), reason };
                remote.put_maintenance(request).await?
            }
            Verb::End => {
                let ended = remote.end_maintenance().await?;
                let said = if ended.existed { "maintenance ended" } else { "there was none" };
                return out.done(said, &ended);
            }
            Verb::Get => {
                let show = async |out: &mut Out<'_>| {
                    let status = remote.maintenance().await?;
                    out.done(&said(&status), &status)
                };
                return out.show(remote, show).await;
            }
        };
        out.done(&said(&status), &status)
    }
}

fn said(status: &MaintenanceStatus) -> String {
    match &status.maintenance {
        Some(maintenance) => format!(
            "failover and healing are paused until {}: {}",
            format::time(maintenance.until),
            maintenance.reason
        ),
        None => "no maintenance: failover and healing are on".to_owned(),
    }
}

//! `holdfast spec`: what is in the store, record by record.

use anyhow::Result;
use api::rest::{Control, Remote, StoredSpec};
use clap::Subcommand;

use super::client_args::all;
use super::out::{Out, Row};
use super::table::{Cell, Column};

/// Commands about what is stored.
#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Everything that is stored, by key; `-o json` and `-o yaml` show what is written there
    List {
        /// Only keys with this in them, such as volume/
        #[arg(long, value_name = "TEXT")]
        key: Option<String>,
    },
}

impl Verb {
    pub(crate) async fn run(self, remote: &Remote, out: &mut Out<'_>) -> Result<()> {
        let Verb::List { key } = self;
        let show = async |out: &mut Out<'_>| {
            let mut specs = all(|paging| remote.specs(paging)).await?;
            specs.retain(|spec| key.as_ref().is_none_or(|key| spec.key.contains(key)));
            out.list(&specs)
        };
        out.show(remote, show).await
    }
}

impl Row for StoredSpec {
    const COLUMNS: &'static [Column] = &[Column::Left("KEY"), Column::Right("REVISION")];

    fn cells(&self) -> Vec<Cell> {
        vec![self.key.as_str().into(), self.revision.into()]
    }
}

//! Whom to ask, and how to show the answer.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use agent::record::ControlPlane;
use anyhow::{Context as _, Result, ensure};
use api::rest::Remote;
use api::{Client, ClientConfig, Page, Paging, TlsClient, Token};
use clap::Args;
use http::uri::Authority;
use model::{Problem, ProblemKind, VolumeId};

use super::out::{Format, Out};
use super::reference::{Reference, VolumeReference};

/// Where the control plane of this machine listens unless told otherwise.
const SERVER: &str = crate::control::LISTEN;

/// Options of every command that asks the control plane.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClientArgs {
    /// The control plane
    #[arg(
        long, global = true, value_name = "HOST:PORT", env = "HOLDFAST_SERVER",
        default_value = SERVER, help_heading = "Connection"
    )]
    server: Authority,
    /// A file with the token to show
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HOLDFAST_TOKEN_FILE",
        help_heading = "Connection"
    )]
    token_file: Option<PathBuf>,
    /// Use TLS, and believe only servers with a certificate of these authorities (PEM)
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HOLDFAST_CA",
        help_heading = "Connection"
    )]
    ca: Option<PathBuf>,
    /// Seconds to wait for an answer
    #[arg(
        long, global = true, value_name = "SECONDS", default_value_t = 40,
        value_parser = clap::value_parser!(u64).range(1..=3600), help_heading = "Connection"
    )]
    timeout: u64,
    /// How to print
    #[arg(
        short,
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "table",
        help_heading = "Output"
    )]
    output: Format,
    /// Only say what it would do: what would be written, and what would follow
    #[arg(long, global = true, help_heading = "Output")]
    dry_run: bool,
    /// Go on showing it as it changes, until Ctrl-C
    #[arg(short, long, global = true, help_heading = "Output")]
    watch: bool,
}

impl ClientArgs {
    /// A client, and where to write; `shows`: whether it can be shown again and again.
    pub(crate) fn open<'a>(
        &self,
        to: &'a mut (dyn Write + Send),
        shows: bool,
    ) -> Result<(Remote, Out<'a>)> {
        if !shows {
            self.once()?;
        }
        let terminal = std::io::stdout().is_terminal();
        let colour = terminal && std::env::var_os("NO_COLOR").is_none();
        Ok((
            self.remote()?,
            Out::new(to, self.output, colour).watching(self.watch).trying(self.dry_run),
        ))
    }

    /// Refuses to try what cannot be tried.
    pub(crate) fn may_try(&self, can_be: bool) -> Result<()> {
        ensure!(
            can_be || !self.dry_run,
            "this command has no --dry-run: what places, moves or deletes has; leave it out"
        );
        Ok(())
    }

    /// Refuses to do again and again what is done once.
    pub(crate) fn once(&self) -> Result<()> {
        ensure!(
            !self.watch,
            "--watch goes on showing something, and this command does something once: leave it \
             out; where there is a --wait, that shows how far it is"
        );
        Ok(())
    }

    /// The volume that is meant, for those who ask for nothing else.
    pub(crate) fn find_volume(&self, called: VolumeReference) -> Result<VolumeId> {
        if let Reference::Id(id) = called {
            return Ok(id);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(called.find(&self.remote()?))
    }

    /// Whether programs read the answer.
    pub(crate) fn wants_json(&self) -> bool {
        matches!(self.output, Format::Json | Format::Yaml)
    }

    /// How to print.
    pub(crate) fn format(&self) -> Format {
        self.output
    }

    /// The control plane, for whoever asks it later and elsewhere.
    pub(crate) fn control_plane(&self) -> Result<ControlPlane> {
        let whole = |path: &PathBuf| {
            path.canonicalize().with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(ControlPlane {
            server: self.server.to_string(),
            ca: self.ca.as_ref().map(whole).transpose()?,
            token_file: self.token_file.as_ref().map(whole).transpose()?,
        })
    }

    pub(crate) fn remote(&self) -> Result<Remote> {
        Ok(Remote::new(self.client(self.server.clone())?))
    }

    /// A client of any server, with the same token and authorities.
    pub(crate) fn client(&self, server: Authority) -> Result<Client> {
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let tls = self.ca.as_deref().map(TlsClient::read).transpose()?;
        let patience = Duration::from_secs(self.timeout);
        let config = ClientConfig { token, tls, patience, ..ClientConfig::plain(server) };
        Ok(Client::new(config)?)
    }
}

/// The error, with what to do about it here.
pub(crate) fn explained(error: anyhow::Error) -> anyhow::Error {
    let unknown = error
        .downcast_ref::<Problem>()
        .filter(|problem| problem.kind == ProblemKind::Unauthenticated)
        .map(|problem| {
            format!(
                "{}; name a file with your token: --token-file FILE, or HOLDFAST_TOKEN_FILE",
                problem.detail
            )
        });
    unknown.map_or(error, anyhow::Error::msg)
}

/// All pages of a list.
pub(crate) async fn all<T, F>(ask: impl Fn(Paging) -> F) -> Result<Vec<T>, Problem>
where
    F: Future<Output = Result<Page<T>, Problem>>,
{
    let mut paging = Paging::default();
    let mut all = Vec::new();
    loop {
        let page = ask(paging).await?;
        all.extend(page.items);
        if page.after.is_none() {
            return Ok(all);
        }
        paging = Paging { limit: None, after: page.after };
    }
}

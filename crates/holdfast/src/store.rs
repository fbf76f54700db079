//! `holdfast store`: the embedded store, and moving its keys.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use model::{StoreSequence, TargetRecord, keys};
use store::client::{Client, Grant, Login, Options, Tls as ClientTls};
use store::contract::Keys;
use store::export::{Onto, Progress, export, import};
use store::server::{Config, Retention, Server, Tls as ServerTls};

use crate::stop;

/// The store of this machine, unless told otherwise.
pub(crate) const LOCAL: &str = "http://127.0.0.1:2379";

/// The user that engines are to a store that asks.
const ENGINE: &str = "engine";

/// Commands of the store.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Run the embedded store: a single-node server for the etcd v3 protocol
    Serve(Serve),
    /// Write all keys of a store, embedded or etcd, to a file
    Export(Export),
    /// Put all keys of a file into a store, embedded or etcd
    Import(Import),
    /// Make the users of a store, embedded or etcd, and ask everybody who they are from then on
    Secure(Secure),
}

/// Options of `store serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// The folder that holds the data; made if missing
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Where to serve; anything but loopback should have TLS
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:2379")]
    listen: SocketAddr,
    /// Where clients are told to reach it, with commas between; where it listens if not given
    #[arg(long, value_name = "URL,…", value_delimiter = ',')]
    advertise: Vec<String>,
    /// Keep at most this many revisions of history too; older ones are compacted away
    #[arg(long, value_name = "COUNT")]
    keep_revisions: Option<u32>,
    /// Keep history this long, in minutes
    #[arg(long, value_name = "MINUTES", default_value_t = 60)]
    keep_minutes: u32,
    /// Refuse writes past this much data, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    quota_mib: u32,
    /// Certificate to serve TLS with, a PEM file
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Serve only clients with a certificate from this authority, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    client_ca: Option<PathBuf>,
}

/// How to reach a store.
#[derive(Args)]
struct StoreArgs {
    /// Servers of the store, separated by commas
    #[arg(
        long,
        value_name = "URL,…",
        value_delimiter = ',',
        env = "HOLDFAST_STORE",
        default_value = LOCAL
    )]
    endpoints: Vec<String>,
    /// The authority that signed the servers' certificates, a PEM file; for https
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Our certificate, if the servers want one, a PEM file
    #[arg(long, value_name = "FILE", requires_all = ["ca", "key"])]
    cert: Option<PathBuf>,
    /// Private key of our certificate, a PEM file
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Who to be, where the store asks for that
    #[arg(long, value_name = "NAME", requires = "password_file")]
    user: Option<String>,
    /// The password of that user, in a file
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

/// Options of `store secure`. It may be run again, to change the passwords for example.
#[derive(Args)]
pub(crate) struct Secure {
    #[command(flatten)]
    reach: StoreArgs,
    /// The password of the user "root", who may do everything: the control plane; in a file
    #[arg(long, value_name = "FILE")]
    root_password: PathBuf,
    /// The password of the user "engine", who may only write records of targets; in a file
    #[arg(long, value_name = "FILE")]
    engine_password: PathBuf,
}

/// Options of `store export`.
#[derive(Args)]
pub(crate) struct Export {
    #[command(flatten)]
    reach: StoreArgs,
    /// The file to write; it must not exist yet
    file: PathBuf,
    /// Replace the file if it exists
    #[arg(long)]
    force: bool,
}

/// Options of `store import`.
#[derive(Args)]
pub(crate) struct Import {
    #[command(flatten)]
    reach: StoreArgs,
    /// The file to read, written by `holdfast store export`
    file: PathBuf,
    /// Import although the store is not empty: keys of the file replace those of the same name
    #[arg(long)]
    force: bool,
}

impl StoreCommand {
    pub(crate) async fn run(self) -> Result<()> {
        match self {
            StoreCommand::Serve(typed) => serve(typed).await,
            StoreCommand::Export(typed) => export_to(&typed).await,
            StoreCommand::Import(typed) => import_from(&typed).await,
            StoreCommand::Secure(typed) => secure(&typed).await,
        }
    }
}

impl StoreArgs {
    /// A client, once a server has answered.
    async fn connect(&self) -> Result<Client> {
        let files = Files { ca: &self.ca, cert: &self.cert, key: &self.key };
        let login = login(self.user.as_ref(), self.password_file.as_ref())?;
        Ok(Client::connect(&self.endpoints, Options { login, ..files.options()? }).await?)
    }
}

/// Certificates and a user for a store, where other servers have theirs beside them.
#[derive(Args)]
pub(crate) struct Certificates {
    /// The authority that signed the certificates of the store, a PEM file; for https
    #[arg(long, value_name = "FILE", help_heading = "Store")]
    store_ca: Option<PathBuf>,
    /// Our certificate for the store, if it wants one, a PEM file
    #[arg(
        long, value_name = "FILE", requires_all = ["store_ca", "store_key"],
        help_heading = "Store"
    )]
    store_cert: Option<PathBuf>,
    /// Private key of our certificate for the store, a PEM file
    #[arg(long, value_name = "FILE", requires = "store_cert", help_heading = "Store")]
    store_key: Option<PathBuf>,
    /// Who to be to the store, where it asks for that
    #[arg(long, value_name = "NAME", requires = "store_password_file", help_heading = "Store")]
    store_user: Option<String>,
    /// The password of that user, in a file
    #[arg(long, value_name = "FILE", requires = "store_user", help_heading = "Store")]
    store_password_file: Option<PathBuf>,
}

impl Certificates {
    /// How a client behaves that has these.
    pub(crate) fn options(&self) -> Result<Options> {
        let Certificates { store_ca: ca, store_cert: cert, store_key: key, .. } = self;
        let login = login(self.store_user.as_ref(), self.store_password_file.as_ref())?;
        Ok(Options { login, ..Files { ca, cert, key }.options()? })
    }
}

/// Certificates for a store, each a PEM file.
struct Files<'a> {
    ca: &'a Option<PathBuf>,
    cert: &'a Option<PathBuf>,
    key: &'a Option<PathBuf>,
}

impl Files<'_> {
    fn options(&self) -> Result<Options> {
        let identity = match (self.cert, self.key) {
            (Some(cert), Some(key)) => Some((read(cert)?.into_bytes(), read(key)?.into_bytes())),
            _ => None,
        };
        let tls = match self.ca {
            Some(ca) => {
                Some(ClientTls { authorities: read(ca)?.into_bytes(), identity, server_name: None })
            }
            None => None,
        };
        Ok(Options { tls, ..Options::default() })
    }
}

impl Serve {
    fn config(self) -> Result<Config> {
        let tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some(ServerTls {
                certificate: read(cert)?,
                key: read(key)?,
                client_ca: self.client_ca.as_deref().map(read).transpose()?,
            }),
            _ => None,
        };
        let retention = Retention {
            revisions: self.keep_revisions,
            age: Some(Duration::from_mins(self.keep_minutes.into())),
        };
        let quota = usize::try_from(u64::from(self.quota_mib) << 20)
            .context("--quota-mib is more than this machine can address")?;
        let advertise = self.advertise;
        Ok(Config { advertise, tls, retention, quota, ..Config::new(self.dir, self.listen) })
    }
}

async fn serve(typed: Serve) -> Result<()> {
    let dir = typed.dir.clone();
    let config = typed.config()?;
    let server = tokio::task::spawn_blocking(move || Server::open(config)).await??;
    tracing::info!("listening on {}, data in {}", server.local_addr(), dir.display());
    server.run(stop::asked()).await?;
    tracing::info!("stopped");
    Ok(())
}

async fn export_to(typed: &Export) -> Result<()> {
    let file = &typed.file;
    if file.exists() && !typed.force {
        bail!("{} exists; choose another file, or replace it with --force", file.display());
    }
    let client = typed.reach.connect().await?;
    // Written beside its place and moved there when whole: half an export is never seen.
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut out = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))
        .with_context(|| format!("cannot write beside {}", file.display()))?;
    let mut bar = ProgressBar::new("exported");
    let done = {
        let mut buffered = BufWriter::new(out.as_file_mut());
        let done = export(&client, &mut buffered, &mut |progress| bar.show(progress)).await?;
        buffered.flush()?;
        done
    };
    out.as_file().sync_all()?;
    out.persist(file).with_context(|| format!("cannot write {}", file.display()))?;
    bar.end();
    tracing::info!("{} keys in {}", done.keys, file.display());
    if done.leased > 0 {
        tracing::info!("{} keys were left out: they hang on leases", done.leased);
    }
    Ok(())
}

async fn import_from(typed: &Import) -> Result<()> {
    let file = &typed.file;
    let source = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let client = typed.reach.connect().await?;
    let onto = if typed.force { Onto::Anything } else { Onto::Empty };
    let mut bar = ProgressBar::new("imported");
    let mut source = BufReader::new(source);
    let done = import(&client, &mut source, onto, &mut |progress| bar.show(progress))
        .await
        .with_context(|| format!("importing {}", file.display()))?;
    bar.end();
    tracing::info!("{} keys from {}", done.keys, file.display());
    Ok(())
}

/// The user of the control plane has the run of the store; an engine has what it writes itself.
async fn secure(typed: &Secure) -> Result<()> {
    let client = typed.reach.connect().await?;
    let grants = [
        Grant::ReadWrite(Keys::prefix(keys::all::<TargetRecord>())),
        Grant::Read(Keys::prefix(keys::all::<StoreSequence>())),
    ];
    let engine = Login { user: ENGINE.to_owned(), password: password(&typed.engine_password)? };
    client.ensure_user(&engine, &grants).await?;
    client.require_users(&password(&typed.root_password)?).await?;
    tracing::info!(
        "the store asks for users now; give the control plane root and engines {ENGINE}, with \
         --store-user and --store-password-file"
    );
    Ok(())
}

fn login(user: Option<&String>, file: Option<&PathBuf>) -> Result<Option<Login>> {
    let (Some(user), Some(file)) = (user, file) else { return Ok(None) };
    Ok(Some(Login { user: user.clone(), password: password(file)? }))
}

/// A password is all of its file but the end of the line.
fn password(file: &Path) -> Result<String> {
    let password = read(file)?.trim_end_matches(['\r', '\n']).to_owned();
    if password.is_empty() {
        bail!("{} holds no password; write one into it", file.display());
    }
    Ok(password)
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Progress on one line of a terminal; silent elsewhere.
struct ProgressBar {
    what: &'static str,
    shown: u64,
    live: bool,
}

impl ProgressBar {
    fn new(what: &'static str) -> ProgressBar {
        ProgressBar { what, shown: 0, live: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, Progress { done, total }: Progress) {
        let percent = done * 100 / total.max(1);
        if self.live && percent != self.shown {
            self.shown = percent;
            // A terminal that cannot be written to needs no progress.
            let _ = write!(std::io::stderr(), "\r{} {done} of {total} keys", self.what);
        }
    }

    fn end(&self) {
        if self.live && self.shown > 0 {
            let _ = writeln!(std::io::stderr());
        }
    }
}

//! Store servers under test: the embedded one and a real etcd, started the same way.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use store::client::{Client, Options};
use tempfile::TempDir;

use crate::process::{PATIENCE, Program, holdfast};

/// Which program serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `holdfast store serve`.
    Embedded,
    /// Debian's `etcd`.
    Etcd,
}

/// Both of them, to do the same with each.
pub const KINDS: [Kind; 2] = [Kind::Embedded, Kind::Etcd];

/// A running store server with a folder of its own. Dropping it kills it and removes the folder.
pub struct StoreServer {
    kind: Kind,
    // Before the folder, so that it is dead before the folder goes.
    program: Program,
    dir: TempDir,
    port: u16,
}

impl StoreServer {
    /// Starts a server on an empty folder.
    pub fn start(kind: Kind) -> Result<StoreServer> {
        let dir = tempfile::tempdir().context("cannot make a folder")?;
        let port = free_port()?;
        let program = Program::start(&mut command(kind, dir.path(), port)?)?;
        Ok(StoreServer { kind, program, dir, port })
    }

    /// Where it listens.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its process.
    pub fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Starts it again, after it was killed or stopped, on the same folder and port.
    pub fn restart(&mut self) -> Result<()> {
        self.program = Program::start(&mut command(self.kind, self.dir.path(), self.port)?)?;
        Ok(())
    }

    /// A client, once the server answers.
    pub async fn client(&self) -> Result<Client> {
        self.client_with(Options::default()).await
    }

    /// A client with options of its own, once the server answers.
    pub async fn client_with(&self, options: Options) -> Result<Client> {
        let patient = Options { deadline: PATIENCE, ..Options::default() };
        Client::connect(&[self.endpoint()], patient)
            .await
            .with_context(|| format!("{:?} said:\n{}", self.kind, self.program.said()))?;
        Ok(Client::lazy(&[self.endpoint()], options)?)
    }
}

/// The command that serves a store from `dir`.
pub fn command(kind: Kind, dir: &Path, port: u16) -> Result<Command> {
    match kind {
        Kind::Embedded => {
            let mut command = holdfast()?;
            command.args(["store", "serve", "--dir"]).arg(dir.join("store"));
            command.arg("--listen").arg(format!("127.0.0.1:{port}"));
            Ok(command)
        }
        Kind::Etcd => {
            let (client, peer) =
                (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", free_port()?));
            let mut command = Command::new("etcd");
            command.arg("--data-dir").arg(dir.join("etcd"));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &format!("default={peer}")]);
            Ok(command)
        }
    }
}

/// A port that nobody listens on at this moment.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot bind a port")?;
    Ok(listener.local_addr().context("cannot tell the port")?.port())
}

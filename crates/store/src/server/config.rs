//! What the server is told.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

/// What the server is told. Everything but the folder and the address has a sensible default.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder of the store; made if missing.
    pub dir: PathBuf,
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where clients are told to reach it; the address it listens on unless told otherwise.
    pub advertise: Vec<String>,
    /// Certificates, to speak TLS only.
    pub tls: Option<Tls>,
    /// How much history is kept.
    pub retention: Retention,
    /// About the most bytes of all keys and their history, on disk and in memory.
    pub quota: usize,
    /// How often a watcher that asked for it is told that nothing happened.
    pub progress_interval: Duration,
}

impl Config {
    /// The defaults.
    pub fn new(dir: PathBuf, listen: SocketAddr) -> Self {
        Self {
            dir,
            listen,
            advertise: Vec::new(),
            tls: None,
            retention: Retention::default(),
            quota: 2 << 30,
            progress_interval: Duration::from_mins(10),
        }
    }
}

/// How much history is kept. What is beyond either bound goes.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// So many revisions.
    pub revisions: Option<u32>,
    /// So much time.
    pub age: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        // By age only: clients such as kube-apiserver compact by themselves, and rely on some
        // minutes of history however many changes that is.
        Self { revisions: None, age: Some(Duration::from_hours(1)) }
    }
}

/// Certificates, in PEM.
#[derive(Clone)]
pub struct Tls {
    /// The server's certificate, and those that sign it.
    pub certificate: String,
    /// The server's private key.
    pub key: String,
    /// Who signs the certificates that clients must show; none need be shown without it.
    pub client_ca: Option<String>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("client_ca", &self.client_ca.is_some()).finish_non_exhaustive()
    }
}

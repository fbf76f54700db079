//! Where the target of a volume is: asked while no path works, and told to the worker.
//!
//! Decisions are functions ([`changes`], [`Retry`]); [`Follower`] does what they say, on a thread
//! of its own: nothing it does may keep a request of the kernel waiting.

use std::net::SocketAddr;
use std::time::Duration;

use api::rest::{Control as _, Remote};
use api::{Client, ClientConfig, TlsClient, Token};
use model::{PathStatus, VolumeTarget};
use nvme::initiator::PathId;

use crate::record::{Attachment, ControlPlane, Records, WorkerStatus};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between questions: twice as long each time, from and to this.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Paths to be connected and to be dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// To be connected, first.
    pub add: Vec<SocketAddr>,
    /// To be dropped, then.
    pub remove: Vec<PathId>,
}

/// What makes the paths lead to where the target is. Without any address nothing is changed: a
/// volume that is served nowhere will be somewhere, and its old place is as likely as any.
pub fn changes(have: &[(PathId, SocketAddr)], wanted: &[SocketAddr]) -> Changes {
    if wanted.is_empty() {
        return Changes::default();
    }
    let mut add: Vec<SocketAddr> = Vec::new();
    for address in wanted {
        if !add.contains(address) && have.iter().all(|(_, known)| known != address) {
            add.push(*address);
        }
    }
    let gone = have.iter().filter(|(_, address)| !wanted.contains(address));
    Changes { add, remove: gone.map(|(id, _)| *id).collect() }
}

/// How long to wait before asking again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Retry {
    attempts: u32,
}

impl Retry {
    /// The pause before the next question.
    pub fn pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.attempts).unwrap_or(u32::MAX);
        self.attempts = self.attempts.saturating_add(1);
        PAUSE.0.saturating_mul(factor).min(PAUSE.1)
    }

    /// A path works: the next question is soon.
    pub fn reset(&mut self) {
        self.attempts = 0;
    }
}

/// Why the control plane cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The address makes no sense.
    #[error("{0:?} is not HOST:PORT")]
    Server(String),
    /// Its token cannot be read.
    #[error(transparent)]
    Token(#[from] api::TokenError),
    /// Its authorities cannot be read.
    #[error(transparent)]
    Tls(#[from] api::TlsError),
    /// There is no client.
    #[error(transparent)]
    Client(#[from] api::CallError),
}

impl ControlPlane {
    /// A client of it; what it shows is read anew, for it may have been replaced.
    pub fn client(&self, patience: Duration) -> Result<Remote, ClientError> {
        let server = self.server.parse().map_err(|_| ClientError::Server(self.server.clone()))?;
        let token = self.token_file.as_deref().map(Token::read).transpose()?;
        let tls = self.ca.as_deref().map(TlsClient::read).transpose()?;
        let config = ClientConfig { token, tls, patience, ..ClientConfig::plain(server) };
        Ok(Remote::new(Client::new(config)?))
    }
}

/// How far a worker is: `Starting ─greeted─► Greeted ─a path works─► Serving ─unmounted─► Over`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The kernel's first request was not answered yet.
    #[default]
    Starting,
    /// It was, and no path has worked yet.
    Greeted,
    /// It serves, or has served and waits for a path.
    Serving,
    /// The file system was unmounted.
    Over,
}

/// What the data thread says of itself whenever that changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// How far it is.
    pub(crate) phase: Phase,
    /// Whether commands flow.
    pub(crate) usable: bool,
    /// Size of the volume.
    pub(crate) bytes: u64,
    /// Its paths.
    pub(crate) paths: Vec<PathStatus>,
    /// Whether the kernel can send requests again.
    pub(crate) can_resend: bool,
}

/// What the follower does for the data thread.
pub(crate) trait Follow {
    /// The target is there.
    fn addresses(&self, addresses: Vec<SocketAddr>);
    /// The volume has another size, and the kernel must look at it.
    fn resized(&self, bytes: u64);
}

/// Asks where the target is, and keeps what the data thread says.
pub(crate) struct Follower<'a> {
    pub(crate) attachment: &'a Attachment,
    pub(crate) records: &'a Records,
    pub(crate) seen: tokio::sync::watch::Receiver<Seen>,
}

impl Follower<'_> {
    /// Runs until the data thread has ended.
    pub(crate) async fn run(mut self, follow: &impl Follow) {
        let mut retry = Retry::default();
        let mut known = self.attachment.addresses.clone();
        let mut bytes = self.attachment.bytes;
        loop {
            let seen = self.seen.borrow_and_update().clone();
            if seen.phase == Phase::Over {
                return;
            }
            self.keep(&seen);
            if seen.phase == Phase::Serving && bytes != seen.bytes {
                bytes = seen.bytes;
                follow.resized(bytes);
            }
            if seen.usable {
                retry.reset();
                if self.seen.changed().await.is_err() {
                    return;
                }
                continue;
            }
            if let Some(target) = self.ask().await
                && !target.addresses.is_empty()
                && target.addresses != known
            {
                tracing::info!(addresses = ?target.addresses, "target is elsewhere");
                known.clone_from(&target.addresses);
                follow.addresses(target.addresses);
            }
            // Whatever happens meanwhile is looked at first.
            let _ = tokio::time::timeout(retry.pause(), self.seen.changed()).await;
        }
    }

    async fn ask(&self) -> Option<VolumeTarget> {
        let remote = match self.attachment.control.client(PATIENCE) {
            Ok(remote) => remote,
            Err(error) => {
                tracing::warn!(%error, "control plane cannot be asked");
                return None;
            }
        };
        let host = &self.attachment.host;
        match remote.volume(self.attachment.volume).await {
            Ok(volume) => {
                let target = volume.status.and_then(|status| status.target);
                target.filter(|target| target.hosts.contains(host))
            }
            Err(problem) => {
                tracing::debug!(%problem, "control plane does not say where the target is");
                None
            }
        }
    }

    fn keep(&self, seen: &Seen) {
        let status = WorkerStatus {
            pid: std::process::id(),
            usable: seen.usable,
            bytes: seen.bytes,
            paths: seen.paths.clone(),
            can_resend: seen.can_resend,
        };
        if let Err(error) = self.records.write_status(self.attachment.volume, &status) {
            tracing::warn!(%error, "status cannot be kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn the_new_place_is_connected_and_the_old_one_dropped() {
        let have = [(PathId(1), at(1)), (PathId(2), at(2))];
        let check = |wanted: &[u16], add: &[u16], remove: &[u16]| {
            let wanted: Vec<_> = wanted.iter().copied().map(at).collect();
            let expected = Changes {
                add: add.iter().copied().map(at).collect(),
                remove: remove.iter().copied().map(PathId).collect(),
            };
            assert_eq!(changes(&have, &wanted), expected, "{wanted:?}");
        };
        check(&[1, 2], &[], &[]);
        check(&[3], &[3], &[1, 2]);
        check(&[2, 3, 3], &[3], &[1]);
        check(&[], &[], &[]);
    }

    #[test]
    fn questions_become_rare_and_are_soon_again_after_a_success() {
        let mut retry = Retry::default();
        let pauses: Vec<_> = (0..8).map(|_| retry.pause()).collect();
        assert_eq!((pauses[0], pauses[7]), PAUSE);
        assert!(pauses.windows(2).all(|two| two[0] <= two[1]));
        retry.reset();
        assert_eq!(retry.pause(), PAUSE.0);
    }
}

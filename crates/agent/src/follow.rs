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

use crate::attach::Publication;
use crate::record::{Attachment, ControlPlane, Records, WorkerStatus};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between questions: twice as long each time, from and to this.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// How long the control plane must say the same before what cannot be undone is done.
pub(crate) const CERTAIN: Duration = Duration::from_secs(10);

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

/// Which address of a target is used. A target has one association with a host at a time, so one is
/// tried after the other.
#[derive(Clone, Debug, Default)]
pub struct Rotation {
    addresses: Vec<SocketAddr>,
    current: usize,
}

impl Rotation {
    /// The target is there now. An address that is among these stays in use.
    pub fn set(&mut self, addresses: &[SocketAddr]) {
        let used = self.current();
        let again = used.and_then(|used| addresses.iter().position(|it| *it == used));
        self.current = again.unwrap_or(0);
        self.addresses = addresses.to_vec();
    }

    /// The address in use has not worked for a while: the next one is.
    pub fn advance(&mut self) {
        self.current = (self.current + 1).checked_rem(self.addresses.len()).unwrap_or(0);
    }

    /// The address in use.
    pub fn current(&self) -> Option<SocketAddr> {
        self.addresses.get(self.current).copied()
    }

    /// Whether there is another one to try.
    pub fn has_choice(&self) -> bool {
        self.addresses.len() > 1
    }

    /// All of them, for a successor.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
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
    /// Every address of the target that it knows, in use or not.
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether the kernel can send requests again.
    pub(crate) can_resend: bool,
}

/// What the control plane says.
pub(crate) enum Told {
    /// The target is there.
    At(Vec<SocketAddr>),
    /// The publication that this volume was attached by is over.
    Dismissed,
    /// Nothing.
    Nothing,
}

/// What the follower does for the data thread.
pub(crate) trait Follow {
    /// The target is there.
    fn addresses(&self, addresses: Vec<SocketAddr>);
    /// The volume has another size, and the kernel must look at it.
    fn resized(&self, bytes: u64);
    /// The publication is over: no path will ever work again.
    fn dismissed(&self);
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
        let mut dismissed = false;
        let mut denied: Option<tokio::time::Instant> = None;
        loop {
            let seen = self.seen.borrow_and_update().clone();
            if seen.phase == Phase::Over {
                return;
            }
            self.keep(&seen, dismissed);
            if seen.phase == Phase::Serving && bytes != seen.bytes {
                bytes = seen.bytes;
                follow.resized(bytes);
            }
            if seen.usable || dismissed {
                retry.reset();
                if self.seen.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let told = ask(self.attachment).await;
            let since = *denied.get_or_insert_with(tokio::time::Instant::now);
            if !matches!(told, Told::Dismissed) {
                denied = None;
            }
            match told {
                Told::At(addresses) if !addresses.is_empty() && addresses != known => {
                    tracing::info!(?addresses, "target is elsewhere");
                    known.clone_from(&addresses);
                    follow.addresses(addresses);
                }
                // A former leader may answer with what it knew until its lease is over.
                Told::Dismissed if since.elapsed() < CERTAIN => {}
                Told::Dismissed => {
                    let (volume, host) = (self.attachment.volume, &self.attachment.host);
                    tracing::error!(
                        %volume,
                        %host,
                        "publication of the volume to this host is over, and all I/O to its device \
                         fails; unmount it, then holdfast detach"
                    );
                    dismissed = true;
                    follow.dismissed();
                    continue;
                }
                Told::At(_) | Told::Nothing => {}
            }
            // Whatever happens meanwhile is looked at first.
            let _ = tokio::time::timeout(retry.pause(), self.seen.changed()).await;
        }
    }

    fn keep(&self, seen: &Seen, dismissed: bool) {
        let status = WorkerStatus {
            pid: std::process::id(),
            usable: seen.usable,
            bytes: seen.bytes,
            paths: seen.paths.clone(),
            addresses: seen.addresses.clone(),
            can_resend: seen.can_resend,
            dismissed,
        };
        if let Err(error) = self.records.write_status(self.attachment.volume, &status) {
            tracing::warn!(%error, "status cannot be kept");
        }
    }
}

/// Asks the control plane once where the target of an attached volume is.
pub(crate) async fn ask(attachment: &Attachment) -> Told {
    let remote = match attachment.control.client(PATIENCE) {
        Ok(remote) => remote,
        Err(error) => {
            tracing::warn!(%error, "control plane cannot be asked");
            return Told::Nothing;
        }
    };
    match remote.volume(attachment.volume).await {
        Ok(volume) => {
            let target = volume.status.and_then(|status| status.target);
            target.map_or(Told::Nothing, |target| told(attachment, target))
        }
        Err(problem) => {
            tracing::debug!(%problem, "control plane does not say where the target is");
            Told::Nothing
        }
    }
}

/// What a target means to an attachment.
fn told(attachment: &Attachment, target: VolumeTarget) -> Told {
    let publication = Publication::of(&target, &attachment.host);
    if publication.admits(&attachment.host_nqn) {
        Told::At(target.addresses)
    } else {
        Told::Dismissed
    }
}

#[cfg(test)]
mod tests {
    use model::{Epoch, Nqn};

    use super::*;
    use crate::record::testing::attachment;

    #[test]
    fn a_worker_of_an_earlier_publication_is_told_that_it_is_over() {
        let ours = attachment("00000000-0000-4000-8000-000000000001");
        let target = |nqn: Option<&Nqn>| VolumeTarget {
            id: "00000000-0000-4000-8000-000000000002".parse().unwrap(),
            node: "node-1".parse().unwrap(),
            epoch: Epoch::FIRST,
            state: None,
            nqn: ours.subsystem.clone(),
            addresses: vec![at(1)],
            hosts: nqn.map(|_| ours.host.clone()).into_iter().collect(),
            host_nqns: nqn.map(|nqn| (ours.host.clone(), nqn.clone())).into_iter().collect(),
        };
        let later: Nqn = "nqn.2026-11.io.holdfast:publication:later".parse().unwrap();
        assert!(matches!(told(&ours, target(Some(&ours.host_nqn))), Told::At(_)));
        assert!(matches!(told(&ours, target(Some(&later))), Told::Dismissed));
        assert!(matches!(told(&ours, target(None)), Told::Dismissed));
    }

    #[test]
    fn one_address_of_a_target_is_used_after_the_other() {
        let mut rotation = Rotation::default();
        rotation.advance();
        assert_eq!((rotation.current(), rotation.has_choice()), (None, false));
        rotation.set(&[at(1), at(2)]);
        assert_eq!((rotation.current(), rotation.has_choice()), (Some(at(1)), true));
        rotation.advance();
        rotation.set(&[at(3), at(2)]);
        assert_eq!(rotation.current(), Some(at(2)), "what is in use stays in use");
        rotation.advance();
        assert_eq!(rotation.current(), Some(at(3)));
        rotation.set(&[at(4)]);
        assert_eq!((rotation.current(), rotation.has_choice()), (Some(at(4)), false));
    }

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

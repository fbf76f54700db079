//! From an open connection to a queue that may be used: Connect, then authentication if asked for.
//!
//! ```text
//! Setup ─open─► Connecting ─answer─► AwaitEntropy ─entropy─► Authenticating ─► Done
//!                                └───────────────────────────────────────────► Done
//! ```

use alloc::boxed::Box;
use alloc::string::ToString;

use zerocopy::IntoBytes;

use super::Association;
use super::queue::Queue;
use super::transfer::{Data, Outcome};
use crate::auth::{self, Entropy, HostSide, Names};
use crate::time::Instant;
use crate::wire::{AUTH_REQUIRED, Auth, Connect, ConnectData, Sqe, Status};

/// Why a controller cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectRefused {
    /// The Connect was refused.
    #[error("the controller refused the connection: {status}{}", where_wrong(*.detail))]
    Connect {
        /// Why.
        status: Status,
        /// Which field it did not like, as the completion says it.
        detail: u32,
    },
    /// The queue must authenticate, and no secret was given.
    #[error("the controller asks for authentication; give a DH-HMAC-CHAP secret")]
    SecretMissing,
    /// Authentication failed.
    #[error("the queue could not be authenticated")]
    Authentication(#[from] auth::Reason),
    /// A command of the set-up failed.
    #[error("{step} failed: {status}")]
    Command {
        /// Which.
        step: &'static str,
        /// Why.
        status: Status,
    },
    /// The controller describes itself in a way we cannot work with.
    #[error("the controller cannot be used: {0}")]
    Unusable(&'static str),
}

/// The step in which both sides prove themselves.
const AUTHENTICATION: &str = "authentication";

impl ConnectRefused {
    /// Whether one side did not prove to the other who it is, or had no means to.
    pub fn is_unauthenticated(self) -> bool {
        match self {
            ConnectRefused::SecretMissing | ConnectRefused::Authentication(_) => true,
            // The controller knows no secret.
            ConnectRefused::Command { step, .. } => step == AUTHENTICATION,
            ConnectRefused::Connect { .. } | ConnectRefused::Unusable(_) => false,
        }
    }
}

fn where_wrong(detail: u32) -> &'static str {
    match detail {
        0x0_0000 => "",
        0x1_0000 => " (host identifier)",
        0x1_0010 => " (controller id)",
        0x1_0100 => " (subsystem name: is it spelled right, and served there?)",
        0x1_0200 => " (host name: is this host allowed?)",
        _ => " (see the controller's log)",
    }
}

/// Which queue is made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) qid: u16,
    /// Entries of the queue, not counted from zero.
    pub(super) entries: u16,
    pub(super) cntlid: u16,
    pub(super) kato: u32,
    pub(super) quiet_reads: bool,
}

pub(super) struct QueueConnect {
    association: Association,
    wanted: Wanted,
    state: State,
}

enum State {
    Setup,
    Connecting,
    AwaitEntropy { cntlid: u16 },
    Authenticating { cntlid: u16, host: Box<HostSide> },
    Done,
}

/// What came of a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    Pending,
    /// Random bytes are needed to go on.
    Entropy,
    Connected {
        cntlid: u16,
    },
    Refused(ConnectRefused),
}

/// The slot that every command of the login uses: it is alone on its queue.
pub(super) const SLOT: u16 = 0;

impl QueueConnect {
    pub(super) fn new(association: Association, wanted: Wanted) -> QueueConnect {
        QueueConnect { association, wanted, state: State::Setup }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The queue is open: sends the Connect, once.
    pub(super) fn begin(&mut self, queue: &mut Queue, now: Instant) {
        if !matches!(self.state, State::Setup) || !queue.is_open() {
            return;
        }
        self.state = State::Connecting;
        let host = &self.association.host;
        let subsystem = &self.association.subsystem;
        let data = ConnectData::new(&host.nqn, host.id, subsystem, self.wanted.cntlid);
        let cattr = if self.wanted.quiet_reads { Connect::CATTR_NO_SQ_FLOW } else { 0 };
        let connect = Connect {
            recfmt: 0,
            qid: self.wanted.qid,
            sqsize: self.wanted.entries.saturating_sub(1),
            cattr,
            kato: self.wanted.kato,
        };
        let data = Data::OutOwned { bytes: Box::from(data.as_bytes()) };
        queue.submit(SLOT, connect.to_sqe(0), data, Some(now));
    }

    /// The command at work ended.
    pub(super) fn on(&mut self, outcome: Outcome, queue: &mut Queue, now: Instant) -> Progress {
        let Outcome::Answered { status, result, bytes } = outcome else {
            return Progress::Pending;
        };
        match core::mem::replace(&mut self.state, State::Done) {
            State::Connecting => self.on_connected(status, result),
            State::Authenticating { cntlid, host } => {
                if !status.is_success() {
                    return Progress::Refused(ConnectRefused::Command {
                        step: AUTHENTICATION,
                        status,
                    });
                }
                self.authenticating(cntlid, host, &bytes, queue, now)
            }
            state => {
                self.state = state;
                Progress::Pending
            }
        }
    }

    /// Random bytes, as asked for.
    pub(super) fn authenticate(&mut self, entropy: Entropy, queue: &mut Queue, now: Instant) {
        let (State::AwaitEntropy { cntlid }, Some(keys)) = (&self.state, &self.association.keys)
        else {
            return;
        };
        let cntlid = *cntlid;
        let names = Names {
            host: self.association.host.nqn.as_str().to_string(),
            subsystem: self.association.subsystem.as_str().to_string(),
        };
        let accepted = self.association.accepted.clone();
        let mut host = Box::new(HostSide::new(names, keys.clone(), accepted, entropy));
        let step = host.on(auth::Event::Begin);
        self.state = State::Authenticating { cntlid, host };
        carry_out(step, queue, now);
    }

    fn on_connected(&mut self, status: Status, result: u64) -> Progress {
        // Only the first dword of the answer counts.
        let dw0 = u32::try_from(result & u64::from(u32::MAX)).unwrap_or_default();
        if !status.is_success() {
            return Progress::Refused(ConnectRefused::Connect { status, detail: dw0 });
        }
        let cntlid = u16::try_from(dw0 & 0xFFFF).unwrap_or_default();
        if dw0 & AUTH_REQUIRED == 0 && !self.must_prove() {
            return Progress::Connected { cntlid };
        }
        if self.association.keys.is_none() {
            return Progress::Refused(ConnectRefused::SecretMissing);
        }
        self.state = State::AwaitEntropy { cntlid };
        Progress::Entropy
    }

    /// A host that knows a secret of the controller asks for its proof even when the controller
    /// would do without: otherwise an impostor only had to be silent.
    fn must_prove(&self) -> bool {
        self.association.keys.as_ref().is_some_and(|keys| keys.controller.is_some())
    }

    fn authenticating(
        &mut self,
        cntlid: u16,
        mut host: Box<HostSide>,
        bytes: &[u8],
        queue: &mut Queue,
        now: Instant,
    ) -> Progress {
        let event =
            if host.is_receiving() { auth::Event::Received(bytes) } else { auth::Event::Sent };
        match host.on(event) {
            auth::Step::Authenticated => Progress::Connected { cntlid },
            auth::Step::Failed(reason) => Progress::Refused(ConnectRefused::Authentication(reason)),
            step => {
                self.state = State::Authenticating { cntlid, host };
                carry_out(step, queue, now);
                Progress::Pending
            }
        }
    }
}

fn carry_out(step: auth::Step, queue: &mut Queue, now: Instant) {
    let (sqe, data) = match step {
        auth::Step::Send(message) => (send(&message), Data::OutOwned { bytes: message.into() }),
        auth::Step::Receive { room } => (args(room).to_receive(0), Data::InOwned { len: room }),
        auth::Step::Authenticated | auth::Step::Failed(_) => return,
    };
    queue.submit(SLOT, sqe, data, Some(now));
}

fn send(message: &[u8]) -> Sqe {
    // Messages have at most auth::MAX_MESSAGE bytes.
    args(u32::try_from(message.len()).unwrap_or_default()).to_send(0)
}

fn args(length: u32) -> Auth {
    Auth { spsp: Auth::SPSP, secp: Auth::SECP_NVME, length }
}

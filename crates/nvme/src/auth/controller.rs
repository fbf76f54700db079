//! The controller's side: challenges the host and checks its answer.

use alloc::vec::Vec;
use core::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::group::{Group, KeyPair};
use super::hash::{Digest, Hash};
use super::message::{Challenge, FromController, FromHost, Negotiate, Reason, Reply, Success1};
use super::response::{Entropy, Names, Question};
use super::{Accepted, Keys};

/// Authentication of one queue, seen from the controller.
///
/// ```text
/// Idle ─Negotiate─► ChallengeDue ─receive─► AwaitReply ─Reply─► Success1Due ─receive─► Idle
///                                                            └─► AwaitSuccess2 ─Success2─► Idle
/// any ─bad message─► FailureDue ─receive─► Failed        any ─Failure2─► Failed
/// ```
///
/// A Negotiate begins anew in every state but `Failed`: hosts may authenticate again at any time.
/// Once [`ControllerSide::failure`] says so, the owner closes the queue.
pub struct ControllerSide {
    names: Names,
    /// The host may prove that it knows any of these; it is answered with those it proved.
    keys: Vec<Keys>,
    accepted: Accepted,
    authenticated: bool,
    /// The host may do without, and has not begun.
    is_optional: bool,
    step: Step,
}

enum Step {
    /// Nothing under way.
    Idle,
    /// The challenge waits to be fetched.
    ChallengeDue { exchange: Exchange },
    /// The challenge was fetched.
    AwaitReply { exchange: Exchange },
    /// The host proved itself; our answer waits to be fetched.
    Success1Due { transaction: u16, hash: Hash, answer: Option<Digest> },
    /// Our answer was fetched; the host says what it thinks of it.
    AwaitSuccess2 { transaction: u16 },
    /// The reason of failure waits to be fetched.
    FailureDue { transaction: u16, reason: Reason },
    /// Over.
    Failed { reason: Reason },
}

/// What a challenge was made of.
struct Exchange {
    transaction: u16,
    hash: Hash,
    group: Group,
    entropy: Entropy,
    pair: Option<KeyPair>,
}

/// The host's buffer is too small for the message it asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an authentication message of {needed} bytes does not fit the buffer")]
pub struct NoRoom {
    /// How large it must be.
    pub needed: usize,
}

impl ControllerSide {
    /// A queue of a host that must authenticate.
    pub fn new(names: Names, keys: Keys, accepted: Accepted) -> ControllerSide {
        let keys = alloc::vec![keys];
        let (authenticated, is_optional) = (false, false);
        ControllerSide { names, keys, accepted, authenticated, is_optional, step: Step::Idle }
    }

    /// Lets a host that proves nothing use the queue as well. One that begins to must end it.
    #[must_use]
    pub fn optional(mut self) -> ControllerSide {
        (self.authenticated, self.is_optional) = (true, true);
        self
    }

    /// Whether the host may do without.
    pub fn is_optional(&self) -> bool {
        self.is_optional
    }

    /// Lets the host prove itself with other keys as well: those before a rotation, or after it.
    #[must_use]
    pub fn or(mut self, keys: Keys) -> ControllerSide {
        self.keys.push(keys);
        self
    }

    /// Whether the host has proved itself, and may use the queue for other commands.
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Why the exchange is over; the queue is to be closed once the command at hand is answered.
    pub fn failure(&self) -> Option<Reason> {
        match self.step {
            Step::Failed { reason } => Some(reason),
            _ => None,
        }
    }

    /// Why the host was not believed, from the moment that this is known.
    pub fn rejection(&self) -> Option<Reason> {
        match self.step {
            Step::Failed { reason } | Step::FailureDue { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Authentication Send carried `message`. The command itself always succeeds; what is wrong
    /// with the message is told by the next Authentication Receive.
    pub fn on_send(&mut self, message: &[u8], entropy: Entropy) {
        if core::mem::take(&mut self.is_optional) {
            self.authenticated = false;
        }
        let step = core::mem::replace(&mut self.step, Step::Idle);
        let transaction = step.transaction().unwrap_or_default();
        self.step = match (FromHost::parse(message), step) {
            (_, failed @ Step::Failed { .. }) => failed,
            (Ok(FromHost::Negotiate(offer)), _) => self.on_negotiate(&offer, entropy),
            (Ok(FromHost::Reply(reply)), Step::AwaitReply { exchange }) => {
                self.on_reply(&reply, &exchange)
            }
            (
                Ok(FromHost::Success2 { transaction }),
                Step::AwaitSuccess2 { transaction: expected },
            ) if transaction == expected => {
                self.authenticated = true;
                Step::Idle
            }
            (Ok(FromHost::Failure2 { reason, .. }), _) => self.fail(reason),
            (Ok(_), _) => Step::FailureDue { transaction, reason: Reason::IncorrectMessage },
            (Err(reason), _) => Step::FailureDue { transaction, reason },
        };
    }

    /// Authentication Receive asks for the next message, at most `room` bytes of it.
    pub fn on_receive(&mut self, room: usize) -> Result<Vec<u8>, NoRoom> {
        let message = self.due();
        if message.len() > room {
            return Err(NoRoom { needed: message.len() });
        }
        self.step = match core::mem::replace(&mut self.step, Step::Idle) {
            Step::ChallengeDue { exchange } => Step::AwaitReply { exchange },
            Step::Success1Due { transaction, answer: Some(_), .. } => {
                Step::AwaitSuccess2 { transaction }
            }
            Step::Success1Due { .. } => {
                self.authenticated = true;
                Step::Idle
            }
            Step::FailureDue { reason, .. } | Step::Failed { reason } => self.fail(reason),
            // Asked when nothing was due.
            _ => self.fail(Reason::IncorrectMessage),
        };
        Ok(message)
    }

    fn due(&self) -> Vec<u8> {
        match &self.step {
            Step::ChallengeDue { exchange } => exchange.challenge().encode(),
            Step::Success1Due { transaction, hash, answer } => {
                let answer = answer.as_ref().map(Digest::as_bytes);
                Success1 { transaction: *transaction, hash: *hash, answer }.encode()
            }
            Step::FailureDue { transaction, reason } => {
                FromController::Failure1 { transaction: *transaction, reason: *reason }.encode()
            }
            other => {
                let reason = Reason::IncorrectMessage;
                let transaction = other.transaction().unwrap_or_default();
                FromController::Failure1 { transaction, reason }.encode()
            }
        }
    }

    fn on_negotiate(&self, offer: &Negotiate, entropy: Entropy) -> Step {
        let transaction = offer.transaction;
        if offer.concatenation != 0 {
            return Step::FailureDue { transaction, reason: Reason::ConcatenationMismatch };
        }
        let hash = self.accepted.hashes.iter().find(|hash| offer.hashes.contains(hash));
        let group = self.accepted.groups.iter().find(|group| offer.groups.contains(group));
        match (hash, group) {
            (None, _) => Step::FailureDue { transaction, reason: Reason::HashUnusable },
            (_, None) => Step::FailureDue { transaction, reason: Reason::GroupUnusable },
            (Some(&hash), Some(&group)) => {
                let pair = KeyPair::new(group, &entropy.exponent);
                Step::ChallengeDue {
                    exchange: Exchange { transaction, hash, group, entropy, pair },
                }
            }
        }
    }

    fn on_reply(&self, reply: &Reply<'_>, exchange: &Exchange) -> Step {
        let (transaction, hash) = (exchange.transaction, exchange.hash);
        match self.check(reply, exchange) {
            Ok(answer) => Step::Success1Due { transaction, hash, answer },
            Err(reason) => Step::FailureDue { transaction, reason },
        }
    }

    /// Checks the host's answer; ours is returned if the host asked for one.
    fn check(&self, reply: &Reply<'_>, exchange: &Exchange) -> Result<Option<Digest>, Reason> {
        if reply.transaction != exchange.transaction
            || reply.answer.len() != exchange.hash.digest_len()
        {
            return Err(Reason::IncorrectPayload);
        }
        let shared = exchange.shared(reply.public)?;
        let mut question = Question {
            hash: exchange.hash,
            challenge: exchange.entropy.challenge(exchange.hash),
            shared: shared.as_ref().map(|secret| secret.as_slice()),
            sequence: exchange.entropy.sequence.get(),
            transaction: exchange.transaction,
        };
        let is_proved = |keys: &&Keys| {
            let expected = question.host_answer(&keys.host, &self.names);
            bool::from(expected.as_bytes().ct_eq(reply.answer))
        };
        let Some(proved) = self.keys.iter().find(is_proved) else {
            return Err(Reason::Failed);
        };
        let Some((sequence, challenge)) = reply.challenge else {
            return Ok(None);
        };
        let Some(secret) = &proved.controller else {
            return Err(Reason::Failed);
        };
        question.sequence = sequence;
        question.challenge = challenge;
        Ok(Some(question.controller_answer(secret, &self.names)))
    }

    fn fail(&mut self, reason: Reason) -> Step {
        self.authenticated = false;
        Step::Failed { reason }
    }
}

impl fmt::Debug for ControllerSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ControllerSide")
            .field("names", &self.names)
            .field("authenticated", &self.authenticated)
            .field("step", &self.step.name())
            .finish_non_exhaustive()
    }
}

impl Step {
    fn transaction(&self) -> Option<u16> {
        match self {
            Step::ChallengeDue { exchange } | Step::AwaitReply { exchange } => {
                Some(exchange.transaction)
            }
            Step::Success1Due { transaction, .. }
            | Step::AwaitSuccess2 { transaction }
            | Step::FailureDue { transaction, .. } => Some(*transaction),
            Step::Idle | Step::Failed { .. } => None,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Step::Idle => "Idle",
            Step::ChallengeDue { .. } => "ChallengeDue",
            Step::AwaitReply { .. } => "AwaitReply",
            Step::Success1Due { .. } => "Success1Due",
            Step::AwaitSuccess2 { .. } => "AwaitSuccess2",
            Step::FailureDue { .. } => "FailureDue",
            Step::Failed { .. } => "Failed",
        }
    }
}

impl Exchange {
    fn challenge(&self) -> Challenge<'_> {
        Challenge {
            transaction: self.transaction,
            hash: self.hash,
            group: self.group,
            sequence: self.entropy.sequence.get(),
            value: self.entropy.challenge(self.hash),
            public: self.pair.as_ref().map_or(&[], KeyPair::public),
        }
    }

    fn shared(&self, public: &[u8]) -> Result<Option<Zeroizing<Vec<u8>>>, Reason> {
        match &self.pair {
            None if public.is_empty() => Ok(None),
            None => Err(Reason::IncorrectPayload),
            Some(pair) => pair.shared(public).map(Some).ok_or(Reason::IncorrectPayload),
        }
    }
}

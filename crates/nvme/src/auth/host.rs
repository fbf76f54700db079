//! The host's side: proves itself and, if it was told the controller's secret, asks for proof.

use alloc::vec::Vec;
use core::fmt;

use subtle::ConstantTimeEq;

use super::group::KeyPair;
use super::hash::{Digest, Hash};
use super::message::{
    Challenge, FromController, FromHost, MAX_MESSAGE, Negotiate, Reason, Reply, Success1,
};
use super::response::{Entropy, Names, Question};
use super::{Accepted, Keys};

/// Authentication of one queue, seen from the host.
///
/// ```text
/// Begin ─► Negotiating ─► AwaitChallenge ─► Replying ─► AwaitSuccess1 ─► Done
///                              │                              ├─► Confirming ─► Done
///                              └──────────► Refusing ◄────────┘
///                                              └─► Failed
/// ```
pub struct HostSide {
    names: Names,
    keys: Keys,
    accepted: Accepted,
    transaction: u16,
    entropy: Entropy,
    state: State,
}

/// What became of the last [`Step`].
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The queue is connected and must authenticate.
    Begin,
    /// The Authentication Send succeeded.
    Sent,
    /// The Authentication Receive succeeded and brought this.
    Received(&'a [u8]),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Authentication Send with these bytes.
    Send(Vec<u8>),
    /// Authentication Receive into a buffer of this size.
    Receive {
        /// Its size.
        room: u32,
    },
    /// The queue may be used.
    Authenticated,
    /// The queue is to be closed.
    Failed(Reason),
}

enum State {
    Begin,
    Negotiating,
    AwaitChallenge,
    Replying { expected: Expected },
    AwaitSuccess1 { expected: Expected },
    Confirming,
    Refusing { reason: Reason },
    Done,
    Failed { reason: Reason },
}

/// What the controller's Success1 must hold.
struct Expected {
    hash: Hash,
    answer: Option<Digest>,
}

impl HostSide {
    /// One exchange on one queue.
    pub fn new(names: Names, keys: Keys, accepted: Accepted, entropy: Entropy) -> HostSide {
        // Tells exchanges of this host apart, as the number of its challenge does.
        let [low, high, ..] = entropy.sequence.get().to_le_bytes();
        let transaction = u16::from_le_bytes([low, high]);
        HostSide { names, keys, accepted, transaction, entropy, state: State::Begin }
    }

    /// Whether the next event is [`Event::Received`].
    pub fn is_receiving(&self) -> bool {
        matches!(self.state, State::AwaitChallenge | State::AwaitSuccess1 { .. })
    }

    /// One event in, the next step out. An event that does not fit ends the exchange.
    pub fn on(&mut self, event: Event<'_>) -> Step {
        const RECEIVE: Step = Step::Receive { room: ROOM };
        let state = core::mem::replace(&mut self.state, State::Begin);
        let (state, step) = match (state, event) {
            (State::Begin, Event::Begin) => (State::Negotiating, self.negotiate()),
            (State::Negotiating, Event::Sent) => (State::AwaitChallenge, RECEIVE),
            (State::AwaitChallenge, Event::Received(bytes)) => self.on_challenge(bytes),
            (State::Replying { expected }, Event::Sent) => {
                (State::AwaitSuccess1 { expected }, RECEIVE)
            }
            (State::AwaitSuccess1 { expected }, Event::Received(bytes)) => {
                self.on_success(bytes, &expected)
            }
            (State::Confirming, Event::Sent) => (State::Done, Step::Authenticated),
            (State::Refusing { reason } | State::Failed { reason }, _) => failed(reason),
            _ => failed(Reason::IncorrectMessage),
        };
        self.state = state;
        step
    }

    fn negotiate(&self) -> Step {
        let message = Negotiate {
            transaction: self.transaction,
            concatenation: 0,
            hashes: self.accepted.hashes.clone(),
            groups: self.accepted.groups.clone(),
        };
        Step::Send(message.encode())
    }

    fn on_challenge(&self, bytes: &[u8]) -> (State, Step) {
        match FromController::parse(bytes) {
            Ok(FromController::Challenge(challenge)) => match self.answer(&challenge) {
                Ok((reply, expected)) => (State::Replying { expected }, Step::Send(reply)),
                Err(reason) => self.refuse(reason),
            },
            Ok(FromController::Failure1 { reason, .. }) => failed(reason),
            Ok(_) => self.refuse(Reason::IncorrectMessage),
            Err(reason) => self.refuse(reason),
        }
    }

    fn answer(&self, challenge: &Challenge<'_>) -> Result<(Vec<u8>, Expected), Reason> {
        let hash = challenge.hash;
        if challenge.transaction != self.transaction {
            return Err(Reason::IncorrectPayload);
        }
        if !self.accepted.hashes.contains(&hash) {
            return Err(Reason::HashUnusable);
        }
        if !self.accepted.groups.contains(&challenge.group) {
            return Err(Reason::GroupUnusable);
        }
        let pair = KeyPair::new(challenge.group, &self.entropy.exponent);
        let shared = match &pair {
            None => None,
            Some(pair) => Some(pair.shared(challenge.public).ok_or(Reason::IncorrectPayload)?),
        };
        let mut question = Question {
            hash,
            challenge: challenge.value,
            shared: shared.as_ref().map(|secret| secret.as_slice()),
            sequence: challenge.sequence,
            transaction: self.transaction,
        };
        let answer = question.host_answer(&self.keys.host, &self.names);
        let own = self.entropy.challenge(hash);
        question.challenge = own;
        question.sequence = self.entropy.sequence.get();
        let proof = self.keys.controller.as_ref();
        let expected = proof.map(|secret| question.controller_answer(secret, &self.names));
        let reply = Reply {
            transaction: self.transaction,
            answer: answer.as_bytes(),
            challenge: expected.as_ref().map(|_| (question.sequence, own)),
            public: pair.as_ref().map_or(&[], KeyPair::public),
        };
        Ok((reply.encode(), Expected { hash, answer: expected }))
    }

    fn on_success(&self, bytes: &[u8], expected: &Expected) -> (State, Step) {
        match FromController::parse(bytes) {
            Ok(FromController::Success1(success)) => match self.check(&success, expected) {
                Ok(()) if expected.answer.is_some() => {
                    let message = FromHost::Success2 { transaction: self.transaction };
                    (State::Confirming, Step::Send(message.encode()))
                }
                Ok(()) => (State::Done, Step::Authenticated),
                Err(reason) => self.refuse(reason),
            },
            Ok(FromController::Failure1 { reason, .. }) => failed(reason),
            Ok(_) => self.refuse(Reason::IncorrectMessage),
            Err(reason) => self.refuse(reason),
        }
    }

    fn check(&self, success: &Success1<'_>, expected: &Expected) -> Result<(), Reason> {
        if success.transaction != self.transaction || success.hash != expected.hash {
            return Err(Reason::IncorrectPayload);
        }
        match (&expected.answer, success.answer) {
            (None, _) => Ok(()),
            (Some(expected), Some(answer)) if bool::from(expected.as_bytes().ct_eq(answer)) => {
                Ok(())
            }
            // A controller that leaves out its proof is as bad as one with a wrong proof.
            _ => Err(Reason::Failed),
        }
    }

    fn refuse(&self, reason: Reason) -> (State, Step) {
        let message = FromHost::Failure2 { transaction: self.transaction, reason };
        (State::Refusing { reason }, Step::Send(message.encode()))
    }
}

/// [`MAX_MESSAGE`], as the length field of the command wants it.
#[expect(clippy::as_conversions, reason = "4096 fits in u32")]
#[expect(clippy::cast_possible_truncation, reason = "4096 fits in u32")]
const ROOM: u32 = MAX_MESSAGE as u32;

fn failed(reason: Reason) -> (State, Step) {
    (State::Failed { reason }, Step::Failed(reason))
}

impl fmt::Debug for HostSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostSide")
            .field("names", &self.names)
            .field("transaction", &self.transaction)
            .finish_non_exhaustive()
    }
}

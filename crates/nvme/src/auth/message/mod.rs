//! The messages, byte for byte.
//!
//! Each starts with the same six bytes: type (0 common, 1 DH-HMAC-CHAP), identifier, two reserved,
//! transaction (little-endian). A message may be followed by anything: a host reads into a buffer
//! larger than what it gets.

use alloc::vec;
use alloc::vec::Vec;

use crate::auth::group::Group;
use crate::auth::hash::Hash;

/// Room that every message fits in, also with the largest group.
pub const MAX_MESSAGE: usize = 4096;

const COMMON: u8 = 0;
const CHAP: u8 = 1;
/// Protocol number of DH-HMAC-CHAP in the list of a Negotiate.
const PROTOCOL: u8 = 1;
/// Bytes of one protocol in that list; hashes start at 4 of it, groups at 34.
const DESCRIPTOR: usize = 64;
const LIST: usize = 30;
/// Bytes before the values in Challenge, Reply and Success1, and all of Success2.
const HEAD: usize = 16;

mod id {
    pub(super) const NEGOTIATE: u8 = 0x00;
    pub(super) const CHALLENGE: u8 = 0x01;
    pub(super) const REPLY: u8 = 0x02;
    pub(super) const SUCCESS1: u8 = 0x03;
    pub(super) const SUCCESS2: u8 = 0x04;
    pub(super) const FAILURE2: u8 = 0xF0;
    pub(super) const FAILURE1: u8 = 0xF1;
}

/// Why an exchange failed, as told to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The answer is wrong: the secrets differ, or there is none for this peer.
    #[error("authentication failed: the secrets of the two sides differ")]
    Failed,
    /// The peer offers no protocol that we know.
    #[error("no authentication protocol in common")]
    ProtocolUnusable,
    /// One side wants a secure channel made from this exchange.
    #[error("secure channel concatenation is not offered")]
    ConcatenationMismatch,
    /// No hash function in common.
    #[error("no hash function in common")]
    HashUnusable,
    /// No group in common.
    #[error("no Diffie-Hellman group in common")]
    GroupUnusable,
    /// The message does not make sense.
    #[error("an authentication message is malformed")]
    IncorrectPayload,
    /// The message comes at the wrong time.
    #[error("an authentication message came out of order")]
    IncorrectMessage,
    /// Something later specifications define.
    #[error("authentication failed with reason {0:#04x}")]
    Other(u8),
}

impl Reason {
    const KNOWN: [(u8, Reason); 7] = [
        (1, Reason::Failed),
        (2, Reason::ProtocolUnusable),
        (3, Reason::ConcatenationMismatch),
        (4, Reason::HashUnusable),
        (5, Reason::GroupUnusable),
        (6, Reason::IncorrectPayload),
        (7, Reason::IncorrectMessage),
    ];

    /// The explanation code on the wire.
    pub fn code(self) -> u8 {
        match self {
            Reason::Other(code) => code,
            known => Reason::KNOWN
                .iter()
                .find(|(_, reason)| *reason == known)
                .map_or(1, |(code, _)| *code),
        }
    }

    /// The reason with this explanation code.
    pub fn from_code(code: u8) -> Reason {
        let known = Reason::KNOWN.iter().find(|(known, _)| *known == code);
        known.map_or(Reason::Other(code), |(_, reason)| *reason)
    }
}

/// What a host can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// Number of this exchange, echoed in every message.
    pub transaction: u16,
    /// Whether it wants a secure channel (0: no).
    pub concatenation: u8,
    /// Known hash functions; unknown ones are left out.
    pub hashes: Vec<Hash>,
    /// Known groups; unknown ones are left out.
    pub groups: Vec<Group>,
}

/// The controller's challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Number of this exchange.
    pub transaction: u16,
    /// Chosen hash function.
    pub hash: Hash,
    /// Chosen group.
    pub group: Group,
    /// Number of this challenge.
    pub sequence: u32,
    /// As many random bytes as the hash yields.
    pub value: &'a [u8],
    /// The controller's value in the group; empty without one.
    pub public: &'a [u8],
}

/// The host's answer, and its own challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// Number of this exchange.
    pub transaction: u16,
    /// The answer.
    pub answer: &'a [u8],
    /// Number and value of the host's challenge, if the controller shall prove itself too.
    pub challenge: Option<(u32, &'a [u8])>,
    /// The host's value in the group; empty without one.
    pub public: &'a [u8],
}

/// The controller is satisfied, and proves itself if it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Success1<'a> {
    /// Number of this exchange.
    pub transaction: u16,
    /// The hash in use; its length is sent even when there is no answer, because Linux checks it.
    pub hash: Hash,
    /// The answer to the host's challenge.
    pub answer: Option<&'a [u8]>,
}

/// Every message a host may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHost<'a> {
    /// The first.
    Negotiate(Negotiate),
    /// The second.
    Reply(Reply<'a>),
    /// The third, if the host had challenged.
    Success2 {
        /// Number of the exchange.
        transaction: u16,
    },
    /// Instead of the second or third.
    Failure2 {
        /// Number of the exchange.
        transaction: u16,
        /// Why.
        reason: Reason,
    },
}

/// Every message a controller may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromController<'a> {
    /// After Negotiate.
    Challenge(Challenge<'a>),
    /// After Reply.
    Success1(Success1<'a>),
    /// Instead of either.
    Failure1 {
        /// Number of the exchange.
        transaction: u16,
        /// Why.
        reason: Reason,
    },
}

impl Negotiate {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = head(COMMON, id::NEGOTIATE, self.transaction, 8 + DESCRIPTOR);
        let hashes: Vec<u8> = self.hashes.iter().map(|hash| hash.id()).take(LIST).collect();
        let groups: Vec<u8> = self.groups.iter().map(|group| group.id()).take(LIST).collect();
        put(&mut bytes, 6, &[self.concatenation, 1, PROTOCOL, 0, count(&hashes), count(&groups)]);
        put(&mut bytes, 12, &hashes);
        put(&mut bytes, 12 + LIST, &groups);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Negotiate, Reason> {
        let [concatenation, descriptors] = field(bytes, 6)?;
        let mut usable = None;
        for at in 0..usize::from(descriptors) {
            let descriptor = bytes
                .get(8 + at * DESCRIPTOR..)
                .and_then(|rest| rest.first_chunk::<DESCRIPTOR>())
                .ok_or(Reason::IncorrectPayload)?;
            if descriptor.first() == Some(&PROTOCOL) && usable.is_none() {
                usable = Some(descriptor);
            }
        }
        let descriptor = usable.ok_or(Reason::ProtocolUnusable)?;
        let [hashes, groups] = field(descriptor, 2)?;
        if usize::from(hashes) > LIST || usize::from(groups) > LIST {
            return Err(Reason::IncorrectPayload);
        }
        let listed =
            |from: usize, count: u8| descriptor.iter().copied().skip(from).take(usize::from(count));
        Ok(Negotiate {
            transaction: u16::from_le_bytes(field(bytes, 4)?),
            concatenation,
            hashes: listed(4, hashes).filter_map(Hash::from_id).collect(),
            groups: listed(4 + LIST, groups).filter_map(Group::from_id).collect(),
        })
    }
}

impl Challenge<'_> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = head(CHAP, id::CHALLENGE, self.transaction, HEAD);
        put(&mut bytes, 6, &[count(self.value), 0, self.hash.id(), self.group.id()]);
        put(&mut bytes, 10, &length(self.public));
        put(&mut bytes, 12, &self.sequence.to_le_bytes());
        bytes.extend_from_slice(self.value);
        bytes.extend_from_slice(self.public);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Challenge<'_>, Reason> {
        let [len, _, hash, group] = field(bytes, 6)?;
        let hash = Hash::from_id(hash).ok_or(Reason::HashUnusable)?;
        let group = Group::from_id(group).ok_or(Reason::GroupUnusable)?;
        if usize::from(len) != hash.digest_len() {
            return Err(Reason::IncorrectPayload);
        }
        let public = usize::from(u16::from_le_bytes(field(bytes, 10)?));
        if public != group.value_len() {
            return Err(Reason::IncorrectPayload);
        }
        Ok(Challenge {
            transaction: u16::from_le_bytes(field(bytes, 4)?),
            hash,
            group,
            sequence: u32::from_le_bytes(field(bytes, 12)?),
            value: slice(bytes, HEAD, hash.digest_len())?,
            public: slice(bytes, HEAD + hash.digest_len(), public)?,
        })
    }
}

impl Reply<'_> {
    /// Its bytes. Room for a challenge is there even without one.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = head(CHAP, id::REPLY, self.transaction, HEAD);
        let (sequence, challenge) = self.challenge.unwrap_or_default();
        let valid = u8::from(self.challenge.is_some());
        put(&mut bytes, 6, &[count(self.answer), 0, valid, 0]);
        put(&mut bytes, 10, &length(self.public));
        put(&mut bytes, 12, &sequence.to_le_bytes());
        bytes.extend_from_slice(self.answer);
        bytes.extend_from_slice(challenge);
        bytes.resize(HEAD + 2 * self.answer.len(), 0);
        bytes.extend_from_slice(self.public);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Reply<'_>, Reason> {
        let [len, _, valid, _] = field(bytes, 6)?;
        let len = usize::from(len);
        if !Hash::ALL.iter().any(|hash| hash.digest_len() == len) {
            return Err(Reason::IncorrectPayload);
        }
        let public = usize::from(u16::from_le_bytes(field(bytes, 10)?));
        let sequence = u32::from_le_bytes(field(bytes, 12)?);
        let value = slice(bytes, HEAD + len, len)?;
        let challenge = match (valid, sequence) {
            (0, _) => None,
            // Zero would ask for a secure channel's key without a proof of the controller.
            (1, 1..) => Some((sequence, value)),
            _ => return Err(Reason::IncorrectPayload),
        };
        Ok(Reply {
            transaction: u16::from_le_bytes(field(bytes, 4)?),
            answer: slice(bytes, HEAD, len)?,
            challenge,
            public: slice(bytes, HEAD + 2 * len, public)?,
        })
    }
}

impl Success1<'_> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = head(CHAP, id::SUCCESS1, self.transaction, HEAD);
        let len = u8::try_from(self.hash.digest_len()).unwrap_or(u8::MAX);
        put(&mut bytes, 6, &[len, 0, u8::from(self.answer.is_some())]);
        bytes.extend_from_slice(self.answer.unwrap_or_default());
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Success1<'_>, Reason> {
        let [len, _, valid] = field(bytes, 6)?;
        let hash = Hash::ALL.into_iter().find(|hash| hash.digest_len() == usize::from(len));
        let hash = hash.ok_or(Reason::IncorrectPayload)?;
        let answer = match valid {
            0 => None,
            1 => Some(slice(bytes, HEAD, hash.digest_len())?),
            _ => return Err(Reason::IncorrectPayload),
        };
        // Without an answer a controller need not send more than the head.
        slice(bytes, 0, HEAD)?;
        Ok(Success1 { transaction: u16::from_le_bytes(field(bytes, 4)?), hash, answer })
    }
}

impl FromHost<'_> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            FromHost::Negotiate(message) => message.encode(),
            FromHost::Reply(message) => message.encode(),
            FromHost::Success2 { transaction } => head(CHAP, id::SUCCESS2, *transaction, HEAD),
            FromHost::Failure2 { transaction, reason } => {
                failure(id::FAILURE2, *transaction, *reason)
            }
        }
    }

    /// Reads one; the reason is what to answer if it is not one.
    pub fn parse(bytes: &[u8]) -> Result<FromHost<'_>, Reason> {
        match field(bytes, 0)? {
            [COMMON, id::NEGOTIATE] => Negotiate::parse(bytes).map(FromHost::Negotiate),
            [CHAP, id::REPLY] => Reply::parse(bytes).map(FromHost::Reply),
            [CHAP, id::SUCCESS2] => {
                slice(bytes, 0, HEAD)?;
                Ok(FromHost::Success2 { transaction: u16::from_le_bytes(field(bytes, 4)?) })
            }
            [COMMON, id::FAILURE2] => {
                let (transaction, reason) = parse_failure(bytes)?;
                Ok(FromHost::Failure2 { transaction, reason })
            }
            _ => Err(Reason::IncorrectMessage),
        }
    }
}

impl FromController<'_> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            FromController::Challenge(message) => message.encode(),
            FromController::Success1(message) => message.encode(),
            FromController::Failure1 { transaction, reason } => {
                failure(id::FAILURE1, *transaction, *reason)
            }
        }
    }

    /// Reads one; the reason is what to answer if it is not one.
    pub fn parse(bytes: &[u8]) -> Result<FromController<'_>, Reason> {
        match field(bytes, 0)? {
            [CHAP, id::CHALLENGE] => Challenge::parse(bytes).map(FromController::Challenge),
            [CHAP, id::SUCCESS1] => Success1::parse(bytes).map(FromController::Success1),
            [COMMON, id::FAILURE1] => {
                let (transaction, reason) = parse_failure(bytes)?;
                Ok(FromController::Failure1 { transaction, reason })
            }
            _ => Err(Reason::IncorrectMessage),
        }
    }
}

fn head(kind: u8, id: u8, transaction: u16, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    put(&mut bytes, 0, &[kind, id, 0, 0]);
    put(&mut bytes, 4, &transaction.to_le_bytes());
    bytes
}

fn failure(id: u8, transaction: u16, reason: Reason) -> Vec<u8> {
    let mut bytes = head(COMMON, id, transaction, 8);
    put(&mut bytes, 6, &[1, reason.code()]);
    bytes
}

fn parse_failure(bytes: &[u8]) -> Result<(u16, Reason), Reason> {
    let [_, code] = field(bytes, 6)?;
    Ok((u16::from_le_bytes(field(bytes, 4)?), Reason::from_code(code)))
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Reason> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(Reason::IncorrectPayload)
}

fn slice(bytes: &[u8], at: usize, len: usize) -> Result<&[u8], Reason> {
    bytes.get(at..at + len).ok_or(Reason::IncorrectPayload)
}

/// Lists have at most 30 entries and hashes at most 64 bytes.
fn count(bytes: &[u8]) -> u8 {
    u8::try_from(bytes.len()).unwrap_or(u8::MAX)
}

/// Values of a group have at most 1024 bytes.
fn length(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests;

//! In-band authentication: DH-HMAC-CHAP, both roles, without commands or clocks.
//!
//! Every queue authenticates by itself after its Connect. The host carries messages with
//! Authentication Send and fetches the controller's with Authentication Receive:
//!
//! ```text
//! host (HostSide)                                     controller (ControllerSide)
//!   Negotiate ──────────────── send ────────────────►  picks hash and group
//!   answers   ◄─────────────── receive ──────────────  Challenge
//!   Reply ──────────────────── send ────────────────►  checks the host's answer
//!   checks    ◄─────────────── receive ──────────────  Success1, or Failure1
//!   Success2, or Failure2 ──── send ────────────────►  (only if the host had challenged)
//! ```
//!
//! Invariants:
//! - Answers are compared in constant time; so is exponentiation with a private exponent.
//! - Keys, shared secrets and unused randomness are wiped when dropped and never printed.
//! - A host that was told a controller key refuses a controller that does not prove it knows it.
//! - A peer's group value outside `2..=p-2` is refused: it would give away the shared secret.
//!
//! Deliberately not here: the commands and their status codes (`target`, `initiator`), deadlines
//! (the owner of the queue closes it when the exchange takes too long), a source of randomness
//! ([`Entropy`] is an argument), and secure-channel concatenation, which is refused: TLS keys are
//! configured, not derived.

mod controller;
mod group;
mod hash;
mod host;
mod message;
mod response;
mod secret;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

pub use controller::{ControllerSide, NoRoom};
pub use group::Group;
pub use hash::Hash;
pub use host::{Event, HostSide, Step};
pub use message::{
    Challenge, FromController, FromHost, MAX_MESSAGE, Negotiate, Reason, Reply, Success1,
};
pub use response::{Entropy, Names, Sequence};
pub use secret::{BadSecret, Secret};

/// What both sides of one association know before they talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    /// With which the host proves itself.
    pub host: Secret,
    /// With which the controller proves itself to a host that asks; without it such a host is
    /// refused.
    pub controller: Option<Secret>,
}

/// What one side is ready to use, best first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Hash functions.
    pub hashes: alloc::vec::Vec<Hash>,
    /// Groups; [`Group::Null`] among them allows an exchange without one.
    pub groups: alloc::vec::Vec<Group>,
}

impl Default for Accepted {
    /// Everything. Groups larger than 3072 bits come after it because each doubling costs both
    /// sides about four times as much; no group at all comes last.
    fn default() -> Accepted {
        use Group::{Ffdhe2048, Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Null};
        Accepted {
            hashes: alloc::vec![Hash::Sha512, Hash::Sha384, Hash::Sha256],
            groups: alloc::vec![Ffdhe3072, Ffdhe4096, Ffdhe6144, Ffdhe8192, Ffdhe2048, Null],
        }
    }
}

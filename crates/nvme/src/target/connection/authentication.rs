//! The exchange by which a host proves itself, while its connection has it and while it is away.
//!
//! ```text
//! None                 the host need not prove itself
//! Here ─begin─► Away ─done─► Here
//! ```
//!
//! A message may cost an exponentiation in a large group. That is why the exchange can be taken
//! out with the message, worked on by some other thread, and put back.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::{Connection, Phase};
use crate::auth::{ControllerSide, Entropy, Reason};

/// Where the exchange is.
pub(super) enum Authentication {
    /// There is none.
    None,
    /// With the connection.
    Here(Box<ControllerSide>),
    /// With a message that is worked on.
    Away {
        /// Whether the host had proved itself before.
        authenticated: bool,
    },
}

/// A message of a host to be worked on.
pub struct AuthWork {
    pub(super) side: Box<ControllerSide>,
    pub(super) message: Vec<u8>,
    pub(super) entropy: Entropy,
}

/// The exchange after a message.
pub struct AuthDone {
    pub(super) side: Box<ControllerSide>,
}

impl AuthWork {
    /// Does it, which may take milliseconds.
    pub fn run(self) -> AuthDone {
        let AuthWork { mut side, message, entropy } = self;
        side.on_send(&message, entropy);
        AuthDone { side }
    }
}

impl Connection {
    /// Why the host was not believed to be who it says, if so.
    pub fn rejection(&self) -> Option<Reason> {
        match &self.auth {
            Authentication::Here(side) => side.rejection(),
            Authentication::None | Authentication::Away { .. } => None,
        }
    }

    /// Whether its host was admitted, and has proved itself if it has to.
    pub fn is_trusted(&self) -> bool {
        matches!(self.phase, Phase::Live(_)) && self.is_authenticated()
    }
}

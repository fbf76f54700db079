//! Reservations of hosts on a volume, as they are kept with its replicas.
//!
//! What they mean is NVMe's; here they are what clustered hosts rely on for fencing, and so belong
//! to the volume: whoever serves it next finds them.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ValidationError;
use crate::text::as_text;

/// The registrants of a volume, and the reservation that is held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostReservations {
    /// Changes with the registrants.
    pub generation: u32,
    /// What hosts are told about persistence through power loss. They are kept either way.
    pub persist: bool,
    /// All registrants, in order of registration.
    pub registrants: Vec<Registrant>,
    /// The reservation, if one is held.
    pub held: Option<HeldReservation>,
}

impl HostReservations {
    /// Most registrants of a volume: a note with so many fits what a pool keeps with a replica.
    pub const MAX_REGISTRANTS: usize = 32;

    /// Whether no host ever registered.
    pub fn is_unused(&self) -> bool {
        *self == HostReservations::default()
    }
}

/// A registered host, written as `identifier:key` in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registrant {
    /// The host's identifier.
    pub host: HostIdentifier,
    /// Its key.
    pub key: u64,
}

/// The 128-bit identifier of a host, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIdentifier(pub [u8; 16]);

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeldReservation {
    /// Its type.
    pub kind: ReservationKind,
    /// Who holds it; nobody in particular if all registrants do.
    pub holder: Option<HostIdentifier>,
}

/// What a reservation keeps from whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReservationKind {
    /// One host writes.
    WriteExclusive,
    /// One host reads and writes.
    ExclusiveAccess,
    /// Registrants write; one of them holds it.
    WriteExclusiveRegistrants,
    /// Registrants read and write; one of them holds it.
    ExclusiveAccessRegistrants,
    /// Registrants write; all of them hold it.
    WriteExclusiveAll,
    /// Registrants read and write; all of them hold it.
    ExclusiveAccessAll,
}

impl fmt::Display for HostIdentifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for HostIdentifier {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<HostIdentifier, ValidationError> {
        let number = digits(text, 32).and_then(|digits| u128::from_str_radix(digits, 16).ok());
        let refuse =
            || ValidationError::new("host", text, String::from("give 32 hexadecimal digits"));
        number.map(|number| HostIdentifier(number.to_be_bytes())).ok_or_else(refuse)
    }
}

impl fmt::Display for Registrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:016x}", self.host, self.key)
    }
}

impl FromStr for Registrant {
    type Err = ValidationError;

    fn from_str(text: &str) -> Result<Registrant, ValidationError> {
        let remedy = || String::from("give 32 and 16 hexadecimal digits with a colon between");
        let refuse = || ValidationError::new("registrant", text, remedy());
        let (host, key) = text.split_once(':').ok_or_else(refuse)?;
        let key = digits(key, 16).and_then(|digits| u64::from_str_radix(digits, 16).ok());
        Ok(Registrant { host: host.parse()?, key: key.ok_or_else(refuse)? })
    }
}

/// The text, if it is so many hexadecimal digits and nothing else.
fn digits(text: &str, count: usize) -> Option<&str> {
    let all = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    Some(text).filter(|text| all && text.len() == count)
}

as_text!(HostIdentifier, "pattern": "^[0-9a-f]{32}$");
as_text!(Registrant, "pattern": "^[0-9a-f]{32}:[0-9a-f]{16}$");

//! Names of hosts and subsystems.

use alloc::boxed::Box;
use core::fmt;

/// An NVMe qualified name: `nqn.`, a year and month, a domain in reverse, and more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(Box<str>);

/// Why a name was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadNqn {
    /// Not ended by a zero byte within its field, or not text.
    #[error("the name is not zero-terminated UTF-8")]
    NotText,
    /// Too long or empty.
    #[error("the name has {bytes} bytes; a name has 13 to 223")]
    Length {
        /// How long it is.
        bytes: usize,
    },
    /// Not of the form `nqn.yyyy-mm.reverse.domain`.
    #[error("the name does not begin like nqn.2014-08.org.nvmexpress")]
    Form,
}

impl Nqn {
    /// Longest name in bytes.
    pub const MAX: usize = 223;
    /// Shortest possible: `nqn.yyyy-mm.d`, one letter of domain.
    const MIN: usize = 13;
    /// Name of the discovery subsystem that every discovery service answers to.
    pub const DISCOVERY: &'static str = "nqn.2014-08.org.nvmexpress.discovery";

    /// Checks a name.
    pub fn new(name: &str) -> Result<Nqn, BadNqn> {
        if name.len() < Self::MIN || name.len() > Self::MAX {
            return Err(BadNqn::Length { bytes: name.len() });
        }
        let [b'n', b'q', b'n', b'.', y1, y2, y3, y4, b'-', m1, m2, b'.', rest @ ..] =
            name.as_bytes()
        else {
            return Err(BadNqn::Form);
        };
        let digits = [y1, y2, y3, y4, m1, m2].iter().all(|digit| digit.is_ascii_digit());
        let month = matches!((m1, m2), (b'0', b'1'..=b'9') | (b'1', b'0'..=b'2'));
        let domain = rest.first().is_some_and(u8::is_ascii_alphanumeric);
        if !digits || !month || !domain || name.contains(char::is_control) {
            return Err(BadNqn::Form);
        }
        Ok(Nqn(name.into()))
    }

    /// Reads a zero-terminated field of 256 bytes.
    pub fn from_field(field: &[u8; 256]) -> Result<Nqn, BadNqn> {
        Nqn::new(text(field)?)
    }

    /// Reads the name that a host gives itself. A target only ever compares it, so the form is not
    /// checked: hosts built on older versions of SPDK leave out `nqn.` unless told their name.
    pub fn from_host_field(field: &[u8; 256]) -> Result<Nqn, BadNqn> {
        let name = text(field)?;
        if name.is_empty() || name.len() > Self::MAX {
            return Err(BadNqn::Length { bytes: name.len() });
        }
        if name.contains(char::is_control) {
            return Err(BadNqn::Form);
        }
        Ok(Nqn(name.into()))
    }

    /// A field of 256 bytes, zero-terminated.
    pub fn to_field(&self) -> [u8; 256] {
        let mut field = [0; 256];
        for (to, from) in field.iter_mut().zip(self.0.bytes()) {
            *to = from;
        }
        field
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is the well-known discovery name.
    pub fn is_discovery(&self) -> bool {
        &*self.0 == Self::DISCOVERY
    }
}

/// The text before the first zero byte.
fn text(field: &[u8; 256]) -> Result<&str, BadNqn> {
    let end = field.iter().position(|&byte| byte == 0).ok_or(BadNqn::NotText)?;
    let bytes = field.get(..end).ok_or(BadNqn::NotText)?;
    core::str::from_utf8(bytes).map_err(|_| BadNqn::NotText)
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::str::FromStr for Nqn {
    type Err = BadNqn;

    fn from_str(name: &str) -> Result<Nqn, BadNqn> {
        Nqn::new(name)
    }
}

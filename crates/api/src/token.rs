//! Bearer tokens and what their holders may do.
//!
//! Tokens lie in a file, one a line: the role, a space, the token. Empty lines and lines that begin
//! with `#` are skipped. Only digests are kept in memory.

use std::fmt;
use std::path::{Path, PathBuf};

use http::{HeaderMap, HeaderValue, header};
use model::{Kind, Problem};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

/// What a caller may do; each role may do what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Nothing was asked of it: health, and the document.
    Anybody,
    /// Look.
    Viewer,
    /// Look and change.
    Editor,
    /// Everything.
    Admin,
}

impl Role {
    /// Its name in a file of tokens.
    pub fn name(self) -> &'static str {
        match self {
            Role::Anybody => "anybody",
            Role::Viewer => "viewer",
            Role::Editor => "editor",
            Role::Admin => "admin",
        }
    }

    const ALL: [Role; 4] = [Role::Anybody, Role::Viewer, Role::Editor, Role::Admin];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why tokens could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the tokens in {path}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is none.
    #[error(
        "line {line} of the tokens in {path} is not a role (viewer, editor or admin), a space and \
         a token of 16 to 512 visible characters"
    )]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// It is no token.
    #[error(
        "{path} does not hold a token: it must be one word of 16 to 512 visible characters, \
         without the role that stands before it in the file of the server"
    )]
    NotOne {
        /// Which file.
        path: PathBuf,
    },
    /// There is none: nobody could ever do anything.
    #[error("there is no token in {path}; add one such as: admin $(openssl rand -hex 32)")]
    Empty {
        /// Which file.
        path: PathBuf,
    },
}

/// What a caller shows. It is never printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(HeaderValue);

impl Token {
    /// Reads the file that holds it, and nothing else.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
        Token::new(text.trim()).ok_or_else(|| TokenError::NotOne { path: path.to_owned() })
    }

    /// The token, if it can be one.
    pub fn new(text: &str) -> Option<Token> {
        let mut value = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        value.set_sensitive(true);
        is_token(text).then_some(Token(value))
    }

    /// As it is sent.
    pub(crate) fn header(&self) -> &HeaderValue {
        &self.0
    }
}

fn is_token(text: &str) -> bool {
    (16..=512).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

type Fingerprint = [u8; 32];

/// Who is known.
pub struct Tokens(Vec<(Fingerprint, Role)>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({} of them)", self.0.len())
    }
}

fn fingerprint(token: &str) -> Fingerprint {
    Sha256::digest(token.as_bytes()).into()
}

impl Tokens {
    /// Reads a file of tokens.
    pub fn read(path: &Path) -> Result<Tokens, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
        Tokens::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Tokens, TokenError> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || TokenError::Line { path: path.to_owned(), line: index + 1 };
            let (role, token) = line.split_once(' ').ok_or_else(bad)?;
            let token = token.trim();
            let known = |known: &&Role| known.name() == role && **known != Role::Anybody;
            let role = *Role::ALL.iter().find(known).ok_or_else(bad)?;
            if !is_token(token) {
                return Err(bad());
            }
            tokens.push((fingerprint(token), role));
        }
        if tokens.is_empty() {
            return Err(TokenError::Empty { path: path.to_owned() });
        }
        Ok(Tokens(tokens))
    }

    /// The role of whoever sent these headers. Takes the same time whichever token is right.
    pub(crate) fn role(&self, headers: &HeaderMap) -> Result<Role, Problem> {
        let unknown = |detail: &str| Err(Problem::new(Kind::Unauthenticated, detail));
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(Role::Anybody);
        };
        let text = value.to_str().unwrap_or_default();
        let token = match text.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return unknown("Authorization is not of the form: Bearer TOKEN"),
        };
        let sent = fingerprint(token);
        let (mut found, mut best) = (Choice::from(0), 0u8);
        for (known, role) in &self.0 {
            let same = known.ct_eq(&sent);
            best = u8::conditional_select(&best, &rank(*role), same);
            found |= same;
        }
        if !bool::from(found) {
            return unknown("the token is not one this server knows; was it replaced?");
        }
        Ok(Role::ALL.into_iter().find(|role| rank(*role) == best).unwrap_or(Role::Anybody))
    }
}

fn rank(role: Role) -> u8 {
    match role {
        Role::Anybody => 0,
        Role::Viewer => 1,
        Role::Editor => 2,
        Role::Admin => 3,
    }
}

/// Refuses who may not.
pub(crate) fn must_be(needed: Role, has: Role) -> Result<(), Problem> {
    if has >= needed {
        return Ok(());
    }
    if has == Role::Anybody {
        let detail = format!("this needs a token of a {needed}; send Authorization: Bearer TOKEN");
        return Err(Problem::new(Kind::Unauthenticated, detail));
    }
    let detail = format!("this needs the role {needed}, and your token has the role {has}");
    Err(Problem::new(Kind::PermissionDenied, detail))
}

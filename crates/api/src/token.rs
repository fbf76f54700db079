//! Bearer tokens and what their holders may do.
//!
//! Tokens lie in a file, one a line: the role, a space, the token, and if it is to have a name, a
//! space and that: the audit log tells by it who did something. Empty lines and lines that begin
//! with `#` are skipped. Only digests are kept in memory.
//!
//! People have roles that include one another: viewer, editor, admin. A machine has a role of its
//! own, bound to its name (`node:NAME`, `host:NAME`): with its token it says that it is there, and
//! nothing else. The control plane calls engines where they say that they are, so only an engine
//! itself, or an admin, may say so. Somebody else may know the tokens of engines instead of the
//! file: a [`TokenReviewer`].

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant, SystemTime};

use http::{HeaderMap, HeaderValue, header};
use model::{HostName, NodeName, Problem, ProblemKind};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::TokenReviewer;
use crate::token_review::{Fingerprint, ReviewedTokens};

/// What a caller may do; each role up to admin may do what the ones before it may.
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
    /// The engine of the node that the path names, or an admin.
    Node,
    /// The agent of the host that the path names, or an editor.
    Host,
}

impl Role {
    /// Its name in a file of tokens.
    pub fn name(self) -> &'static str {
        match self {
            Role::Anybody => "anybody",
            Role::Viewer => "viewer",
            Role::Editor => "editor",
            Role::Admin => "admin",
            Role::Node => "node",
            Role::Host => "host",
        }
    }

    /// The least of people who may do what needs this role; machines are none of them.
    fn of_people(self) -> u8 {
        match self {
            Role::Anybody => 0,
            Role::Viewer => 1,
            Role::Editor | Role::Host => 2,
            Role::Admin | Role::Node => 3,
        }
    }
}

/// Stands for the name of every node, in the token that all engines of a cluster share.
const ANY: &str = "*";

/// Who calls: what it may do, and for a machine its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    role: Role,
    machine: Option<String>,
    /// What people call the token, for the audit log.
    name: Option<String>,
}

impl Holder {
    /// A caller without a token.
    pub(crate) const NOBODY: Holder = Holder { role: Role::Anybody, machine: None, name: None };
    /// A caller of a server that knows no tokens.
    pub(crate) const TRUSTED: Holder = Holder { role: Role::Admin, machine: None, name: None };

    /// Whose token a line of the file holds.
    fn parse(text: &str) -> Option<Holder> {
        let (role, machine) = match text.split_once(':') {
            Some(("node", ANY)) => (Role::Node, Some(ANY.to_owned())),
            Some(("node", name)) => (Role::Node, Some(name.parse::<NodeName>().ok()?.to_string())),
            Some(("host", name)) => (Role::Host, Some(name.parse::<HostName>().ok()?.to_string())),
            Some(_) => return None,
            None => {
                let people = [Role::Viewer, Role::Editor, Role::Admin];
                (people.into_iter().find(|role| role.name() == text)?, None)
            }
        };
        Some(Holder { role, machine, name: None })
    }

    /// As what it passes among people.
    fn rank(&self) -> u8 {
        if self.machine.is_some() { 0 } else { self.role.of_people() }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.machine {
            Some(name) => write!(f, "{} of {name}", self.role)?,
            None => write!(f, "{}", self.role)?,
        }
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " {name:?}"))
    }
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
        "line {line} of the tokens in {path} is not a role (viewer, editor, admin, node:NAME, \
         node:* or host:NAME), a space and a token of 16 to 4096 visible characters"
    )]
    Line {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
    /// It is no token.
    #[error(
        "{path} does not hold a token: it must be one word of 16 to 4096 visible characters, \
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

/// What a caller shows. It is never printed. One that was read from a file is read again from time
/// to time, so that it can be replaced while the caller runs.
#[derive(Clone, Debug)]
pub struct Token {
    value: HeaderValue,
    file: Option<FollowedFile>,
}

/// The file of a token, and what it held last.
#[derive(Clone)]
struct FollowedFile(Arc<(PathBuf, Mutex<(HeaderValue, Instant)>)>);

impl fmt::Debug for FollowedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.0.display())
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.header() == other.header()
    }
}

impl Eq for Token {}

impl FollowedFile {
    fn value(&self) -> HeaderValue {
        let (path, last) = &*self.0;
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.1.elapsed() >= LOOK {
            last.1 = Instant::now();
            match Token::read_once(path) {
                Ok(token) => last.0 = token.value,
                Err(error) => tracing::warn!(%error, "the token that was read before is kept"),
            }
        }
        last.0.clone()
    }
}

impl Token {
    /// Reads the file that holds it, and nothing else; and again when it has changed.
    pub fn read(path: &Path) -> Result<Token, TokenError> {
        let Token { value, .. } = Token::read_once(path)?;
        let last = Mutex::new((value.clone(), Instant::now()));
        Ok(Token { value, file: Some(FollowedFile(Arc::new((path.to_owned(), last)))) })
    }

    fn read_once(path: &Path) -> Result<Token, TokenError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
        Token::new(text.trim()).ok_or_else(|| TokenError::NotOne { path: path.to_owned() })
    }

    /// The token, if it can be one.
    pub fn new(text: &str) -> Option<Token> {
        let mut value = HeaderValue::from_str(&format!("Bearer {text}")).ok()?;
        value.set_sensitive(true);
        is_token(text).then_some(Token { value, file: None })
    }

    /// As it is sent.
    pub(crate) fn header(&self) -> HeaderValue {
        self.file.as_ref().map_or_else(|| self.value.clone(), FollowedFile::value)
    }
}

fn is_token(text: &str) -> bool {
    (16..=4096).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Who is known. The file is looked at again from time to time, so that a token can be replaced
/// while the server runs.
pub struct Tokens {
    path: PathBuf,
    known: RwLock<KnownTokens>,
    reviewed: Option<ReviewedTokens>,
}

/// The tokens of a file as it was.
struct KnownTokens {
    holders: Vec<(Fingerprint, Holder)>,
    /// When the file was changed last.
    changed: Option<SystemTime>,
    /// When it was looked at.
    looked: Instant,
}

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(5);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({} of them)", self.known().holders.len())
    }
}

fn fingerprint(token: &str) -> Fingerprint {
    Sha256::digest(token.as_bytes()).into()
}

impl Tokens {
    /// Reads a file of tokens.
    pub fn read(path: &Path) -> Result<Tokens, TokenError> {
        let known = KnownTokens::read(path)?;
        Ok(Tokens { path: path.to_owned(), known: RwLock::new(known), reviewed: None })
    }

    /// The same, and whom the file does not know, this one may.
    #[must_use]
    pub fn reviewed_by(self, reviewer: Arc<dyn TokenReviewer>) -> Tokens {
        Tokens { reviewed: Some(ReviewedTokens::new(reviewer)), ..self }
    }

    fn known(&self) -> RwLockReadGuard<'_, KnownTokens> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file again if it was changed since it was last looked at, and if that is a while
    /// ago. One that cannot be read changes nothing.
    fn refresh(&self) {
        if self.known().looked.elapsed() >= LOOK {
            self.reload();
        }
    }

    fn reload(&self) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.looked = Instant::now();
        if changed(&self.path) == known.changed {
            return;
        }
        match KnownTokens::read(&self.path) {
            Ok(now) => {
                tracing::info!(tokens = now.holders.len(), "the file of tokens was read again");
                *known = now;
            }
            Err(error) => {
                known.changed = changed(&self.path);
                tracing::error!(%error, "the file of tokens was changed and cannot be used");
            }
        }
    }
}

/// When a file was changed last.
fn changed(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|found| found.modified()).ok()
}

impl KnownTokens {
    fn read(path: &Path) -> Result<KnownTokens, TokenError> {
        let changed = changed(path);
        let text = std::fs::read_to_string(path)
            .map_err(|source| TokenError::Read { path: path.to_owned(), source })?;
        let holders = KnownTokens::parse(path, &text)?;
        Ok(KnownTokens { holders, changed, looked: Instant::now() })
    }

    fn parse(path: &Path, text: &str) -> Result<Vec<(Fingerprint, Holder)>, TokenError> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || TokenError::Line { path: path.to_owned(), line: index + 1 };
            let (role, token) = line.split_once(' ').ok_or_else(bad)?;
            let (token, name) = match token.trim().split_once(' ') {
                Some((token, name)) => (token, Some(name.trim().to_owned())),
                None => (token.trim(), None),
            };
            let holder = Holder { name, ..Holder::parse(role).ok_or_else(bad)? };
            if !is_token(token) {
                return Err(bad());
            }
            tokens.push((fingerprint(token), holder));
        }
        if tokens.is_empty() {
            return Err(TokenError::Empty { path: path.to_owned() });
        }
        Ok(tokens)
    }
}

impl Tokens {
    /// Who sent these headers. Takes the same time whichever token of the file is right.
    pub(crate) async fn holder(&self, headers: &HeaderMap) -> Result<Holder, Problem> {
        let unknown = |detail: &str| Err(Problem::new(ProblemKind::Unauthenticated, detail));
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return Ok(Holder::NOBODY);
        };
        let text = value.to_str().unwrap_or_default();
        let token = match text.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => token.trim(),
            _ => return unknown("Authorization is not of the form: Bearer TOKEN"),
        };
        let sent = fingerprint(token);
        if let Some(holder) = self.holder_in_file(&sent) {
            return Ok(holder);
        }
        if let Some(reviewed) = self.reviewed.as_ref().filter(|_| is_token(token))
            && let Some(node) = reviewed.node(token, sent).await?
        {
            return Ok(Holder { role: Role::Node, machine: Some(node.to_string()), name: None });
        }
        unknown("the token is not one this server knows; was it replaced?")
    }

    fn holder_in_file(&self, sent: &Fingerprint) -> Option<Holder> {
        self.refresh();
        let all = &self.known().holders;
        let (mut found, mut which) = (Choice::from(0), 0u64);
        for (index, (known, _)) in (0u64..).zip(all) {
            let same = known.ct_eq(sent);
            which = u64::conditional_select(&which, &index, same);
            found |= same;
        }
        let holder = usize::try_from(which).ok().and_then(|which| all.get(which));
        holder.filter(|_| bool::from(found)).map(|(_, holder)| holder.clone())
    }
}

/// Refuses who may not. `named` is what the path names first.
pub(crate) fn must_be(needed: Role, has: &Holder, named: Option<&str>) -> Result<(), Problem> {
    let is_it = |name: &str| name == ANY || Some(name) == named;
    let is_machine = has.role == needed && has.machine.as_deref().is_some_and(is_it);
    if has.rank() >= needed.of_people() || is_machine {
        return Ok(());
    }
    let name = named.unwrap_or_default();
    let who = match needed {
        Role::Node => format!("node of {name} or admin"),
        Role::Host => format!("host of {name} or editor"),
        _ => needed.to_string(),
    };
    if has.role == Role::Anybody {
        let detail = format!("this needs a token of a {who}; send Authorization: Bearer TOKEN");
        return Err(Problem::new(ProblemKind::Unauthenticated, detail));
    }
    let detail = format!("this needs the role {who}, and your token has the role {has}");
    Err(Problem::new(ProblemKind::PermissionDenied, detail))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn who(tokens: &Tokens, token: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        let holder = tokens.holder(&headers).now_or_never().expect("nobody else is asked");
        holder.ok().map(|holder| holder.to_string())
    }

    /// Tokens of service accounts are replaced about once an hour.
    #[test]
    fn the_token_of_a_caller_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "0123456789abcdef").unwrap();
        let token = Token::read(&path).unwrap();
        let same = token.clone();
        let age = || {
            let mut last = token.file.as_ref().unwrap().0.1.lock().unwrap();
            last.1 = last.1.checked_sub(LOOK).unwrap();
        };
        std::fs::write(&path, "fedcba9876543210").unwrap();
        assert_eq!(same.header(), "Bearer 0123456789abcdef");
        age();
        assert_eq!(same.header(), "Bearer fedcba9876543210");
        std::fs::remove_file(&path).unwrap();
        age();
        assert_eq!(same.header(), "Bearer fedcba9876543210");
        assert!(same.header().is_sensitive());
    }

    /// A token is replaced while the server runs; a file that makes no sense changes nothing.
    #[test]
    fn a_changed_file_of_tokens_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let (old, new) = ("0123456789abcdef", "fedcba9876543210");
        std::fs::write(&path, format!("editor {old} alice\n")).unwrap();
        let tokens = Tokens::read(&path).unwrap();
        assert_eq!(who(&tokens, old).as_deref(), Some("editor \"alice\""));
        let write = |text: &str, seconds| {
            std::fs::write(&path, text).unwrap();
            let at = SystemTime::now() + Duration::from_secs(seconds);
            std::fs::File::open(&path).unwrap().set_modified(at).unwrap();
            tokens.reload();
        };
        write(&format!("viewer {new}\n"), 10);
        assert_eq!((who(&tokens, old), who(&tokens, new)), (None, Some("viewer".to_owned())));
        write("nonsense\n", 20);
        assert_eq!(who(&tokens, new).as_deref(), Some("viewer"));
    }
}

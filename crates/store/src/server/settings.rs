//! What the store holds beside keys and leases: users, roles, alarms, the member's addresses.
//!
//! A [`Setting`] is one change and its bytes on disk (`docs/format/store.md`); [`Settings`] is what
//! all of them come to.

use std::collections::BTreeMap;

use super::{
    auth::{Auth, Permissions, User},
    entry::{NoEntry, decode_bytes, decode_number, encode_bytes, take},
};

/// Who raised an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlarmCause {
    /// The quota; cleared when there is room again.
    Quota,
    /// A client; cleared by a client.
    Client,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// A user is now like this.
    User {
        /// Its name.
        name: String,
        /// All of it.
        user: User,
    },
    /// A user is gone.
    UserDeleted {
        /// Its name.
        name: String,
    },
    /// A role is now like this.
    Role {
        /// Its name.
        name: String,
        /// All of them.
        permissions: Permissions,
    },
    /// A role is gone.
    RoleDeleted {
        /// Its name.
        name: String,
    },
    /// Whether callers must be known, and the number of the last change of users and roles.
    Auth {
        /// Whether they must.
        enabled: bool,
        /// The number.
        revision: u64,
    },
    /// An alarm was raised or cleared.
    Alarm {
        /// Its kind, as in the protocol.
        kind: i32,
        /// Who raised it; nothing when it was cleared.
        raised: Option<AlarmCause>,
    },
    /// Where members would reach this one, as a client has set it.
    PeerUrls {
        /// The addresses.
        urls: Vec<String>,
    },
}

/// Kind bytes of settings; those of other entries are smaller.
const USER: u8 = 7;
const USER_DELETED: u8 = 8;
const ROLE: u8 = 9;
const ROLE_DELETED: u8 = 10;
const AUTH: u8 = 11;
const ALARM: u8 = 12;
const PEER_URLS: u8 = 13;

impl Setting {
    /// Appends the bytes of this change.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::User { name, user } => {
                out.push(USER);
                encode_bytes(name.as_bytes(), out);
                encode_bytes(&user.hash, out);
                encode_count(user.roles.len(), out);
                user.roles.iter().for_each(|role| encode_bytes(role.as_bytes(), out));
            }
            Self::UserDeleted { name } => {
                out.push(USER_DELETED);
                encode_bytes(name.as_bytes(), out);
            }
            Self::Role { name, permissions } => {
                out.push(ROLE);
                encode_bytes(name.as_bytes(), out);
                encode_count(permissions.len(), out);
                for ((key, range_end), kind) in permissions {
                    out.extend(kind.to_le_bytes());
                    encode_bytes(key, out);
                    encode_bytes(range_end, out);
                }
            }
            Self::RoleDeleted { name } => {
                out.push(ROLE_DELETED);
                encode_bytes(name.as_bytes(), out);
            }
            Self::Auth { enabled, revision } => {
                out.extend([AUTH, u8::from(*enabled)]);
                out.extend(revision.to_le_bytes());
            }
            Self::Alarm { kind, raised } => {
                let raised = match raised {
                    None => 0,
                    Some(AlarmCause::Quota) => 1,
                    Some(AlarmCause::Client) => 2,
                };
                out.extend([ALARM, raised]);
                out.extend(kind.to_le_bytes());
            }
            Self::PeerUrls { urls } => {
                out.push(PEER_URLS);
                encode_count(urls.len(), out);
                for url in urls {
                    encode_bytes(url.as_bytes(), out);
                }
            }
        }
    }

    /// Takes the change of this kind from the front of the bytes.
    pub(crate) fn decode(kind: u8, bytes: &mut &[u8]) -> Result<Self, NoEntry> {
        Ok(match kind {
            USER => {
                let (name, hash) = (decode_text(bytes)?, decode_bytes(bytes)?);
                let count = decode_count(bytes)?;
                let roles = (0..count).map(|_| decode_text(bytes)).collect::<Result<_, _>>()?;
                Self::User { name, user: User { hash, roles } }
            }
            USER_DELETED => Self::UserDeleted { name: decode_text(bytes)? },
            ROLE => {
                let (name, count) = (decode_text(bytes)?, decode_count(bytes)?);
                let permission = |_| {
                    let kind = i32::from_le_bytes(take(bytes)?);
                    Ok(((decode_bytes(bytes)?, decode_bytes(bytes)?), kind))
                };
                let permissions = (0..count).map(permission).collect::<Result<_, _>>()?;
                Self::Role { name, permissions }
            }
            ROLE_DELETED => Self::RoleDeleted { name: decode_text(bytes)? },
            AUTH => {
                let enabled = match take(bytes)? {
                    [0] => false,
                    [1] => true,
                    _ => return Err(NoEntry),
                };
                Self::Auth { enabled, revision: decode_number(bytes)?.cast_unsigned() }
            }
            ALARM => {
                let raised = match take(bytes)? {
                    [0] => None,
                    [1] => Some(AlarmCause::Quota),
                    [2] => Some(AlarmCause::Client),
                    _ => return Err(NoEntry),
                };
                Self::Alarm { kind: i32::from_le_bytes(take(bytes)?), raised }
            }
            PEER_URLS => {
                let count = decode_count(bytes)?;
                let urls = (0..count).map(|_| decode_text(bytes)).collect::<Result<_, _>>()?;
                Self::PeerUrls { urls }
            }
            _ => return Err(NoEntry),
        })
    }
}

fn encode_count(count: usize, out: &mut Vec<u8>) {
    // Parts of requests, and those are at most 1.5 MiB.
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn decode_count(bytes: &mut &[u8]) -> Result<u32, NoEntry> {
    Ok(u32::from_le_bytes(take(bytes)?))
}

fn decode_text(bytes: &mut &[u8]) -> Result<String, NoEntry> {
    String::from_utf8(decode_bytes(bytes)?.to_vec()).map_err(|_| NoEntry)
}

/// What all changes come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Users and roles.
    pub(crate) auth: Auth,
    /// The alarms that are up, and who raised them.
    pub(crate) alarms: BTreeMap<i32, AlarmCause>,
    /// Where members would reach this one.
    pub(crate) peer_urls: Vec<String>,
}

impl Settings {
    /// Makes one change.
    pub(crate) fn apply(&mut self, setting: &Setting) {
        match setting {
            Setting::Alarm { kind, raised: Some(cause) } => {
                self.alarms.insert(*kind, *cause);
            }
            Setting::Alarm { kind, raised: None } => {
                self.alarms.remove(kind);
            }
            Setting::PeerUrls { urls } => self.peer_urls.clone_from(urls),
            other => self.auth.apply(other),
        }
    }

    /// All of it, as changes of an empty one.
    pub(crate) fn all(&self) -> Vec<Setting> {
        let alarm = |(kind, cause): (&i32, &AlarmCause)| Setting::Alarm {
            kind: *kind,
            raised: Some(*cause),
        };
        let urls = self.peer_urls.clone();
        let urls = (!urls.is_empty()).then_some(Setting::PeerUrls { urls });
        self.auth.settings().chain(self.alarms.iter().map(alarm)).chain(urls).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn all_of_it_makes_the_same_again() {
        let mut settings = Settings::default();
        assert_eq!(settings.all(), [], "a store without users is as short as before");
        let user = User { hash: Bytes::from("h"), roles: ["r".to_owned()].into() };
        let range = (Bytes::from("a"), Bytes::from("b"));
        let changes = [
            Setting::User { name: "u".to_owned(), user: user.clone() },
            Setting::User { name: "gone".to_owned(), user },
            Setting::UserDeleted { name: "gone".to_owned() },
            Setting::Role { name: "r".to_owned(), permissions: [(range, 2)].into() },
            Setting::Role { name: "gone".to_owned(), permissions: Permissions::new() },
            Setting::RoleDeleted { name: "gone".to_owned() },
            Setting::Auth { enabled: true, revision: 7 },
            Setting::Alarm { kind: 1, raised: Some(AlarmCause::Quota) },
            Setting::Alarm { kind: 2, raised: Some(AlarmCause::Client) },
            Setting::Alarm { kind: 2, raised: None },
            Setting::PeerUrls { urls: vec!["http://a:1".to_owned()] },
        ];
        for change in &changes {
            settings.apply(change);
        }
        let mut again = Settings::default();
        settings.all().iter().for_each(|change| again.apply(change));
        assert_eq!(again, settings);
        for change in changes {
            let mut bytes = Vec::new();
            change.encode(&mut bytes);
            let decoded = Setting::decode(bytes[0], &mut &bytes[1..]);
            assert_eq!(decoded, Ok(change));
            for cut in 1..bytes.len() {
                assert_eq!(Setting::decode(bytes[0], &mut &bytes[1..cut]), Err(NoEntry));
            }
        }
    }
}

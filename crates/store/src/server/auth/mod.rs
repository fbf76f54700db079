//! Users, roles and permissions, as etcd has them.
//!
//! Pure: the machine asks what a change would be, journals it as a [`Setting`] and applies it; so a
//! restart applies the same. Reads ask whether a caller may, see [`permit`].
//!
//! Deliberately not here: passwords in the clear (`password`), tokens (`tokens`).

pub(crate) mod password;
mod permit;
pub(crate) mod tokens;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::proto::authpb::Permission;

use super::{settings::Setting, status::Refusal};
pub(crate) use permit::Caller;

/// The user and the role that may do everything.
pub(crate) const ROOT: &str = "root";

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    /// Hash of its password, as `password` writes it; empty for a user without one.
    pub(crate) hash: Bytes,
    /// The names of its roles.
    pub(crate) roles: BTreeSet<String>,
}

/// What a role may do: kind of access by first key and end of range.
pub(crate) type Permissions = BTreeMap<(Bytes, Bytes), i32>;

/// All users and roles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) enabled: bool,
    /// Grows with every change.
    pub(crate) revision: u64,
    users: BTreeMap<String, User>,
    roles: BTreeMap<String, Permissions>,
}

impl Default for Auth {
    fn default() -> Self {
        Self { enabled: false, revision: 1, users: BTreeMap::new(), roles: BTreeMap::new() }
    }
}

impl Auth {
    /// Makes a change that was decided before.
    pub(crate) fn apply(&mut self, setting: &Setting) {
        match setting {
            Setting::User { name, user } => {
                self.users.insert(name.clone(), user.clone());
            }
            Setting::UserDeleted { name } => {
                self.users.remove(name);
            }
            Setting::Role { name, permissions } => {
                self.roles.insert(name.clone(), permissions.clone());
            }
            Setting::RoleDeleted { name } => {
                self.roles.remove(name);
            }
            Setting::Auth { enabled, revision } => {
                (self.enabled, self.revision) = (*enabled, *revision);
            }
            Setting::Alarm { .. } | Setting::PeerUrls { .. } => {}
        }
    }

    /// All of it, as changes of an empty one.
    pub(crate) fn settings(&self) -> impl Iterator<Item = Setting> {
        let user = |(name, user): (&String, &User)| Setting::User {
            name: name.clone(),
            user: user.clone(),
        };
        let role = |(name, permissions): (&String, &Permissions)| Setting::Role {
            name: name.clone(),
            permissions: permissions.clone(),
        };
        let changed = *self != Self::default();
        let switch = Setting::Auth { enabled: self.enabled, revision: self.revision };
        let switch = changed.then_some(switch);
        self.users.iter().map(user).chain(self.roles.iter().map(role)).chain(switch)
    }

    /// The user with this name.
    pub(crate) fn user(&self, name: &str) -> Result<&User, Refusal> {
        self.users.get(name).ok_or(Refusal::UserNotFound)
    }

    /// The permissions of the role with this name.
    pub(crate) fn role(&self, name: &str) -> Result<&Permissions, Refusal> {
        self.roles.get(name).ok_or(Refusal::RoleNotFound)
    }

    /// The names of all users.
    pub(crate) fn users(&self) -> Vec<String> {
        self.users.keys().cloned().collect()
    }

    /// The names of all roles.
    pub(crate) fn roles(&self) -> Vec<String> {
        self.roles.keys().cloned().collect()
    }

    /// Whether everybody can be asked who they are.
    pub(crate) fn check_enable(&self) -> Result<(), Refusal> {
        let root = self.users.get(ROOT).ok_or(Refusal::RootUserMissing)?;
        if !root.roles.contains(ROOT) {
            return Err(Refusal::RootRoleMissing);
        }
        // Without a password nobody could ever be root again.
        if root.hash.is_empty() { Err(Refusal::InvalidAuthChange) } else { Ok(()) }
    }

    /// A new user.
    pub(crate) fn user_add(&self, name: &str, hash: Bytes) -> Result<Setting, Refusal> {
        if name.is_empty() {
            return Err(Refusal::UserEmpty);
        }
        if self.users.contains_key(name) {
            return Err(Refusal::UserExists);
        }
        let user = User { hash, roles: BTreeSet::new() };
        Ok(Setting::User { name: name.to_owned(), user })
    }

    /// One user less.
    pub(crate) fn user_delete(&self, name: &str) -> Result<Setting, Refusal> {
        if self.enabled && name == ROOT {
            return Err(Refusal::InvalidAuthChange);
        }
        self.user(name)?;
        Ok(Setting::UserDeleted { name: name.to_owned() })
    }

    /// Another password.
    pub(crate) fn change_password(&self, name: &str, hash: Bytes) -> Result<Setting, Refusal> {
        let user = User { hash, ..self.user(name)?.clone() };
        Ok(Setting::User { name: name.to_owned(), user })
    }

    /// One role more for a user.
    pub(crate) fn grant_role(&self, name: &str, role: &str) -> Result<Setting, Refusal> {
        let mut user = self.user(name)?.clone();
        // Root needs no record: it may do everything anyhow.
        if role != ROOT {
            self.role(role)?;
        }
        user.roles.insert(role.to_owned());
        Ok(Setting::User { name: name.to_owned(), user })
    }

    /// One role less for a user.
    pub(crate) fn revoke_role(&self, name: &str, role: &str) -> Result<Setting, Refusal> {
        if self.enabled && name == ROOT && role == ROOT {
            return Err(Refusal::InvalidAuthChange);
        }
        let mut user = self.user(name)?.clone();
        if !user.roles.remove(role) {
            return Err(Refusal::RoleNotGranted);
        }
        Ok(Setting::User { name: name.to_owned(), user })
    }

    /// A new role.
    pub(crate) fn role_add(&self, name: &str) -> Result<Setting, Refusal> {
        if name.is_empty() {
            return Err(Refusal::RoleEmpty);
        }
        if self.roles.contains_key(name) {
            return Err(Refusal::RoleExists);
        }
        Ok(Setting::Role { name: name.to_owned(), permissions: Permissions::new() })
    }

    /// One role less, for all users that have it too.
    pub(crate) fn role_delete(&self, name: &str) -> Result<Vec<Setting>, Refusal> {
        if self.enabled && name == ROOT {
            return Err(Refusal::InvalidAuthChange);
        }
        self.role(name)?;
        let mut changes = vec![Setting::RoleDeleted { name: name.to_owned() }];
        for (holder, user) in self.users.iter().filter(|(_, user)| user.roles.contains(name)) {
            let mut user = user.clone();
            user.roles.remove(name);
            changes.push(Setting::User { name: holder.clone(), user });
        }
        Ok(changes)
    }

    /// One permission more for a role, or another kind of it.
    pub(crate) fn grant_permission(
        &self,
        name: &str,
        permission: Option<&Permission>,
    ) -> Result<Setting, Refusal> {
        let permission = permission.ok_or(Refusal::PermissionMissing)?;
        let mut permissions = self.role(name)?.clone();
        let range = (permission.key.clone(), permission.range_end.clone());
        permissions.insert(range, permission.perm_type);
        Ok(Setting::Role { name: name.to_owned(), permissions })
    }

    /// One permission less for a role.
    pub(crate) fn revoke_permission(
        &self,
        name: &str,
        range: &(Bytes, Bytes),
    ) -> Result<Setting, Refusal> {
        let mut permissions = self.role(name)?.clone();
        permissions.remove(range).ok_or(Refusal::PermissionNotGranted)?;
        Ok(Setting::Role { name: name.to_owned(), permissions })
    }
}

//! Whether a caller may do what it asks for.
//!
//! A range is allowed when the permissions of all roles of the user cover it together.

use bytes::Bytes;

use crate::proto::{
    authpb::permission::Type,
    etcdserverpb::{DeleteRangeRequest, PutRequest, TxnRequest, request_op::Request},
};

use super::{super::status::Refusal, Auth, ROOT, User};

/// Who calls: the user of its token, or nobody in particular.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller(pub Option<String>);

/// What is asked for, of a range of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Auth {
    /// Somebody who is known.
    pub(crate) fn permit_any(&self, caller: &Caller) -> Result<(), Refusal> {
        self.known(caller).map(|_| ())
    }

    /// Somebody who may do everything.
    pub(crate) fn permit_root(&self, caller: &Caller) -> Result<(), Refusal> {
        match self.known(caller)? {
            Some(user) if !user.roles.contains(ROOT) => Err(Refusal::PermissionDenied),
            _ => Ok(()),
        }
    }

    /// The user itself, or somebody who may do everything.
    pub(crate) fn permit_user(&self, caller: &Caller, name: &str) -> Result<(), Refusal> {
        match &caller.0 {
            Some(asks) if asks == name => self.permit_any(caller),
            _ => self.permit_root(caller),
        }
    }

    /// A user that has the role, or somebody who may do everything.
    pub(crate) fn permit_role(&self, caller: &Caller, role: &str) -> Result<(), Refusal> {
        match self.known(caller)? {
            Some(user) if user.roles.contains(role) => Ok(()),
            _ => self.permit_root(caller),
        }
    }

    /// To read a range.
    pub(crate) fn permit_range(
        &self,
        caller: &Caller,
        key: &Bytes,
        range_end: &Bytes,
    ) -> Result<(), Refusal> {
        self.permit(caller, Access::Read, (key, range_end))
    }

    /// To write a key.
    pub(crate) fn permit_put(&self, caller: &Caller, put: &PutRequest) -> Result<(), Refusal> {
        let one = (&put.key, &Bytes::new());
        self.permit(caller, Access::Write, one)?;
        if put.prev_kv { self.permit(caller, Access::Read, one) } else { Ok(()) }
    }

    /// To write keys that a lease would delete.
    pub(crate) fn permit_lease<'a>(
        &self,
        caller: &Caller,
        mut keys: impl Iterator<Item = &'a Bytes>,
    ) -> Result<(), Refusal> {
        self.permit_any(caller)?;
        keys.try_for_each(|key| self.permit(caller, Access::Write, (key, &Bytes::new())))
    }

    /// To delete a range.
    pub(crate) fn permit_delete(
        &self,
        caller: &Caller,
        delete: &DeleteRangeRequest,
    ) -> Result<(), Refusal> {
        let range = (&delete.key, &delete.range_end);
        self.permit(caller, Access::Write, range)?;
        if delete.prev_kv { self.permit(caller, Access::Read, range) } else { Ok(()) }
    }

    /// To forget history, which is everybody's.
    pub(crate) fn permit_compact(&self, caller: &Caller) -> Result<(), Refusal> {
        let least = Bytes::from_static(&[0]);
        self.permit(caller, Access::Write, (&least, &least))
    }

    /// To do all that a transaction might do.
    pub(crate) fn permit_txn(&self, caller: &Caller, txn: &TxnRequest) -> Result<(), Refusal> {
        self.permit_any(caller)?;
        for compare in &txn.compare {
            self.permit_range(caller, &compare.key, &compare.range_end)?;
        }
        for op in txn.success.iter().chain(&txn.failure) {
            match &op.request {
                Some(Request::RequestRange(range)) => {
                    self.permit_range(caller, &range.key, &range.range_end)?;
                }
                Some(Request::RequestPut(put)) => self.permit_put(caller, put)?,
                Some(Request::RequestDeleteRange(delete)) => self.permit_delete(caller, delete)?,
                Some(Request::RequestTxn(inner)) => self.permit_txn(caller, inner)?,
                None => {}
            }
        }
        Ok(())
    }

    /// The user, when callers must be known.
    fn known(&self, caller: &Caller) -> Result<Option<&User>, Refusal> {
        if !self.enabled {
            return Ok(None);
        }
        let name = caller.0.as_deref().ok_or(Refusal::UserEmpty)?;
        self.users.get(name).map(Some).ok_or(Refusal::PermissionDenied)
    }

    fn permit(
        &self,
        caller: &Caller,
        access: Access,
        (key, range_end): (&Bytes, &Bytes),
    ) -> Result<(), Refusal> {
        let Some(user) = self.known(caller)? else { return Ok(()) };
        if user.roles.contains(ROOT) {
            return Ok(());
        }
        let wanted = Interval::new(key, range_end);
        let roles = user.roles.iter().filter_map(|role| self.roles.get(role)).flatten();
        let mut allowed: Vec<Interval> = roles
            .filter(|(_, kind)| allows(**kind, access))
            .map(|((key, range_end), _)| Interval::new(key, range_end))
            .collect();
        allowed.sort();
        if wanted.is_covered(&allowed) { Ok(()) } else { Err(Refusal::PermissionDenied) }
    }
}

fn allows(kind: i32, access: Access) -> bool {
    match Type::try_from(kind) {
        Ok(Type::Readwrite) => true,
        Ok(Type::Read) => access == Access::Read,
        Ok(Type::Write) => access == Access::Write,
        Err(_) => false,
    }
}

/// Keys from `start` on, up to `end` if there is one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interval {
    start: Bytes,
    end: Option<Bytes>,
}

impl Interval {
    fn new(key: &Bytes, range_end: &Bytes) -> Self {
        let end = match &range_end[..] {
            [] => Some([key, &[0][..]].concat().into()),
            [0] => None,
            _ => Some(range_end.clone()),
        };
        Self { start: key.clone(), end }
    }

    /// Whether sorted intervals cover all of it together.
    fn is_covered(&self, allowed: &[Self]) -> bool {
        let mut covered = self.start.clone();
        for interval in allowed {
            if interval.start > covered {
                return false;
            }
            match &interval.end {
                None => return true,
                Some(end) if *end > covered => covered = end.clone(),
                Some(_) => {}
            }
            if self.end.as_ref().is_some_and(|end| *end <= covered) {
                return true;
            }
        }
        // An empty range asks for nothing.
        self.end.as_ref().is_some_and(|end| *end <= self.start && !allowed.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(text: &str) -> Interval {
        let (key, end) = text.split_once("..").unwrap_or((text, ""));
        let end = if end == "*" { "\0" } else { end };
        Interval::new(&Bytes::copy_from_slice(key.as_bytes()), &end.to_owned().into())
    }

    fn check(wanted: &str, allowed: &str, covered: bool) {
        let mut allowed: Vec<_> = allowed.split_whitespace().map(interval).collect();
        allowed.sort();
        assert_eq!(interval(wanted).is_covered(&allowed), covered, "{wanted} in {allowed:?}");
    }

    #[test]
    fn ranges_are_covered_by_all_permissions_together() {
        check("a", "a", true);
        check("a", "", false);
        check("ab", "a", false);
        check("a..b", "a", false);
        check("a..b", "a..b", true);
        check("a..d", "a..b b..c c..d", true);
        check("a..d", "a..b c..d", false);
        check("b..c", "a..*", true);
        check("a..*", "a..z", false);
        check("a..*", "a..m k..*", true);
        check("a..c", "a..b a..z", true);
        check("0", "a..z", false);
    }
}

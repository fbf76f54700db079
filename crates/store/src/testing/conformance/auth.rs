//! Users, roles and what they may do.

use bytes::Bytes;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use super::target::{Target, put_request};
use super::{Checked, Failure, holds, refused, same};
use crate::proto::authpb::{Permission, permission::Type};
use crate::proto::etcdserverpb as pb;
use crate::proto::etcdserverpb::auth_client::AuthClient;
use crate::proto::etcdserverpb::request_op::Request as Op;

/// A request of whoever has the token.
fn by<T>(token: &str, request: T) -> Request<T> {
    let mut request = Request::new(request);
    if let Ok(token) = token.parse() {
        request.metadata_mut().insert("token", token);
    }
    request
}

async fn token(auth: &mut AuthClient<Channel>, name: &str) -> Result<String, Status> {
    let request = pb::AuthenticateRequest { name: name.into(), password: "secret".into() };
    Ok(auth.authenticate(request).await?.into_inner().token)
}

async fn user(auth: &mut AuthClient<Channel>, name: &str, role: &str) -> Checked {
    let user = pb::AuthUserAddRequest {
        name: name.into(),
        password: "secret".into(),
        ..Default::default()
    };
    auth.user_add(user).await?;
    auth.role_add(pb::AuthRoleAddRequest { name: role.into() }).await?;
    let grant = pb::AuthUserGrantRoleRequest { user: name.into(), role: role.into() };
    auth.user_grant_role(grant).await?;
    Ok(())
}

/// Leaves the server as it was found, whatever the case did.
async fn clear(auth: &mut AuthClient<Channel>) -> Checked {
    if let Ok(root) = token(auth, "root").await {
        auth.auth_disable(by(&root, pb::AuthDisableRequest {})).await?;
    }
    for name in auth.user_list(pb::AuthUserListRequest {}).await?.into_inner().users {
        auth.user_delete(pb::AuthUserDeleteRequest { name }).await?;
    }
    for role in auth.role_list(pb::AuthRoleListRequest {}).await?.into_inner().roles {
        auth.role_delete(pb::AuthRoleDeleteRequest { role }).await?;
    }
    Ok(())
}

pub(super) async fn not_enabled(at: Target) -> Checked {
    let mut auth = at.auth();
    let why = (Code::FailedPrecondition, "etcdserver: authentication is not enabled");
    refused("a token", token(&mut auth, "root").await, why)?;
    let enabled = auth.auth_enable(pb::AuthEnableRequest {}).await;
    let why = (Code::FailedPrecondition, "etcdserver: root user does not exist");
    refused("without root", enabled, why)?;
    auth.auth_disable(pb::AuthDisableRequest {}).await?;
    Ok(())
}

pub(super) async fn users_and_roles(at: Target) -> Checked {
    let mut auth = at.auth();
    let done = manage(&mut auth).await;
    clear(&mut auth).await?;
    done
}

async fn manage(auth: &mut AuthClient<Channel>) -> Checked {
    user(auth, "root", "plain").await?;
    let enabled = auth.auth_enable(pb::AuthEnableRequest {}).await;
    let why = (Code::FailedPrecondition, "etcdserver: root user does not have root role");
    refused("root is not root", enabled, why)?;
    let add = |name: &str| pb::AuthUserAddRequest { name: name.into(), ..Default::default() };
    let exists = (Code::FailedPrecondition, "etcdserver: user name already exists");
    refused("a user twice", auth.user_add(add("root")).await, exists)?;
    let empty = (Code::InvalidArgument, "etcdserver: user name is empty");
    refused("a user without a name", auth.user_add(add("")).await, empty)?;
    let none = (Code::FailedPrecondition, "etcdserver: user name not found");
    let get = pb::AuthUserGetRequest { name: "none".into() };
    refused("no user", auth.user_get(get).await, none)?;
    let get = pb::AuthUserGetRequest { name: "root".into() };
    same("its roles", auth.user_get(get).await?.into_inner().roles, vec!["plain".to_owned()])?;
    let role = |name: &str| pb::AuthRoleAddRequest { name: name.into() };
    let exists = (Code::FailedPrecondition, "etcdserver: role name already exists");
    refused("a role twice", auth.role_add(role("plain")).await, exists)?;
    let none = (Code::FailedPrecondition, "etcdserver: role name not found");
    let grant = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "none".into() };
    refused("no role", auth.user_grant_role(grant).await, none)?;
    let revoke = pb::AuthUserRevokeRoleRequest { name: "root".into(), role: "other".into() };
    let why = (Code::FailedPrecondition, "etcdserver: role is not granted to the user");
    refused("a role it has not", auth.user_revoke_role(revoke).await, why)?;
    permissions(auth).await?;
    auth.role_delete(pb::AuthRoleDeleteRequest { role: "plain".into() }).await?;
    let get = pb::AuthUserGetRequest { name: "root".into() };
    same("deleted for all", auth.user_get(get).await?.into_inner().roles, Vec::<String>::new())
}

async fn permissions(auth: &mut AuthClient<Channel>) -> Checked {
    for (kind, key) in [(Type::Write, "b"), (Type::Read, "a"), (Type::Readwrite, "b")] {
        let key = Bytes::from(key);
        let perm = Permission { perm_type: kind.into(), key, range_end: "z".into() };
        let grant = pb::AuthRoleGrantPermissionRequest { name: "plain".into(), perm: Some(perm) };
        auth.role_grant_permission(grant).await?;
    }
    let get = pb::AuthRoleGetRequest { role: "plain".into() };
    let found = auth.role_get(get).await?.into_inner().perm;
    let found: Vec<_> = found.iter().map(|it| (it.perm_type(), it.key.clone())).collect();
    same("in order", found, vec![(Type::Read, "a".into()), (Type::Readwrite, "b".into())])?;
    let revoke = |key: &'static str| pb::AuthRoleRevokePermissionRequest {
        role: "plain".into(),
        key: key.into(),
        range_end: "z".into(),
    };
    auth.role_revoke_permission(revoke("a")).await?;
    let why = (Code::FailedPrecondition, "etcdserver: permission is not granted to the role");
    refused("once more", auth.role_revoke_permission(revoke("a")).await, why)
}

pub(super) async fn enforced(at: Target) -> Checked {
    let mut auth = at.auth();
    let done = enforce(&at, &mut auth).await;
    clear(&mut auth).await?;
    done
}

const DENIED: (Code, &str) = (Code::PermissionDenied, "etcdserver: permission denied");

async fn enforce(at: &Target, auth: &mut AuthClient<Channel>) -> Checked {
    user(auth, "root", "root").await?;
    user(auth, "ann", "mine").await?;
    let (key, range_end) = (at.key("mine/"), at.key("mine0"));
    let perm = Permission { perm_type: Type::Readwrite.into(), key, range_end };
    let grant = pb::AuthRoleGrantPermissionRequest { name: "mine".into(), perm: Some(perm) };
    auth.role_grant_permission(grant).await?;
    auth.auth_enable(pb::AuthEnableRequest {}).await?;
    let nobody = at.kv().range(at.all()).await;
    refused("nobody", nobody, (Code::InvalidArgument, "etcdserver: user name is empty"))?;
    let unknown = at.kv().range(by("unknown", at.all())).await;
    refused("no token", unknown, (Code::Unauthenticated, "etcdserver: invalid auth token"))?;
    let wrong = pb::AuthenticateRequest { name: "ann".into(), password: "wrong".into() };
    let why = "etcdserver: authentication failed, invalid user ID or password";
    refused("a wrong password", auth.authenticate(wrong).await, (Code::InvalidArgument, why))?;
    let (root, ann) = (token(auth, "root").await?, token(auth, "ann").await?);
    at.kv().put(by(&root, put_request(at.key("other"), "1"))).await?;
    keys(at, &ann).await?;
    streams_and_leases(at, (&root, &ann)).await?;
    let list = auth.user_list(by(&ann, pb::AuthUserListRequest {})).await;
    refused("the users", list, DENIED)?;
    let own = pb::AuthUserGetRequest { name: "ann".into() };
    same("itself", auth.user_get(by(&ann, own)).await?.into_inner().roles.len(), 1)?;
    let delete = pb::AuthUserDeleteRequest { name: "root".into() };
    let why = (Code::InvalidArgument, "etcdserver: invalid auth management");
    refused("root goes", auth.user_delete(by(&root, delete)).await, why)?;
    let revoke = pb::AuthUserRevokeRoleRequest { name: "ann".into(), role: "mine".into() };
    auth.user_revoke_role(by(&root, revoke)).await?;
    let put = at.kv().put(by(&ann, put_request(at.key("mine/a"), "3"))).await;
    refused("at once", put, DENIED)
}

async fn keys(at: &Target, ann: &str) -> Checked {
    at.kv().put(by(ann, put_request(at.key("mine/a"), "1"))).await?;
    let put = at.kv().put(by(ann, put_request(at.key("other"), "2"))).await;
    refused("another's key", put, DENIED)?;
    refused("all keys", at.kv().range(by(ann, at.all())).await, DENIED)?;
    let mine =
        pb::RangeRequest { key: at.key("mine/"), range_end: at.key("mine0"), ..Default::default() };
    same("its own", at.kv().range(by(ann, mine)).await?.into_inner().count, 1)?;
    let delete = pb::DeleteRangeRequest { key: at.key("other"), ..Default::default() };
    refused("deleting", at.kv().delete_range(by(ann, delete)).await, DENIED)?;
    let put = Op::RequestPut(put_request(at.key("other"), "2"));
    let failure = vec![pb::RequestOp { request: Some(put) }];
    let txn = pb::TxnRequest { failure, ..Default::default() };
    refused("a branch not taken", at.kv().txn(by(ann, txn)).await, DENIED)?;
    let compare = pb::Compare { key: at.key("other"), ..Default::default() };
    let txn = pb::TxnRequest { compare: vec![compare], ..Default::default() };
    refused("a compare", at.kv().txn(by(ann, txn)).await, DENIED)
}

async fn streams_and_leases(at: &Target, (root, ann): (&str, &str)) -> Checked {
    let watch = async |key: Bytes| {
        let create = pb::WatchCreateRequest { key, ..Default::default() };
        let union = pb::watch_request::RequestUnion::CreateRequest(create);
        let request = pb::WatchRequest { request_union: Some(union) };
        let requests = tokio_stream::once(request);
        let mut answers = at.watch().watch(by(ann, requests)).await?.into_inner();
        answers.message().await?.ok_or(Failure::Missing("an answer to a watch"))
    };
    let other = watch(at.key("other")).await?;
    same("watching another's", (other.canceled, other.watch_id), (true, -1))?;
    holds("why", other.cancel_reason.contains("permission denied"))?;
    same("watching its own", watch(at.key("mine/a")).await?.canceled, false)?;
    let grant = pb::LeaseGrantRequest { ttl: 60, id: 0 };
    let lease = at.lease().lease_grant(by(root, grant)).await?.into_inner().id;
    let put = pb::PutRequest { lease, ..put_request(at.key("other"), "2") };
    at.kv().put(by(root, put)).await?;
    let revoke = pb::LeaseRevokeRequest { id: lease };
    refused("a lease of others", at.lease().lease_revoke(by(ann, revoke)).await, DENIED)?;
    let put = pb::PutRequest { lease, ..put_request(at.key("mine/a"), "2") };
    refused("hanging on it", at.kv().put(by(ann, put)).await, DENIED)?;
    let hash = at.maintenance().hash_kv(by(ann, pb::HashKvRequest::default())).await;
    // etcd has no code of its own for this refusal.
    let why = hash.err().map(|status| status.message().to_owned()).unwrap_or_default();
    holds("maintenance", why.ends_with(": permission denied"))
}

//! Users of the store: made, given their permissions, and asked for.

use tonic::{Response, Status};

use super::endpoints::{Idempotent, Known};
use super::{Client, Login, write_error};
use crate::contract::{Keys, WriteError};
use crate::proto::authpb::{Permission, permission::Type};
use crate::proto::etcdserverpb as pb;
use crate::proto::etcdserverpb::auth_client::AuthClient;

/// What servers say when something is already as it should be.
const ALREADY: [&str; 2] =
    ["etcdserver: user name already exists", "etcdserver: role name already exists"];
/// The user and the role that may do everything.
const ROOT: &str = "root";

/// What a role may do with some keys.
#[derive(Clone, Debug)]
pub enum Grant {
    /// Only read them.
    Read(Keys),
    /// Read and write them.
    ReadWrite(Keys),
}

impl Client {
    /// Makes a user, or gives it this password; it has the role of its name with these permissions.
    pub async fn ensure_user(&self, login: &Login, grants: &[Grant]) -> Result<(), WriteError> {
        let name = &login.user;
        self.auth(async |mut auth| {
            let (name, password) = (name.clone(), login.password.clone());
            let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
            already(auth.user_add(add).await)
        })
        .await?;
        self.auth(async |mut auth| {
            let (name, password) = (name.clone(), login.password.clone());
            let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
            auth.user_change_password(change).await.map(|_| Response::new(()))
        })
        .await?;
        self.auth(async |mut auth| {
            already(auth.role_add(pb::AuthRoleAddRequest { name: name.clone() }).await)
        })
        .await?;
        for grant in grants {
            self.auth(async |mut auth| {
                let (name, perm) = (name.clone(), Some(permission(grant)));
                let grant = pb::AuthRoleGrantPermissionRequest { name, perm };
                auth.role_grant_permission(grant).await.map(|_| Response::new(()))
            })
            .await?;
        }
        self.auth(async |mut auth| {
            let (user, role) = (name.clone(), name.clone());
            let grant = pb::AuthUserGrantRoleRequest { user, role };
            auth.user_grant_role(grant).await.map(|_| Response::new(()))
        })
        .await
    }

    /// Makes the user who may do everything, and asks everybody who they are from now on.
    pub async fn require_users(&self, password: &str) -> Result<(), WriteError> {
        let root = Login { user: ROOT.to_owned(), password: password.to_owned() };
        self.ensure_user(&root, &[]).await?;
        self.auth(async |mut auth| {
            auth.auth_enable(pb::AuthEnableRequest {}).await.map(|_| Response::new(()))
        })
        .await
    }

    /// Makes a call that may be made twice.
    async fn auth(
        &self,
        call: impl AsyncFn(AuthClient<Known>) -> Result<Response<()>, Status>,
    ) -> Result<(), WriteError> {
        let answer = self.ring.call(Idempotent::Yes, async |server| call(server.auth()).await);
        answer.await.map_err(|failure| write_error("change of the store's users".into(), failure))
    }
}

fn already<T>(answer: Result<Response<T>, Status>) -> Result<Response<()>, Status> {
    match answer {
        Err(status) if !ALREADY.contains(&status.message()) => Err(status),
        _ => Ok(Response::new(())),
    }
}

fn permission(grant: &Grant) -> Permission {
    let (kind, keys) = match grant {
        Grant::Read(keys) => (Type::Read, keys),
        Grant::ReadWrite(keys) => (Type::Readwrite, keys),
    };
    let (key, range_end) = keys.to_wire();
    Permission { perm_type: kind.into(), key, range_end }
}

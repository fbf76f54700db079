//! Users, roles and tokens.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::{authpb::Permission, etcdserverpb as pb, etcdserverpb::auth_server};

use super::{
    super::{
        auth::{Auth, Caller, password},
        settings::Setting,
        status::Refusal,
    },
    SMALL, Service,
};

/// Answers that have nothing in them but the header.
macro_rules! done {
    ($service:ident, $answer:ident) => {
        Ok(Response::new(pb::$answer {
            header: Some($service.shared.header($service.shared.published())),
        }))
    };
}

#[async_trait]
impl auth_server::Auth for Service {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        self.switch_auth(&request, true).await?;
        done!(self, AuthEnableResponse)
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        self.switch_auth(&request, false).await?;
        self.tokens.revoke(None);
        done!(self, AuthDisableResponse)
    }

    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let settings = self.shared.settings();
        settings.auth.permit_root(&self.caller(&request)?)?;
        Ok(Response::new(pb::AuthStatusResponse {
            header: Some(self.shared.header(self.shared.published())),
            enabled: settings.auth.enabled,
            auth_revision: settings.auth.revision,
        }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let settings = self.shared.settings();
        if !settings.auth.enabled {
            return Err(Refusal::AuthNotEnabled.into());
        }
        let user = settings.auth.user(&name).map_err(|_| Refusal::AuthFailed)?;
        let hash = user.hash.clone();
        let checked = hash.clone();
        if !self.on_password(move || password::fits(&password, &checked)).await? {
            return Err(Refusal::AuthFailed.into());
        }
        let token = self.tokens.give(&name, hash.clone(), Instant::now());
        let token = token.map_err(|_| no_randomness())?;
        // The password may have been changed while it was checked.
        if self.shared.settings().auth.user(&name).map(|user| &user.hash) != Ok(&hash) {
            self.tokens.revoke(Some(&name));
            return Err(Refusal::AuthFailed.into());
        }
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(pb::AuthenticateResponse { header, token }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let caller = self.root(&request)?;
        let pb::AuthUserAddRequest { name, password, options, .. } = request.into_inner();
        let no_password = options.is_some_and(|options| options.no_password);
        let hash = if no_password { Bytes::new() } else { self.hash(password).await? };
        self.change(caller, move |auth| Ok(vec![auth.user_add(&name, hash)?])).await?;
        done!(self, AuthUserAddResponse)
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let caller = self.caller(&request)?;
        let settings = self.shared.settings();
        let name = request.into_inner().name;
        settings.auth.permit_user(&caller, &name)?;
        let roles = settings.auth.user(&name)?.roles.iter().cloned().collect();
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        self.root(&request)?;
        let users = self.shared.settings().auth.users();
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let caller = self.root(&request)?;
        let name = request.into_inner().name;
        let user = name.clone();
        self.change(caller, move |auth| Ok(vec![auth.user_delete(&user)?])).await?;
        self.tokens.revoke(Some(&name));
        done!(self, AuthUserDeleteResponse)
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        let caller = self.root(&request)?;
        let pb::AuthUserChangePasswordRequest { name, password, .. } = request.into_inner();
        let (user, hash) = (name.clone(), self.hash(password).await?);
        self.change(caller, move |auth| Ok(vec![auth.change_password(&user, hash)?])).await?;
        self.tokens.revoke(Some(&name));
        done!(self, AuthUserChangePasswordResponse)
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let caller = self.root(&request)?;
        let pb::AuthUserGrantRoleRequest { user, role } = request.into_inner();
        self.change(caller, move |auth| Ok(vec![auth.grant_role(&user, &role)?])).await?;
        done!(self, AuthUserGrantRoleResponse)
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let caller = self.root(&request)?;
        let pb::AuthUserRevokeRoleRequest { name, role } = request.into_inner();
        self.change(caller, move |auth| Ok(vec![auth.revoke_role(&name, &role)?])).await?;
        done!(self, AuthUserRevokeRoleResponse)
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let caller = self.root(&request)?;
        let name = request.into_inner().name;
        self.change(caller, move |auth| Ok(vec![auth.role_add(&name)?])).await?;
        done!(self, AuthRoleAddResponse)
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let caller = self.caller(&request)?;
        let settings = self.shared.settings();
        let name = request.into_inner().role;
        settings.auth.permit_role(&caller, &name)?;
        let permission = |((key, range_end), kind): (&(Bytes, Bytes), &i32)| Permission {
            perm_type: *kind,
            key: key.clone(),
            range_end: range_end.clone(),
        };
        let perm = settings.auth.role(&name)?.iter().map(permission).collect();
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        self.root(&request)?;
        let roles = self.shared.settings().auth.roles();
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let caller = self.root(&request)?;
        let name = request.into_inner().role;
        self.change(caller, move |auth| auth.role_delete(&name)).await?;
        done!(self, AuthRoleDeleteResponse)
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let caller = self.root(&request)?;
        let pb::AuthRoleGrantPermissionRequest { name, perm } = request.into_inner();
        let grant = move |auth: &Auth| Ok(vec![auth.grant_permission(&name, perm.as_ref())?]);
        self.change(caller, grant).await?;
        done!(self, AuthRoleGrantPermissionResponse)
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let caller = self.root(&request)?;
        let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = request.into_inner();
        let revoke = move |auth: &Auth| Ok(vec![auth.revoke_permission(&role, &(key, range_end))?]);
        self.change(caller, revoke).await?;
        done!(self, AuthRoleRevokePermissionResponse)
    }
}

impl Service {
    /// The caller, who must be allowed everything.
    fn root<T>(&self, request: &Request<T>) -> Result<Caller, Refusal> {
        let caller = self.caller(request)?;
        self.shared.settings().auth.permit_root(&caller)?;
        Ok(caller)
    }

    /// Decides on a change of users and roles and makes it, durably.
    async fn change(
        &self,
        caller: Caller,
        decide: impl FnOnce(&Auth) -> Result<Vec<Setting>, Refusal> + Send + 'static,
    ) -> Result<(), Refusal> {
        let call = self.writer.call(SMALL, move |machine, _, _| {
            machine.auth().permit_root(&caller)?;
            let changes = decide(machine.auth())?;
            machine.set_auth(changes);
            Ok(())
        });
        call.await
    }

    async fn switch_auth<T>(&self, request: &Request<T>, enabled: bool) -> Result<(), Refusal> {
        let caller = self.root(request)?;
        let decide = move |auth: &Auth| {
            if enabled {
                auth.check_enable()?;
            }
            Ok(vec![Setting::Auth { enabled, revision: auth.revision }])
        };
        self.change(caller, decide).await
    }

    async fn hash(&self, password: String) -> Result<Bytes, Status> {
        let hashed = self.on_password(move || password::hash(&password)).await?;
        hashed.map_err(|_| no_randomness())
    }

    /// Runs what takes a processor for a while, only few at a time.
    async fn on_password<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let Ok(_place) = self.passwords_waiting.try_acquire() else {
            return Err(Refusal::TooManyRequests);
        };
        let room = Arc::clone(&self.passwords).acquire_owned().await;
        let room = room.map_err(|_| Refusal::Stopped)?;
        // The work goes on when its caller has gone, so it holds the room itself.
        let holding = move || {
            let done = work();
            drop(room);
            done
        };
        tokio::task::spawn_blocking(holding).await.map_err(|_| Refusal::Stopped)
    }
}

fn no_randomness() -> Status {
    Status::unavailable("etcdserver: the system has no random numbers; try again")
}

//! Who this client is to the servers: a name, a password, and the token it got for them.

use std::sync::{Arc, PoisonError, RwLock};

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use super::options::Login;

/// The metadata that servers look for the token in.
const TOKEN: &str = "token";

/// Shows the token with every call; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Session {
    login: Option<Arc<Login>>,
    token: Arc<RwLock<Option<MetadataValue<Ascii>>>>,
}

impl Session {
    pub(super) fn new(login: Option<Login>) -> Session {
        Session { login: login.map(Arc::new), token: Arc::default() }
    }

    /// What to show for a token, if there is none yet and one can be had.
    pub(super) fn wanted(&self) -> Option<&Login> {
        let login = self.login.as_deref()?;
        self.token.read().unwrap_or_else(PoisonError::into_inner).is_none().then_some(login)
    }

    /// Remembers the token of this client.
    pub(super) fn set(&self, token: &str) {
        let token = token.parse().ok();
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Forgets a token that a server does not know, which is so after each start of it. Whether
    /// another can be had.
    pub(super) fn forget(&self) -> bool {
        *self.token.write().unwrap_or_else(PoisonError::into_inner) = None;
        self.login.is_some()
    }
}

impl Interceptor for Session {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        let token = self.token.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(token) = token {
            request.metadata_mut().insert(TOKEN, token);
        }
        Ok(request)
    }
}

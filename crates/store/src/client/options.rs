//! How to reach the servers.

use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::contract::ReadError;

/// How a client behaves; [`Options::default`] suits a cluster in one place.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long a call may take, with all its repetitions.
    pub deadline: Duration,
    /// How to speak TLS; needed for `https` endpoints.
    pub tls: Option<Tls>,
    /// Who to be, where the servers ask for that.
    pub login: Option<Login>,
    /// The largest answer taken from a server, in bytes.
    pub largest_answer: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            deadline: Duration::from_secs(5),
            tls: None,
            login: None,
            largest_answer: 128 << 20,
        }
    }
}

/// A user of the store and its password.
#[derive(Clone)]
pub struct Login {
    /// The name of the user.
    pub user: String,
    /// The password.
    pub password: String,
}

impl std::fmt::Debug for Login {
    /// Shows no password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// Certificates, each as PEM.
#[derive(Clone)]
pub struct Tls {
    /// The authorities that may have signed the server's certificate.
    pub authorities: Vec<u8>,
    /// Our own certificate and its key, if the server wants to know who we are.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the server's certificate, if it is not the host of the endpoint.
    pub server_name: Option<String>,
}

impl std::fmt::Debug for Tls {
    /// Shows no key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No server was named.
    #[error("no store endpoint is given; give at least one, e.g. http://127.0.0.1:2379")]
    NoEndpoint,
    /// That is not an address.
    #[error("\"{endpoint}\" is not a store endpoint; write it like http://127.0.0.1:2379")]
    BadEndpoint {
        /// What was given.
        endpoint: String,
    },
    /// Endpoint and certificates do not go together.
    #[error("store endpoint {endpoint}: {reason}")]
    Tls {
        /// Which.
        endpoint: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// None of the servers answered.
    #[error("no store answers at {endpoints}")]
    Unreachable {
        /// All that were tried.
        endpoints: String,
        /// What went wrong with the last one.
        source: ReadError,
    },
}

/// Checks one endpoint and sets it up.
pub(super) fn endpoint(given: &str, options: &Options) -> Result<Endpoint, ConnectError> {
    let bad = || ConnectError::BadEndpoint { endpoint: given.to_owned() };
    // etcdctl takes bare addresses; so do we.
    let url = if given.contains("://") { given.to_owned() } else { format!("http://{given}") };
    let endpoint = Endpoint::from_shared(url).map_err(|_| bad())?;
    let uri = endpoint.uri();
    if uri.host().is_none_or(str::is_empty) || uri.port_u16().is_none() {
        return Err(bad());
    }
    let secure = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        _ => return Err(bad()),
    };
    let endpoint = endpoint
        .connect_timeout(options.deadline / 2)
        .tcp_nodelay(true)
        // etcd ends connections that ask more often than every 5 s.
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let tls = |reason: String| ConnectError::Tls { endpoint: given.to_owned(), reason };
    match (secure, &options.tls) {
        (false, None) => Ok(endpoint),
        (true, Some(wanted)) => endpoint
            .tls_config(tls_config(wanted))
            .map_err(|error| tls(format!("its certificates cannot be used: {error}"))),
        (true, None) => Err(tls("https needs the certificate of its authority".into())),
        (false, Some(_)) => Err(tls("certificates are given, so write it with https://".into())),
    }
}

fn tls_config(tls: &Tls) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&tls.authorities));
    if let Some((certificate, key)) = &tls.identity {
        config = config.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_checked_before_use() {
        let with = |text: &str| endpoint(text, &Options::default());
        assert!(with("http://127.0.0.1:2379").is_ok());
        assert!(with("[::1]:2379").is_ok());
        for wrong in ["", "http://", "127.0.0.1", "ftp://127.0.0.1:21", "http://a b:1"] {
            let error = with(wrong).unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:2379"), "{wrong}: {error}");
        }
        let error = with("https://127.0.0.1:2379").unwrap_err().to_string();
        assert!(error.contains("authority"), "{error}");
    }
}

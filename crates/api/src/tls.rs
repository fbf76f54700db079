//! TLS for both ends: certificates and keys from files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file does not hold what it should.
    #[error("cannot read {what} in {path}; it must be PEM")]
    File {
        /// What should be there.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// It is PEM, but holds nothing that was looked for.
    #[error("there is no certificate in {path}")]
    Empty {
        /// Which file.
        path: PathBuf,
    },
    /// A name that no certificate can have.
    #[error("{name:?} cannot be the name of a server; give a DNS name or an address")]
    ServerName {
        /// The name.
        name: String,
    },
    /// They do not fit together.
    #[error("the certificate in {path} cannot be used; does the key belong to it?")]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
}

/// What a server shows to its callers.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

/// Whom a client believes.
#[derive(Clone, Debug)]
pub struct TlsClient {
    config: ClientConfig,
    server_name: Option<ServerName<'static>>,
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|source| TlsError::File {
        what: "certificates",
        path: path.to_owned(),
        source,
    })?;
    if found.is_empty() {
        return Err(TlsError::Empty { path: path.to_owned() });
    }
    Ok(found)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl TlsServer {
    /// The chain of certificates, the server's first, and its key.
    pub fn read(chain: &Path, key: &Path) -> Result<TlsServer, TlsError> {
        let unusable = |source| TlsError::Unusable { path: chain.to_owned(), source };
        let private = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::File {
            what: "a private key",
            path: key.to_owned(),
            source,
        })?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(certificates(chain)?, private)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsServer(Arc::new(config)))
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0)
    }
}

impl TlsClient {
    /// The authorities whose servers are believed, and no others.
    pub fn read(authorities: &Path) -> Result<TlsClient, TlsError> {
        let unusable = |source| TlsError::Unusable { path: authorities.to_owned(), source };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authorities)? {
            roots.add(certificate).map_err(unusable)?;
        }
        TlsClient::trusting(roots).map_err(unusable)
    }

    /// Nobody is believed: for plain connections only.
    pub(crate) fn nobody() -> Result<TlsClient, rustls::Error> {
        TlsClient::trusting(RootCertStore::empty())
    }

    fn trusting(roots: RootCertStore) -> Result<TlsClient, rustls::Error> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsClient { config, server_name: None })
    }

    /// The same, expecting every server to be certified under this name and not under the address
    /// it is called at: for servers that share a certificate and whose addresses change.
    pub fn expecting(self, name: &str) -> Result<TlsClient, TlsError> {
        let wrong = |_| TlsError::ServerName { name: name.to_owned() };
        let server_name = ServerName::try_from(name.to_owned()).map_err(wrong)?;
        Ok(TlsClient { server_name: Some(server_name), ..self })
    }

    pub(crate) fn into_parts(self) -> (ClientConfig, Option<ServerName<'static>>) {
        (self.config, self.server_name)
    }
}

//! Connections of clients: plain, or TLS. HTTP/1.1 and HTTP/2 share the port, so TLS offers both.

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::config::Tls;

/// How long a client may take to agree on keys.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Most clients that agree on keys at one time.
const HANDSHAKES: usize = 256;
/// Connections that wait to be served.
const ACCEPTED: usize = 64;
/// Pause after a connection that could not be accepted, for lack of descriptors for example.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection.
pub(super) enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What makes TLS of a connection.
pub(super) fn acceptor(tls: &Tls) -> Result<TlsAcceptor, Box<dyn Error + Send + Sync>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let chain = certificates(&tls.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(tls.key.as_bytes())?;
    let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let config = match &tls.client_ca {
        None => config.with_no_client_auth(),
        Some(ca) => {
            let mut roots = RootCertStore::empty();
            for authority in certificates(ca)? {
                roots.add(authority)?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
            config.with_client_cert_verifier(verifier)
        }
    };
    let mut config = config.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Box<dyn Error + Send + Sync>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>()?;
    if found.is_empty() { Err("there is no certificate in it".into()) } else { Ok(found) }
}

/// All connections until `stop`, each once it can be served.
pub(super) fn incoming(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<Connection>> {
    let (ready, accepted) = mpsc::channel(ACCEPTED);
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    tokio::spawn(async move {
        loop {
            let connection = tokio::select! {
                () = stop.cancelled() => return,
                () = ready.closed() => return,
                connection = listener.accept() => connection,
            };
            let Ok((stream, _)) = connection else {
                sleep(PAUSE).await;
                continue;
            };
            // A connection that is gone already shows at the first read.
            let _ = stream.set_nodelay(true);
            let Some(tls) = tls.clone() else {
                if ready.send(Ok(Connection::Plain(stream))).await.is_err() {
                    return;
                }
                continue;
            };
            let Ok(room) = Arc::clone(&handshakes).acquire_owned().await else { return };
            let ready = ready.clone();
            tokio::spawn(async move {
                if let Ok(Ok(stream)) = timeout(HANDSHAKE, tls.accept(stream)).await {
                    // The server may have stopped.
                    let _ = ready.send(Ok(Connection::Tls(Box::new(stream)))).await;
                }
                drop(room);
            });
        }
    });
    ReceiverStream::new(accepted)
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Self::Plain(stream) => stream.connect_info(),
            Self::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

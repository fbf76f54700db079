//! TLS, with and without certificates of clients.

use tempfile::tempdir;
use tonic::{
    Status,
    transport::{Certificate, Channel, ClientTlsConfig, Identity},
};

use crate::{
    proto::etcdserverpb::{RangeRequest, kv_client::KvClient},
    server::{Config, Server, Tls},
};

const CA: &str = include_str!("pem/ca.pem");
const SERVER: (&str, &str) = (include_str!("pem/server.pem"), include_str!("pem/server.key"));
const CLIENT: (&str, &str) = (include_str!("pem/client.pem"), include_str!("pem/client.key"));

/// Whether a client that trusts the CA, and shows a certificate or not, can read.
async fn reads(client_ca: Option<&str>, shows: Option<(&str, &str)>) -> bool {
    let dir = tempdir().unwrap();
    let tls = Tls {
        certificate: SERVER.0.to_owned(),
        key: SERVER.1.to_owned(),
        client_ca: client_ca.map(str::to_owned),
    };
    let config = Config::new(dir.path().to_owned(), "127.0.0.1:0".parse().unwrap());
    let server = Server::open(Config { tls: Some(tls), ..config }).unwrap();
    let address = format!("https://localhost:{}", server.local_addr().port());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(server.run(async { drop(stopped.await) }));
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(CA));
    if let Some((certificate, key)) = shows {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    let endpoint = Channel::from_shared(address).unwrap().tls_config(tls).unwrap();
    let answer = match endpoint.connect().await {
        Ok(channel) => {
            let request = RangeRequest { key: "k".into(), ..RangeRequest::default() };
            KvClient::new(channel).range(request).await
        }
        Err(error) => Err(Status::from_error(error.into())),
    };
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    answer.is_ok()
}

#[tokio::test]
async fn a_client_that_trusts_the_server_reads() {
    assert!(reads(None, None).await);
}

#[tokio::test]
async fn a_client_must_show_a_certificate_when_told_to() {
    assert!(reads(Some(CA), Some(CLIENT)).await);
    assert!(!reads(Some(CA), None).await);
}

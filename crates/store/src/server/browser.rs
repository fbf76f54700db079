//! Requests of web pages, which must not act through the browser of somebody who can reach the
//! store: a browser sends what a page from anywhere asks it to, and the gateway needs no more than
//! an address.
//!
//! A page names its origin, which then differs from the server that is asked. A page whose name was
//! made to point at the server (DNS rebinding) names the same: where anybody may ask, in the clear,
//! a browser must therefore name an address or `localhost`. Over TLS no such page gets an answer:
//! the name is not that of the certificate.

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderName, Uri, header, uri::Authority};
use tonic::Status;

use super::{gateway, http::Told};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Answers only what no page from elsewhere asks.
pub(super) async fn guard(State(told): State<Told>, request: Request, next: Next) -> Response {
    let anybody = !told.is_tls && !told.state.settings().auth.enabled;
    match refusal(request.uri(), request.headers(), anybody) {
        Some(why) => gateway::refusal(&Status::permission_denied(why)),
        None => next.run(request).await,
    }
}

/// Why a request is refused.
fn refusal(uri: &Uri, headers: &HeaderMap, anybody: bool) -> Option<&'static str> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let agent = text(&header::USER_AGENT).unwrap_or_default();
    // Every browser calls itself so, and no client of etcd does.
    let is_browser = headers.contains_key(&FETCH_SITE) || agent.starts_with("Mozilla/");
    let has_origin = headers.contains_key(header::ORIGIN);
    if !has_origin && !is_browser {
        return None;
    }
    let host = uri.authority().map(Authority::as_str).or_else(|| text(&header::HOST));
    let host = host.unwrap_or_default();
    let origin = text(&header::ORIGIN).and_then(|origin| origin.split_once("://"));
    if has_origin && origin.is_none_or(|(_, of)| of != host) {
        return Some("the request comes from a web page of another server");
    }
    let name = host.parse::<Authority>().ok();
    let name = name.as_ref().map(Authority::host).unwrap_or_default();
    let is_address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    (anybody && !is_address && name != "localhost").then_some(
        "a browser may ask this store only by its address or as localhost, since it requires \
         neither users nor TLS; see `holdfast store secure`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(pairs: &[(&'static str, &'static str)], anybody: bool) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        refusal(&Uri::from_static("/v3/kv/put"), &headers, anybody).is_none()
    }

    #[test]
    fn no_page_from_elsewhere_may_ask() {
        let here = ("host", "127.0.0.1:2379");
        let rebound = ("host", "evil.example:2379");
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0");
        assert!(admits(&[here], true), "no browser");
        assert!(admits(&[rebound, ("user-agent", "curl/8.14.1")], true), "no browser");
        assert!(admits(&[here, browser], true));
        assert!(admits(&[here, ("origin", "http://127.0.0.1:2379")], true));
        for anybody in [true, false] {
            assert!(!admits(&[here, ("origin", "http://evil.example")], anybody));
            assert!(!admits(&[here, ("origin", "null")], anybody));
        }
        let same = ("origin", "http://evil.example:2379");
        for page in [same, browser, ("sec-fetch-site", "same-origin")] {
            assert!(!admits(&[rebound, page], true), "{page:?}");
            assert!(admits(&[rebound, page], false), "{page:?}");
        }
        assert!(admits(&[("host", "localhost:2379"), browser], true));
        assert!(admits(&[("host", "[::1]:2379"), browser], true));
        // HTTP/2 names the server in the URI.
        let uri = Uri::from_static("https://10.0.0.1:2379/v3/kv/put");
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, "https://10.0.0.1:2379".parse().unwrap());
        assert_eq!(refusal(&uri, &headers, true), None);
    }
}

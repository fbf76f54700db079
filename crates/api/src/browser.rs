//! Requests of web pages: only those of the server's own pages are answered.
//!
//! A page from elsewhere must not act through the browser of somebody who can reach the server. It
//! names its origin, which then differs from the host that is asked. A page whose name was made to
//! point at the server (DNS rebinding) names itself as the host: where no token is asked for, a
//! browser must therefore name an address or `localhost`. Of what such a page reads by plain HTTP a
//! browser names no origin at all; it is known by what it calls itself, which no page can change.

use http::uri::Authority;
use http::{HeaderMap, HeaderName, header};
use model::{Problem, ProblemKind};

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses what a page from elsewhere asks.
pub(crate) fn check(headers: &HeaderMap, asks_for_tokens: bool) -> Result<(), Problem> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = headers.contains_key(header::ORIGIN).then(|| text(&header::ORIGIN));
    let agent = text(&header::USER_AGENT).unwrap_or_default();
    // Every browser calls itself so, and no tool does unless it is told to.
    let is_browser = headers.contains_key(&FETCH_SITE) || agent.starts_with("Mozilla/");
    if origin.is_none() && !is_browser {
        return Ok(());
    }
    let refused = |detail: &str| Err(Problem::new(ProblemKind::PermissionDenied, detail));
    let host = text(&header::HOST).unwrap_or_default();
    if let Some(origin) = origin {
        let of = origin.and_then(|origin| origin.split_once("://")).map(|(_, of)| of);
        if of != Some(host) {
            return refused("the request comes from a web page of another server");
        }
    }
    let name = host.parse::<Authority>().ok();
    let name = name.as_ref().map(Authority::host).unwrap_or_default();
    let is_address = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    if !asks_for_tokens && !is_address && name != "localhost" {
        return refused(
            "a browser may ask this server only by its address or as localhost, since it asks for \
             no token; start it with --token-file to allow other names",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_server_itself_may_ask() {
        let admits = |pairs: &[(&'static str, &'static str)], tokens: bool| {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.insert(*name, value.parse().unwrap());
            }
            check(&headers, tokens).is_ok()
        };
        let here = ("host", "127.0.0.1:7440");
        assert!(admits(&[here], false), "no browser");
        assert!(admits(&[here, ("sec-fetch-site", "none")], false));
        assert!(admits(&[here, ("origin", "http://127.0.0.1:7440")], false));
        assert!(!admits(&[here, ("origin", "http://evil.example")], false));
        assert!(!admits(&[here, ("origin", "http://evil.example")], true));
        assert!(!admits(&[here, ("origin", "null")], false));
        // Its name was made to point here.
        let rebound = ("host", "evil.example:7440");
        assert!(!admits(&[rebound, ("origin", "http://evil.example:7440")], false));
        assert!(!admits(&[rebound, ("sec-fetch-site", "same-origin")], false));
        assert!(admits(&[rebound, ("sec-fetch-site", "same-origin")], true));
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0");
        assert!(!admits(&[rebound, browser], false), "it names no origin when it only reads");
        assert!(admits(&[rebound, browser], true));
        assert!(admits(&[here, browser], false));
        assert!(admits(&[("host", "localhost:7440"), browser], false));
        assert!(admits(&[rebound, ("user-agent", "curl/8.14.1")], false), "no browser");
        assert!(admits(&[("host", "[::1]:7440"), ("sec-fetch-site", "none")], false));
        assert!(admits(&[("host", "localhost:7440"), ("sec-fetch-site", "none")], false));
    }
}

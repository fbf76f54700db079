//! The name of a request. Whoever calls gives one, and it stands in the logs of both sides and in
//! the answer: what an engine did for a control plane is found by it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id a caller gave its request, if it can stand in a log; else a new one.
pub(crate) fn of(headers: &HeaderMap) -> String {
    let good = |id: &&str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        (1..=64).contains(&id.len()) && id.bytes().all(allowed)
    };
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(good);
    given.map_or_else(new, str::to_owned)
}

/// An id that no other request of this or another process has: a number of the process that nobody
/// knows beforehand, and a count.
pub(crate) fn new() -> String {
    static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
    static COUNT: AtomicU64 = AtomicU64::new(1);
    format!("{:016x}-{}", *PROCESS, COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Puts it into the headers of a request or of its answer.
pub(crate) fn put(headers: &mut HeaderMap, id: &str) {
    if let Ok(value) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, value);
    }
}

//! JSON over HTTP, as Patroni, APISIX and scripts speak it.

use serde_json::{Value, json};

use super::target::Target;
use super::{Checked, holds, same};

/// Bytes as they stand in JSON.
fn text(bytes: impl AsRef<[u8]>) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.as_ref().chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap_or(0);
            out.push(if digit <= three.len() { char::from(DIGITS[index]) } else { '=' });
        }
    }
    out
}

/// An answer without its header, which differs from server to server.
fn bare((status, mut body): (u16, Value)) -> (u16, Value) {
    if let Some(body) = body.as_object_mut() {
        body.remove("header");
    }
    (status, body)
}

pub(super) async fn puts_and_ranges(at: Target) -> Checked {
    let (key, value) = (text(at.key("a")), text("one"));
    let put = at.post("/v3/kv/put", json!({ "key": key, "value": value })).await?;
    same("put", put.0, 200)?;
    let revision = put.1["header"]["revision"].clone();
    holds("numbers of 64 bits are text", revision.is_string())?;
    holds("the header", put.1["header"]["member_id"].is_string())?;
    let kv = json!({
        "key": key, "value": value, "create_revision": revision, "mod_revision": revision,
        "version": "1",
    });
    let range = json!({ "key": text(at.key("")), "range_end": text(at.end()) });
    let want = (200, json!({ "kvs": [kv], "count": "1" }));
    same("range", bare(at.post("/v3/kv/range", range).await?), want.clone())?;
    let camel = json!({ "key": text(at.key("")), "rangeEnd": text(at.end()), "keysOnly": false });
    same("the other spelling", bare(at.post("/v3/kv/range", camel).await?), want)?;
    let delete = json!({ "key": key, "prev_kv": true });
    let want = (200, json!({ "deleted": "1", "prev_kvs": [kv] }));
    same("delete", bare(at.post("/v3/kv/deleterange", delete).await?), want)?;
    let nothing = at.post("/v3/kv/range", json!({ "key": key, "limit": 3 })).await?;
    same("zero is left out", bare(nothing), (200, json!({})))
}

pub(super) async fn transactions(at: Target) -> Checked {
    let key = text(at.key("a"));
    let create = json!({
        "compare": [{ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" }],
        "success": [{ "request_put": { "key": key, "value": text("one") } }],
        "failure": [{ "requestRange": { "key": key } }],
    });
    let (status, done) = bare(at.post("/v3/kv/txn", create.clone()).await?);
    same("created", (status, done["succeeded"].clone()), (200, json!(true)))?;
    holds("one answer", done["responses"][0]["response_put"]["header"]["revision"].is_string())?;
    let (status, done) = bare(at.post("/v3/kv/txn", create).await?);
    same("found", (status, done.get("succeeded")), (200, None))?;
    let kv = &done["responses"][0]["response_range"]["kvs"][0];
    same("what was there", kv["value"].clone(), json!(text("one")))
}

pub(super) async fn refusals(at: Target) -> Checked {
    let future = json!({ "key": text(at.key("a")), "revision": "99999999" });
    let (status, body) = at.post("/v3/kv/range", future).await?;
    let why = "etcdserver: mvcc: required revision is a future revision";
    same(
        "a future revision",
        (status, &body["error"], &body["code"]),
        (400, &json!(why), &json!(11)),
    )?;
    same("the same as message", &body["message"], &json!(why))?;
    let (status, body) = at.post("/v3/kv/put", json!({ "value": text("x") })).await?;
    same("no key", (status, &body["code"]), (400, &json!(3)))?;
    let lease = json!({ "key": text(at.key("a")), "lease": "12345" });
    let (status, body) = at.post("/v3/kv/put", lease).await?;
    same("no lease", (status, &body["code"]), (404, &json!(5)))?;
    let (status, _) = at.post("/v3/kv/put", json!("text")).await?;
    same("no message", status, 400)?;
    same("no call", at.post("/v3/kv/nothing", json!({})).await?.0, 404)
}

pub(super) async fn watches(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let create = json!({ "create_request": {
        "key": text(at.key("")), "range_end": text(at.end()), "start_revision": first.to_string(),
    }});
    let mut watch = at.lines("/v3/watch", create).await?;
    same("status", watch.status, 200)?;
    let created = watch.line().await?;
    same("created", &created["result"]["created"], &json!(true))?;
    let event = watch.line().await?["result"]["events"][0].clone();
    same("a put has no type", event.get("type"), None)?;
    same("its value", &event["kv"]["value"], &json!(text("1")))?;
    at.delete("a").await?;
    let event = watch.line().await?["result"]["events"][0].clone();
    same("a deletion", &event["type"], &json!("DELETE"))?;
    same("its key", &event["kv"]["key"], &json!(text(at.key("a"))))
}

pub(super) async fn leases(at: Target) -> Checked {
    let (_, granted) = at.post("/v3/lease/grant", json!({ "TTL": "60" })).await?;
    let id = granted["ID"].clone();
    same("granted", (id.is_string(), &granted["TTL"]), (true, &json!("60")))?;
    let put = json!({ "key": text(at.key("a")), "lease": id });
    same("put", at.post("/v3/kv/put", put).await?.0, 200)?;
    let mut kept = at.lines("/v3/lease/keepalive", json!({ "ID": id })).await?;
    same("renewed", &kept.line().await?["result"]["TTL"], &json!("60"))?;
    let look = json!({ "ID": id, "keys": true });
    let (_, left) = at.post("/v3/lease/timetolive", look).await?;
    let told = (&left["grantedTTL"], &left["keys"]);
    same("looked at", told, (&json!("60"), &json!([text(at.key("a"))])))?;
    same("revoked", at.post("/v3/lease/revoke", json!({ "ID": id })).await?.0, 200)?;
    same("with its key", at.get("a").await?.is_none(), true)
}

pub(super) async fn members_and_status(at: Target) -> Checked {
    let (_, list) = at.post("/v3/cluster/member/list", json!({})).await?;
    holds("addresses", list["members"][0]["clientURLs"][0].is_string())?;
    let (_, status) = at.post("/v3/maintenance/status", json!({})).await?;
    same("it leads", &status["leader"], &list["members"][0]["ID"])?;
    holds("size", status["dbSize"].is_string() && status["raftTerm"].is_string())?;
    holds("version", status["version"].as_str().is_some_and(|it| it.starts_with("3.")))
}

pub(super) async fn version_health_and_metrics(at: Target) -> Checked {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    let (status, version) = at.fetch("/version").await?;
    let version = json(&version);
    same("version", status, 200)?;
    for part in ["etcdserver", "etcdcluster"] {
        holds(part, version[part].as_str().is_some_and(|it| it.starts_with("3.")))?;
    }
    let (status, health) = at.fetch("/health").await?;
    same("health", (status, &json(&health)["health"]), (200, &json!("true")))?;
    let (status, metrics) = at.fetch("/metrics").await?;
    same("metrics", status, 200)?;
    for metric in [
        "etcd_server_has_leader 1",
        "etcd_mvcc_db_total_size_in_bytes ",
        "etcd_mvcc_db_total_size_in_use_in_bytes ",
        "etcd_server_quota_backend_bytes ",
        "etcd_debugging_mvcc_keys_total ",
        "etcd_disk_wal_fsync_duration_seconds_bucket{le=\"0.001\"} ",
        "etcd_disk_wal_fsync_duration_seconds_count ",
        "process_resident_memory_bytes ",
    ] {
        holds(metric, metrics.lines().any(|line| line.starts_with(metric)))?;
    }
    same("elsewhere is nothing", at.fetch("/nothing").await?.0, 404)
}

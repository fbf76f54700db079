//! `holdfast dump` and `holdfast backup`: all that is known, in a file.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use api::rest::{
    Control, EventQuery, FailoverQuery, GroupQuery, HostQuery, NodeQuery, PoolQuery, RebuildQuery,
    Remote, ReplicaQuery, SnapshotQuery, TargetQuery, VolumeQuery,
};
use clap::Args;
use model::Problem;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::client_args::{ClientArgs, all};

/// Options of `dump`.
#[derive(Args)]
pub(crate) struct DumpArgs {
    #[command(flatten)]
    ask: ClientArgs,
    /// The file to write; `-`: standard output
    #[arg(long, value_name = "FILE", default_value = "holdfast-dump.json")]
    to: PathBuf,
}

/// Options of `backup`.
#[derive(Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    ask: ClientArgs,
    /// The file to write; `holdfast store import` reads it
    file: PathBuf,
}

/// Words in names of fields whose values nobody else may see; whoever knows the URL of a watch can
/// often post there.
const SECRET: &[&str] = &["token", "secret", "password", "psk", "passphrase", "privatekey", "url"];

/// What secrets look like wherever they stand: a secret of NVMe in-band authentication, a key for
/// TLS over NVMe, what is sent with a request.
const LOOKS: &[&str] = &["DHHC-1:", "NVMeTLSkey-1:", "Bearer ", "Basic "];

/// The last words of the first line of a private key in PEM.
const KEY: &str = "PRIVATE KEY-----";

/// What stands in their places.
const REMOVED: &str = "(removed)";

impl DumpArgs {
    pub(crate) async fn run(self, out: &mut (dyn Write + Send)) -> Result<()> {
        self.ask.once()?;
        let remote = self.ask.remote()?;
        let mut everything = gather(&remote).await;
        redact(&mut everything);
        let text = serde_json::to_string_pretty(&everything)? + "\n";
        if self.to == Path::new("-") {
            return Ok(out.write_all(text.as_bytes())?);
        }
        save(&self.to, text.as_bytes())?;
        writeln!(out, "{} written; it holds no secrets", self.to.display())?;
        let lacking = lacking(&everything);
        if let [first, ..] = &lacking[..] {
            let count = lacking.len();
            writeln!(out, "{count} parts could not be had, {first} for one; it says why")?;
        }
        Ok(())
    }
}

impl Backup {
    pub(crate) async fn run(self, out: &mut (dyn Write + Send)) -> Result<()> {
        self.ask.once()?;
        if self.file.exists() {
            bail!("{} exists; choose another file", self.file.display());
        }
        let content = self.ask.remote()?.backup().await?;
        save(&self.file, &content.0)?;
        let (bytes, file) = (content.0.len(), self.file.display());
        Ok(writeln!(out, "{bytes} bytes in {file}; keep it as safe as the store itself")?)
    }
}

/// Written beside its place and moved there when whole, and only for its owner to read.
fn save(file: &Path, content: &[u8]) -> Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut whole = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))
        .with_context(|| format!("cannot write beside {}", file.display()))?;
    whole.write_all(content)?;
    whole.as_file().sync_all()?;
    whole.persist(file).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(())
}

/// Everything that can be listed. What cannot be had is said in its place: a bundle is wanted most
/// when something does not work.
async fn gather(remote: &Remote) -> Value {
    let mut parts = Map::new();
    let mut put = |name: &str, value: Value| drop(parts.insert(name.to_owned(), value));
    put("tool", json!({ "version": env!("CARGO_PKG_VERSION") }));
    put("health", said(remote.health().await));
    put("status", said(remote.status().await));
    macro_rules! lists {
        ($($name:literal $call:ident $asked:ident;)+) => {$(
            put($name, said(all(|paging| remote.$call($asked::default().at(paging))).await));
        )+};
    }
    lists! {
        "nodes" nodes NodeQuery;
        "hosts" hosts HostQuery;
        "pools" pools PoolQuery;
        "volumes" volumes VolumeQuery;
        "snapshots" snapshots SnapshotQuery;
        "groups" groups GroupQuery;
        "replicas" replicas ReplicaQuery;
        "targets" targets TargetQuery;
        "rebuilds" rebuilds RebuildQuery;
        "failovers" failovers FailoverQuery;
        "events" event_history EventQuery;
    }
    put("quarantine", said(all(|paging| remote.quarantine(paging)).await));
    put("webhooks", said(all(|paging| remote.webhooks(paging)).await));
    put("specs", said(all(|paging| remote.specs(paging)).await));
    let mut devices = Map::new();
    let nodes = all(|paging| remote.nodes(NodeQuery::default().at(paging))).await;
    for node in nodes.unwrap_or_default() {
        let found = all(|paging| remote.devices(node.id().clone(), paging)).await;
        devices.insert(node.id().to_string(), said(found));
    }
    put("devices", Value::Object(devices));
    put("metrics", said(remote.metrics().await.map(|text| text.0)));
    Value::Object(parts)
}

/// The parts of which only a problem is known.
fn lacking(everything: &Value) -> Vec<&str> {
    let parts = everything.as_object().into_iter().flatten();
    let lacking = parts.filter(|(_, part)| part.get("problem").is_some());
    lacking.map(|(name, _)| name.as_str()).collect()
}

fn said<T: Serialize>(answer: Result<T, Problem>) -> Value {
    let value = match answer {
        Ok(value) => serde_json::to_value(value),
        Err(problem) => serde_json::to_value(problem).map(|problem| json!({ "problem": problem })),
    };
    value.unwrap_or(Value::Null)
}

/// Takes away the values of everything that is called like a secret.
fn redact(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = key.to_ascii_lowercase().replace(['-', '_'], "");
                if SECRET.iter().any(|word| key.contains(word)) {
                    *value = json!(REMOVED);
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        // The lines of a key have nothing to be known by: all of it goes.
        Value::String(text) if text.contains(KEY) => REMOVED.clone_into(text),
        // Not the whole of a long text, such as metrics: only the lines that have one.
        Value::String(text) if looks_secret(text) => {
            let line = |line| if looks_secret(line) { REMOVED } else { line };
            *text = text.lines().map(line).collect::<Vec<_>>().join("\n");
        }
        _ => {}
    }
}

fn looks_secret(text: &str) -> bool {
    LOOKS.iter().any(|look| text.contains(look))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_wherever_they_are() {
        let mut value = json!({
            "a": [{ "apiToken": "x", "ok": 1 }], "dhchap-secret": { "deep": "y" }, "key": "name",
            "message": "asked with Bearer hunter2",
            "metrics": "a 1\nb{key=\"DHHC-1:00:hunter2\"} 2\n",
            "pem": "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----",
        });
        redact(&mut value);
        let wanted = json!({
            "a": [{ "apiToken": "(removed)", "ok": 1 }],
            "dhchap-secret": "(removed)",
            "key": "name",
            "message": "(removed)",
            "metrics": "a 1\n(removed)",
            "pem": "(removed)",
        });
        assert_eq!(value, wanted);
    }
}

//! TLS and tokens between the parts and their users: control plane, engine, commands.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use e2e::process::{PATIENCE, Program, holdfast};
use e2e::store::{Kind, StoreServer};
use serde_json::Value;

const VIEWER: &str = "viewer-0123456789abcdef";
const EDITOR: &str = "editor-0123456789abcdef";
const NODE: &str = "node-0123456789abcdef";
const ADMIN: &str = "admin-0123456789abcdef";

/// Files of keys, certificates and tokens.
struct Files {
    dir: tempfile::TempDir,
}

impl Files {
    fn new() -> Result<Files> {
        let files = Files { dir: tempfile::tempdir()? };
        for name in ["ours", "strange"] {
            let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
            let made = rcgen::generate_simple_self_signed(names)?;
            files.write(&format!("{name}.pem"), &made.cert.pem())?;
            files.write(&format!("{name}.key"), &made.signing_key.serialize_pem())?;
        }
        let all = format!(
            "# people\nviewer {VIEWER}\neditor {EDITOR}\nadmin {ADMIN}\n\
             # machines\nnode:node-1 {NODE}\n"
        );
        files.write("tokens", &all)?;
        let others = [("viewer", VIEWER), ("editor", EDITOR), ("admin", ADMIN), ("node", NODE)];
        for (name, token) in others.into_iter().chain([("wrong", "admin-0123456789abcdeX")]) {
            files.write(name, &format!("{token}\n"))?;
        }
        Ok(files)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        Ok(std::fs::write(self.at(name), text)?)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn word(&self, name: &str) -> Result<String> {
        self.at(name).to_str().map(str::to_owned).context("a path in UTF-8")
    }
}

/// A control plane with TLS and tokens, and an engine with both that is registered with it.
struct Secured {
    files: Files,
    control: Program,
    engine: Program,
    rest: String,
    // Last: those above use it.
    _store: StoreServer,
}

impl Secured {
    async fn start() -> Result<Secured> {
        let (files, store) = (Files::new()?, StoreServer::start(Kind::Embedded)?);
        store.client().await?;
        let (cert, key) = (files.word("ours.pem")?, files.word("ours.key")?);
        let (tokens, admin) = (files.word("tokens")?, files.word("admin")?);
        let serving = ["--cert", &cert, "--key", &key, "--token-file", &tokens];
        let mut command = holdfast()?;
        command.args(["--log", "debug", "control", "serve", "--listen", "127.0.0.1:0"]);
        command.args(["--store", &store.endpoint()]).args(serving);
        command.args(["--engine-ca", &cert, "--engine-token-file", &admin]);
        let control = Program::start(&mut command)?;
        let rest = control.wait_for("where it listens", |line| {
            line.split_once("listening on https://").map(|(_, rest)| rest.to_owned())
        })?;
        let mut command = holdfast()?;
        command.args(["--log", "debug", "engine", "run", "--node", "node-1"]);
        command.args(["--listen", "127.0.0.1:0", "--api", "127.0.0.1:0", "--dir"]);
        command.arg(files.at("engine")).args(serving).args(["--store", &store.endpoint()]);
        command.args(["--control", &rest, "--control-ca", &cert]);
        command.args(["--control-token-file", &files.word("node")?]);
        let engine = Program::start(&mut command)?;
        engine.wait_for("that it is registered", |line| {
            line.contains("registered with the control plane").then_some(())
        })?;
        Ok(Secured { files, control, engine, rest, _store: store })
    }

    /// What a command prints for somebody with this token who believes these authorities.
    fn run(&self, (token, ca): (Option<&str>, Option<&str>), words: &[&str]) -> Result<Output> {
        let mut command = holdfast()?;
        command.args(words).args(["--server", &self.rest]);
        // One of them as a flag, the other from the environment: both are ways to say it.
        if let Some(token) = token {
            command.arg("--token-file").arg(self.files.at(token));
        }
        if let Some(ca) = ca {
            command.env("HOLDFAST_CA", self.files.at(ca));
        }
        Ok(command.output()?)
    }

    fn refused(&self, who: (Option<&str>, Option<&str>), words: &[&str]) -> Result<String> {
        let output = self.run(who, words)?;
        let said = String::from_utf8(output.stderr)?;
        ensure!(!output.status.success(), "{who:?} {words:?} was not refused");
        Ok(said)
    }

    fn done(&self, token: &str, words: &[&str]) -> Result<String> {
        let output = self.run((Some(token), Some("ours.pem")), words)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{token} {words:?}: {said}");
        Ok(String::from_utf8(output.stdout)?)
    }
}

impl Secured {
    /// Waits until the control plane has asked the engine what it has.
    fn until_online(&self, node: &str) -> Result<()> {
        let since = Instant::now();
        loop {
            let seen = self.done("viewer", &["node", "get", node, "-o", "json"])?;
            let seen: Value = serde_json::from_str(&seen)?;
            if seen["status"]["liveness"]["state"] == "online" {
                return Ok(());
            }
            ensure!(since.elapsed() < PATIENCE, "{node} is not online: {seen}");
        }
    }
}

/// A pool on a file of so many bytes.
fn pool(file: &Path) -> Result<String> {
    std::fs::File::create(file)?.set_len(256 << 20)?;
    file.to_str().map(str::to_owned).context("a path in UTF-8")
}

#[tokio::test]
async fn each_role_does_its_part_over_tls() -> Result<()> {
    let secured = Secured::start().await?;
    let ours = Some("ours.pem");
    let disk = pool(&secured.files.at("disk"))?;
    let make = ["pool", "create", "tank", "--node", "node-1", "--disk", disk.as_str()];
    let destroy = ["pool", "delete", "tank", "--yes"];

    // Everybody may ask for health, and for nothing else.
    let said = secured.refused((None, ours), &["node", "list"])?;
    assert!(said.contains("needs a token"), "{said}");
    let said = secured.refused((Some("wrong"), ours), &["node", "list"])?;
    assert!(said.contains("not one this server knows"), "{said}");
    // Looking, changing and destroying are three roles. The engine is asked over its own TLS.
    secured.until_online("node-1")?;
    let said = secured.refused((Some("viewer"), ours), &make)?;
    assert!(said.contains("needs the role editor"), "{said}");
    secured.done("editor", &make)?;
    let said = secured.refused((Some("editor"), ours), &destroy)?;
    assert!(said.contains("needs the role admin"), "{said}");
    secured.done("admin", &destroy)?;

    // Whoever is not believed is named, and so is one that should have been asked with TLS.
    let said = secured.refused((Some("admin"), Some("strange.pem")), &["status"])?;
    assert!(said.contains("is not believed") && said.contains(&secured.rest), "{said}");
    let said = secured.refused((Some("admin"), None), &["status"])?;
    assert!(said.contains("--ca"), "{said}");
    // The file of the server is none of a user.
    let said = secured.refused((Some("tokens"), ours), &["status"])?;
    assert!(said.contains("one word"), "{said}");

    // Whatever happened: no token was ever written down.
    let said = secured.control.said() + &secured.engine.said();
    assert!(!said.contains("0123456789abcde"), "{said}");
    Ok(())
}

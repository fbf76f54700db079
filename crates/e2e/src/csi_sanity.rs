//! csi-sanity: the conformance tests of the Container Storage Interface, built where Go is there.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

const MODULE: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
const VERSION: &str = "v5.6.0";

/// The program, from `$XDG_CACHE_HOME/holdfast` or `~/.cache/holdfast`, built if it is not there.
/// Nothing, with a line that says so, where Go is not installed; in CI that is an error.
pub fn program() -> Result<Option<PathBuf>> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = given.map(PathBuf::from).or_else(home);
    let base = base.context("neither XDG_CACHE_HOME nor HOME is set")?;
    let place = base.join("holdfast").join(format!("csi-sanity-{VERSION}"));
    let program = place.join("csi-sanity");
    fs::create_dir_all(&place).with_context(|| format!("create {}", place.display()))?;
    let lock = File::create(place.join("lock"))?;
    lock.lock()?;
    if program.exists() {
        return Ok(Some(program));
    }
    if Command::new("go").arg("version").output().is_err() {
        let left_out = "left out: csi-sanity, which needs Go 1.26 (https://go.dev/dl) to be built";
        if std::env::var_os("CI").is_some_and(|value| value == "true") {
            bail!("{left_out}");
        }
        #[expect(clippy::print_stderr, reason = "whoever runs the lane reads it there")]
        {
            eprintln!("{left_out}");
        }
        return Ok(None);
    }
    let mut command = Command::new("go");
    command.args(["install", &format!("{MODULE}@{VERSION}")]).env("GOBIN", &place);
    let output = command.output().context("cannot run go")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go install {MODULE}@{VERSION}: {said}");
    Ok(Some(program))
}

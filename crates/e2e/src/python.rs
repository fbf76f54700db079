//! Programs of the Python package index, in an environment of their own outside the checkout.
//!
//! Versions are fixed: a test must not change because a tool did.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What is installed.
const PACKAGES: &[&str] = &["openapi-spec-validator==0.9.0", "schemathesis==4.32.5"];

/// A program of the environment, which is made at the first use.
pub fn program(name: &str) -> Result<Command> {
    Ok(Command::new(environment()?.join("bin").join(name)))
}

/// `$XDG_CACHE_HOME/holdfast/python`, or `~/.cache/holdfast/python`, with everything in it.
fn environment() -> Result<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").filter(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let base = given.map(PathBuf::from).or_else(home);
    let base = base.context("neither XDG_CACHE_HOME nor HOME is set")?;
    let root = base.join("holdfast/python");
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    let lock = File::create(root.join("lock"))?;
    lock.lock()?;
    // The name has what is in it: other versions get a place of their own.
    let place = root.join(PACKAGES.join("+").replace("==", "-"));
    let whole = place.join("whole");
    if !whole.exists() {
        run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place))?;
        let pip = place.join("bin/pip");
        run(Command::new(pip)
            .args(["install", "--quiet", "--disable-pip-version-check"])
            .args(PACKAGES))?;
        fs::write(whole, "")?;
    }
    Ok(place)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    Ok(())
}

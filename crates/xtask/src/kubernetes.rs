//! What the lane `kubernetes` runs: the programs of Kubernetes, sidecars and Helm, built from their
//! Go modules, and images for the nodes. All of it is kept outside the checkout.
//!
//! A program that is there is not built again: remove the directory to start anew.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::image::Image;
use crate::run;

/// The version of Kubernetes, and of the modules that its repository publishes beside it.
const KUBERNETES: (&str, &str) = ("1.37.1", "0.37.1");

/// The modules of the other programs.
const MODULES: &[(&str, &str)] = &[
    ("github.com/kubernetes-csi/external-resizer", "v1.14.0"),
    ("github.com/kubernetes-csi/external-snapshotter/v8", "v8.6.0"),
    ("helm.sh/helm/v4", "v4.3.1"),
];

/// The snapshotter takes its client from its own repository; this is the published one.
const SNAPSHOT_CLIENT: (&str, &str) =
    ("github.com/kubernetes-csi/external-snapshotter/client/v8", "v8.6.0");

/// A program that does not build with the libraries of a newer Kubernetes: it has a copy of its own
/// module.
const APART: (&str, &str, &str) =
    ("csi-provisioner", "github.com/kubernetes-csi/external-provisioner/v5", "v5.1.0");

/// The packages of the other programs; a program has the name of its folder.
const PROGRAMS: &[&str] = &[
    "k8s.io/kubernetes/cmd/kube-apiserver",
    "k8s.io/kubernetes/cmd/kube-controller-manager",
    "k8s.io/kubernetes/cmd/kube-scheduler",
    "k8s.io/kubernetes/cmd/kubelet",
    "k8s.io/kubernetes/cmd/kubectl",
    "k8s.io/kubernetes/cmd/kube-proxy",
    "helm.sh/helm/v4/cmd/helm",
    "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer",
    "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
    "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
];

/// Sidecars, and the image that each becomes.
const SIDECARS: &[(&str, &str)] = &[
    ("csi-provisioner", "holdfast.test/csi-provisioner:1"),
    ("csi-resizer", "holdfast.test/csi-resizer:1"),
    ("csi-snapshotter", "holdfast.test/csi-snapshotter:1"),
];

/// What pods find in their image: all of them are busybox under its other names.
const SHELL: &[&str] = &[
    "blockdev",
    "busybox",
    "cat",
    "cmp",
    "dd",
    "df",
    "grep",
    "head",
    "hostname",
    "ls",
    "mount",
    "rm",
    "sh",
    "sha256sum",
    "sleep",
    "stat",
    "sync",
    "test",
    "touch",
    "tr",
    "wc",
];

/// The directory of it all: `$XDG_CACHE_HOME/holdfast/k8s`, or `~/.cache/holdfast/k8s`.
pub(crate) fn cache() -> Result<PathBuf> {
    let base = if let Some(dir) = std::env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()) {
        PathBuf::from(dir)
    } else {
        let home = std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
        PathBuf::from(home).join(".cache")
    };
    Ok(base.join("holdfast/k8s"))
}

/// Programs that are not there yet.
pub(crate) fn missing(cache: &Path) -> Vec<&'static str> {
    let is_missing = |name: &&str| !cache.join("bin").join(name).exists();
    let all = PROGRAMS.iter().map(|package| name(package)).chain([APART.0]);
    all.filter(is_missing).collect()
}

/// The name of the program of a package.
fn name(package: &'static str) -> &'static str {
    package.rsplit('/').next().unwrap_or(package)
}

/// Builds what is missing. The first time takes a while: Kubernetes is large.
pub(crate) fn make(cache: &Path) -> Result<()> {
    let missing = missing(cache);
    if !cache.join("definitions").exists() {
        definitions(cache)?;
    }
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("building {} in {}", missing.join(", "), cache.display());
    fs::create_dir_all(cache.join("bin"))?;
    let dir = cache.join("src");
    if !dir.join("go.mod").exists() {
        module(&dir)?;
    }
    for package in PROGRAMS.iter().filter(|package| missing.contains(&name(package))) {
        build(cache, &dir, package)?;
    }
    if missing.contains(&APART.0) {
        let dir = apart(cache)?;
        build(cache, &dir, "./cmd/csi-provisioner")?;
    }
    Ok(())
}

/// A copy of the module of the program that is built apart: its replacements of modules count only
/// there.
fn apart(cache: &Path) -> Result<PathBuf> {
    let (program, module, version) = APART;
    let dir = cache.join(program);
    if !dir.join("go.mod").exists() {
        let from = download(cache, &format!("{module}@{version}"), "Dir")?;
        run(Command::new("cp").args(["-r", &from]).arg(&dir))?;
        run(Command::new("chmod").args(["-R", "u+w"]).arg(&dir))?;
    }
    Ok(dir)
}

/// The custom resources of snapshots, which a cluster has beside the snapshot controller.
fn definitions(cache: &Path) -> Result<()> {
    let (module, version) = SNAPSHOT_CLIENT;
    let to = cache.join("definitions");
    fs::create_dir_all(cache)?;
    let from = download(cache, &format!("{module}@{version}"), "Dir")?;
    let from = PathBuf::from(from).join("config/crd");
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))? {
        let path = entry?.path();
        let name = path.file_name().context("a file has a name")?;
        if name.to_string_lossy().contains("snapshot.storage") {
            fs::write(to.join(name), fs::read(&path)?)?;
        }
    }
    Ok(())
}

/// A call of Go in a directory; it builds programs that need no library of the system.
fn go(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.args(words).current_dir(dir).env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod");
    command
}

/// Builds into a file beside its place, so that half a program is never found.
fn build(cache: &Path, dir: &Path, package: &'static str) -> Result<()> {
    let place = cache.join("bin").join(name(package));
    let part = place.with_extension("part");
    let (version, _) = KUBERNETES;
    let minor = version.split('.').nth(1).context("a version has a minor number")?;
    let variable = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {variable}.gitVersion=v{version} -X {variable}.gitMajor=1 -X \
         {variable}.gitMinor={minor}"
    );
    let mut command = go(dir, &["build", "-trimpath", "-ldflags", &flags, "-o"]);
    run(command.arg(&part).arg(package))?;
    fs::rename(&part, &place).with_context(|| format!("cannot write {}", place.display()))
}

/// One module for all programs, so that what they share is compiled once: with every dependency as
/// Kubernetes has it. Kubernetes refers to its own modules by relative paths; here they are the
/// published ones.
fn module(dir: &Path) -> Result<()> {
    let (version, staging) = KUBERNETES;
    fs::create_dir_all(dir)?;
    let found = download(dir, &format!("k8s.io/kubernetes@v{version}"), "GoMod")?;
    let text = fs::read_to_string(&found).with_context(|| format!("cannot read {found}"))?;
    let mut lines = vec!["module cluster".to_owned(), "go 1.26.0".to_owned()];
    lines.push(format!("require k8s.io/kubernetes v{version}"));
    let required = |(module, version): &(&str, &str)| format!("require {module} {version}");
    lines.extend(MODULES.iter().map(required));
    lines.extend(replacements(&text, staging));
    let (module, version) = SNAPSHOT_CLIENT;
    lines.push(format!("replace {module} => {module} {version}"));
    let imports: Vec<_> = PROGRAMS.iter().map(|name| format!("import _ \"{name}\"")).collect();
    let tools = format!("//go:build tools\npackage cluster\n{}\n", imports.join("\n"));
    fs::write(dir.join("tools.go"), tools)?;
    fs::write(dir.join("go.mod"), lines.join("\n"))?;
    Ok(())
}

/// What keeps every module at the version that this `go.mod` requires, and those of its own
/// repository at the published one.
fn replacements(text: &str, staging: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let owned = lines.clone().filter_map(|line| {
        let (module, _) = line.split_once(" => ./staging")?;
        Some(module.trim_start_matches("replace ").trim())
    });
    let owned: Vec<&str> = owned.collect();
    let pinned = lines.filter_map(|line| {
        let mut words = line.split(' ');
        let (module, version) = (words.next()?, words.next()?);
        let is_one = module.contains('.') && version.starts_with('v') && !owned.contains(&module);
        is_one.then(|| format!("replace {module} => {module} {version}"))
    });
    let published = owned.iter().map(|module| format!("replace {module} => {module} v{staging}"));
    published.chain(pinned).collect()
}

/// Downloads a module; the answer is a field of what Go says about it.
fn download(dir: &Path, module: &str, field: &str) -> Result<String> {
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", module]).current_dir(dir);
    // Without a module around it.
    command.env("GOFLAGS", "").env("GO111MODULE", "on");
    let output = command.output().context("cannot run go; see https://go.dev/doc/install")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "go mod download {module}: {said}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let found = answer.get(field).and_then(serde_json::Value::as_str);
    found.map(str::to_owned).with_context(|| format!("go says no {field} of {module}"))
}

/// The images of the nodes: ours, the sidecars, and a shell for pods that use volumes.
pub(crate) fn images(cache: &Path, binary: &Path) -> Result<()> {
    let dir = cache.join("images");
    for (program, name) in SIDECARS {
        let path = dir.join(format!("{program}.tar"));
        if path.exists() {
            continue;
        }
        let mut image = Image::new(name, &[&format!("/usr/bin/{program}")]);
        let to = format!("/usr/bin/{program}");
        image.program(&cache.join("bin").join(program), &to)?;
        image.write(&path)?;
    }
    let busybox = Path::new("/usr/bin/busybox");
    // The process that holds the namespaces of a pod, and the shell of the pods.
    let wait: &[&str] = &["/usr/bin/busybox", "sleep", "10000000"];
    for (name, entrypoint) in [("pause", wait), ("busybox", &["/usr/bin/sh"])] {
        let mut image = Image::new(&format!("holdfast.test/{name}:1"), entrypoint);
        for program in SHELL {
            image.program(busybox, &format!("/usr/bin/{program}"))?;
        }
        image.write(&dir.join(format!("{name}.tar")))?;
    }
    crate::image::holdfast(binary, "holdfast.test/holdfast:1", &dir.join("holdfast.tar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_stay_at_the_versions_of_kubernetes() {
        let text = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\t\
                    golang.org/x/net v0.57.0\n\tk8s.io/api v0.0.0\n\texample.org/a v1.2.3 // \
                    indirect\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        let found = replacements(text, "0.37.1");
        let wanted = [
            "replace k8s.io/api => k8s.io/api v0.37.1",
            "replace golang.org/x/net => golang.org/x/net v0.57.0",
            "replace example.org/a => example.org/a v1.2.3",
        ];
        assert_eq!(found, wanted);
    }
}

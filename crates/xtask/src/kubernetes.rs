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

/// Programs of Kubernetes itself.
const PROGRAMS: &[&str] = &[
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
    "kube-proxy",
];

/// A program that is built in a copy of its own module.
struct Module {
    program: &'static str,
    module: &'static str,
    version: &'static str,
    package: &'static str,
    /// A module whose place in the repository is replaced by a published version.
    replace: Option<&'static str>,
}

const MODULES: &[Module] = &[
    Module {
        program: "helm",
        module: "helm.sh/helm/v4",
        version: "v4.3.1",
        package: "./cmd/helm",
        replace: None,
    },
    Module {
        program: "csi-provisioner",
        module: "github.com/kubernetes-csi/external-provisioner/v5",
        version: "v5.1.0",
        package: "./cmd/csi-provisioner",
        replace: None,
    },
];

/// Sidecars, and the image that each becomes.
const SIDECARS: &[(&str, &str)] = &[("csi-provisioner", "holdfast.test/csi-provisioner:1")];

/// What pods find in their image: all of them are busybox under its other names.
const SHELL: &[&str] = &["busybox", "dd", "grep", "ls", "rm", "sh", "sha256sum", "sleep", "sync"];

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
    let all = PROGRAMS.iter().copied().chain(MODULES.iter().map(|module| module.program));
    all.filter(|program| !cache.join("bin").join(program).exists()).collect()
}

/// Builds what is missing. The first time takes a while: Kubernetes is large.
pub(crate) fn make(cache: &Path) -> Result<()> {
    let missing = missing(cache);
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("building {} in {}", missing.join(", "), cache.display());
    fs::create_dir_all(cache.join("bin"))?;
    for program in PROGRAMS.iter().filter(|program| missing.contains(program)) {
        kubernetes(cache, program)?;
    }
    for module in MODULES.iter().filter(|module| missing.contains(&module.program)) {
        sidecar(cache, module)?;
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
fn build(cache: &Path, dir: &Path, (program, package, flags): (&str, &str, &str)) -> Result<()> {
    let (part, place) =
        (cache.join("bin").join(format!("{program}.part")), cache.join("bin").join(program));
    let mut command = go(dir, &["build", "-trimpath", "-ldflags", flags, "-o"]);
    run(command.arg(&part).arg(package))?;
    fs::rename(&part, &place).with_context(|| format!("cannot write {}", place.display()))
}

/// Kubernetes refers to its own modules by relative paths: a module of ours says which published
/// versions those are.
fn kubernetes(cache: &Path, program: &str) -> Result<()> {
    let (version, staging) = KUBERNETES;
    let dir = cache.join("src/kubernetes");
    fs::create_dir_all(&dir)?;
    if !dir.join("go.mod").exists() {
        let wanted = format!("k8s.io/kubernetes@v{version}");
        let found = download(&dir, &wanted, "GoMod")?;
        let text = fs::read_to_string(&found).with_context(|| format!("cannot read {found}"))?;
        let mut lines = vec!["module cluster".to_owned(), "go 1.26.0".to_owned()];
        lines.push(format!("require k8s.io/kubernetes v{version}"));
        for line in text.lines().filter(|line| line.contains("=> ./staging")) {
            let module = line.trim().trim_start_matches("replace ").split(' ').next();
            let module = module.context("a line of replacement names a module")?;
            lines.push(format!("replace {module} => {module} v{staging}"));
        }
        let imports: Vec<_> = PROGRAMS
            .iter()
            .map(|name| format!("import _ \"k8s.io/kubernetes/cmd/{name}\""))
            .collect();
        let tools = format!("//go:build tools\npackage cluster\n{}\n", imports.join("\n"));
        fs::write(dir.join("tools.go"), tools)?;
        fs::write(dir.join("go.mod"), lines.join("\n"))?;
    }
    let minor = version.split('.').nth(1).context("a version has a minor number")?;
    let variable = "k8s.io/component-base/version";
    let flags = format!(
        "-s -w -X {variable}.gitVersion=v{version} -X {variable}.gitMajor=1 -X \
         {variable}.gitMinor={minor}"
    );
    build(cache, &dir, (program, &format!("k8s.io/kubernetes/cmd/{program}"), &flags))
}

/// Sidecars replace modules in their own `go.mod`, so they build only as the main module.
fn sidecar(cache: &Path, module: &Module) -> Result<()> {
    let dir = cache.join("src").join(module.program);
    if !dir.join("go.mod").exists() {
        let src = cache.join("src");
        fs::create_dir_all(&src)?;
        let from = download(&src, &format!("{}@{}", module.module, module.version), "Dir")?;
        run(Command::new("cp").args(["-r", &from]).arg(&dir))?;
        run(Command::new("chmod").args(["-R", "u+w"]).arg(&dir))?;
        if let Some(replace) = module.replace {
            run(&mut go(&dir, &["mod", "edit", "-replace", replace]))?;
        }
    }
    build(cache, &dir, (module.program, module.package, "-s -w"))
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

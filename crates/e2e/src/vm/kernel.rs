//! Stock kernels of Debian: which there are, and how one gets into the cache.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{
    cache::{Cache, age},
    userland::command_output,
};

/// A kernel as Debian ships it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// What Debian 12 installs by default. Built without `NVME_AUTH`, so no DH-HMAC-CHAP.
    V6_1,
    /// The newer series of Debian 12, with DH-HMAC-CHAP for host and target, ublk and TLS.
    V6_12,
    /// The newest: backports of Debian 13. Its target knows reservations.
    Newest,
}

impl Kernel {
    /// The package that always depends on the newest kernel of its series.
    fn metapackage(self) -> &'static str {
        match self {
            Kernel::V6_1 | Kernel::Newest => "linux-image-amd64",
            Kernel::V6_12 => "linux-image-6.12-amd64",
        }
    }
}

/// A kernel in the cache.
pub(super) struct Unpacked {
    /// The package's name, for example `linux-image-6.1.0-54-amd64`.
    pub(super) package: String,
    /// The bootable kernel.
    pub(super) vmlinuz: PathBuf,
    /// `lib/modules/<release>`.
    pub(super) modules: PathBuf,
}

/// Takes the kernel out of the cache, or downloads and unpacks it first.
pub(super) fn unpacked(cache: &Cache, kernel: Kernel) -> Result<Unpacked> {
    let apt = Apt::new(cache, kernel)?;
    let package = apt.newest_package(kernel.metapackage())?;
    let dir = cache.kernels().join(&package);
    if !dir.exists() {
        let _lock = cache.lock()?;
        if !dir.exists() {
            apt.download(cache, &package, &dir)?;
        }
    }
    // Debian 13 moved everything below /usr, and the kernel beside its modules.
    let merged = dir.join("usr/lib/modules");
    if merged.exists() {
        let modules = only_entry(&merged, "")?;
        let vmlinuz = modules.join("vmlinuz");
        return Ok(Unpacked { package, vmlinuz, modules });
    }
    let vmlinuz = only_entry(&dir.join("boot"), "vmlinuz-")?;
    let modules = only_entry(&dir.join("lib/modules"), "")?;
    Ok(Unpacked { package, vmlinuz, modules })
}

/// How long lists of packages that we fetched ourselves are good.
const LISTS_KEEP: Duration = Duration::from_hours(7 * 24);

/// Where packages come from: what this machine is set up for, or a suite of our own choice.
struct Apt {
    options: Vec<String>,
}

impl Apt {
    fn new(cache: &Cache, kernel: Kernel) -> Result<Apt> {
        let mut options = vec!["--option=APT::Sandbox::User=root".to_owned()];
        if kernel != Kernel::Newest {
            return Ok(Apt { options });
        }
        let dir = cache.apt();
        let root = dir.display();
        options.extend([
            format!("--option=Dir::Etc::sourcelist={root}/sources.list"),
            "--option=Dir::Etc::sourceparts=-".to_owned(),
            format!("--option=Dir::State::lists={root}/lists"),
            format!("--option=Dir::Cache={root}/cache"),
        ]);
        let apt = Apt { options };
        let fetched = dir.join("fetched");
        if age(&fetched).is_none_or(|age| age > LISTS_KEEP) {
            let _lock = cache.lock()?;
            let source = format!("deb [signed-by={KEYRING}] {} {BACKPORTS} main\n", mirror()?);
            fs::write(dir.join("sources.list"), source).context("choose the suite")?;
            apt.run("apt-get", &["--quiet=2", "update"]).context("fetch a list of packages")?;
            fs::write(&fetched, "").context("remember when the list was fetched")?;
        }
        Ok(apt)
    }

    fn run(&self, program: &str, args: &[&str]) -> Result<String> {
        let options = self.options.iter().map(String::as_str);
        command_output(program, &options.chain(args.iter().copied()).collect::<Vec<_>>())
    }

    fn newest_package(&self, meta: &str) -> Result<String> {
        let mut found = self.dependencies(meta, &["linux-image-"])?;
        found.pop().with_context(|| format!("{meta} depends on no kernel"))
    }

    /// What a package depends on, as far as it is part of a kernel.
    fn dependencies(&self, package: &str, prefixes: &[&str]) -> Result<Vec<String>> {
        let listing = self
            .run("apt-cache", &["depends", "--important", package])
            .with_context(|| format!("look up {package}; `apt-get update` may help"))?;
        let names = listing.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let wanted = |name: &&str| prefixes.iter().any(|prefix| name.starts_with(prefix));
        Ok(names.filter(wanted).map(str::to_owned).collect())
    }

    fn download(&self, cache: &Cache, package: &str, into: &Path) -> Result<()> {
        let work = cache.kernels().join(format!(".unpacking-{package}"));
        if work.exists() {
            fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))?;
        }
        let tree = work.join("tree");
        fs::create_dir_all(&tree).with_context(|| format!("create {}", tree.display()))?;
        // Debian 13 split a kernel into several packages.
        let prefixes = ["linux-base-", "linux-binary-", "linux-modules-"];
        let parts = self.dependencies(package, &prefixes)?;
        let script = "cd \"$1\" && shift && apt-get --quiet=2 download \"$@\" && \
                      for deb in *.deb; do dpkg-deb --extract \"$deb\" tree || exit 1; done && \
                      rm -rf tree/usr/share";
        let mut args = vec!["-c", script, "sh", path_text(&work)?, package];
        args.extend(parts.iter().chain(&self.options).map(String::as_str));
        command_output("sh", &args)
            .with_context(|| format!("download {package}; `apt-get update` may help"))?;
        fs::rename(&tree, into).with_context(|| format!("move {package} into the cache"))?;
        fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))
    }
}

const BACKPORTS: &str = "trixie-backports";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where this machine gets Debian from, which has the other suites too.
fn mirror() -> Result<String> {
    let wanted = ["Created-By: Packages", "Origin: Debian", "Component: main"];
    let mut args = vec!["indextargets", "--format", "$(SUITE) $(REPO_URI)"];
    args.extend(wanted);
    command_output("apt-get", &args)?
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(suite, _)| !suite.contains('-'))
        .map(|(_, address)| address.to_owned())
        .context("this machine is not set up for Debian's main archive")
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().context("the cache's path is not UTF-8")
}

fn only_entry(dir: &Path, prefix: &str) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            found.push(entry.path());
        }
    }
    match found.as_slice() {
        [one] => Ok(one.clone()),
        _ => bail!("{} should hold one {prefix}*; remove the directory", dir.display()),
    }
}

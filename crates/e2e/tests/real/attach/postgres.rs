//! PostgreSQL on a volume whose target dies under load: no transaction fails, none is lost, and
//! every table and index is intact, also after the server itself was killed.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, is_able};
use e2e::process::Program;

/// Where Debian keeps the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// A server whose data lies on a volume.
struct Postgres {
    programs: PathBuf,
    /// For its socket and its log: on this machine, not on the volume.
    folder: tempfile::TempDir,
}

impl Postgres {
    /// With the newest version that is installed.
    fn new() -> Result<Postgres> {
        let versions = fs::read_dir(VERSIONS).context("apt-get install postgresql")?;
        let mut versions: Vec<PathBuf> =
            versions.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        versions.sort();
        let programs = versions.pop().context("apt-get install postgresql")?.join("bin");
        let folder = tempfile::tempdir()?;
        // The server refuses to be root, and somebody else has to come in.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777))?;
        Ok(Postgres { programs, folder })
    }

    fn mount(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    /// A program of PostgreSQL, run by its own user.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "postgres", "--regid", "postgres", "--init-groups"]);
        command.env("PGDATA", self.mount().join("data")).env("PGHOST", self.folder.path());
        command.env("PGDATABASE", "postgres").current_dir(self.folder.path());
        let (program, words) = words.split_first().unwrap_or((&"postgres", &[]));
        command.arg(self.programs.join(program)).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let output = self.command(words).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{words:?}: {said}\n{}", self.log());
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    fn query(&self, query: &str) -> Result<String> {
        self.run(&["psql", "--no-align", "--tuples-only", "--command", query])
    }

    fn start(&self) -> Result<()> {
        let options = format!("-c listen_addresses= -k {}", self.folder.path().display());
        let log = self.folder.path().join("log").display().to_string();
        // What it starts must not keep our pipes open.
        let mut command = self.command(&["pg_ctl", "start", "--wait", "-o", &options, "-l", &log]);
        let status = command.stdout(std::process::Stdio::null()).status()?;
        ensure!(status.success(), "the server did not start: {}", self.log());
        Ok(())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Every table and index is as it should be, and the books balance.
    fn check(&self, transactions: u64) -> Result<()> {
        self.run(&["pg_amcheck", "--all", "--install-missing", "--heapallindexed"])?;
        let sums = self.query(
            "select (select sum(abalance) from pgbench_accounts) = sum(delta) \
             and (select sum(bbalance) from pgbench_branches) = sum(delta) \
             and (select sum(tbalance) from pgbench_tellers) = sum(delta) \
             from pgbench_history",
        )?;
        ensure!(sums == "t", "the balances differ: {sums}");
        let kept: u64 = self.query("select count(*) from pgbench_history")?.parse()?;
        ensure!(kept == transactions, "{kept} of {transactions} transactions are there");
        Ok(())
    }
}

impl Drop for Postgres {
    /// What failed must not leave a server behind.
    fn drop(&mut self) {
        let _ = self.run(&["pg_ctl", "stop", "--mode", "immediate"]);
    }
}

fn transactions(said: &str) -> Result<u64> {
    let after = "number of transactions actually processed: ";
    let line = said.lines().find_map(|line| line.strip_prefix(after));
    let number = line.with_context(|| format!("pgbench said: {said}"))?;
    Ok(number.split('/').next().unwrap_or_default().trim().parse()?)
}

#[test]
fn postgres_goes_on_through_the_death_of_its_target() -> Result<()> {
    if !is_able() {
        return Ok(());
    }
    let mut cluster = Cluster::start()?;
    let volume = cluster.volume(1, "512MiB")?;
    let postgres = Postgres::new()?;
    let mount = postgres.mount().display().to_string();
    cluster.run(&["attach", &volume, "--transport", "fuse", "--mount", &mount])?;
    own(&postgres.mount())?;
    postgres.run(&["initdb", "--auth", "trust", "--no-locale", "--encoding", "UTF8"])?;
    postgres.start()?;
    postgres.run(&["pgbench", "--initialize", "--scale", "2", "--quiet"])?;

    let load = ["pgbench", "--client", "4", "--time", "12", "--progress", "1"];
    let mut load = Program::start(&mut postgres.command(&load))?;
    let second = |n: u32| move |line: &str| line.contains(&format!(": {n}.0 s")).then_some(());
    load.wait_for("that it works", second(2))?;
    let killed = cluster.kill_target(&volume)?;
    let status = load.wait()?;
    let said = load.said();
    ensure!(status.success() && said.contains("failed transactions: 0"), "{said}");
    println!("{said}");
    let done = transactions(&said)?;
    postgres.check(done)?;

    // The server dies without a word, and the volume is attached anew: all that was committed is
    // on the volume.
    cluster.start_engine(killed)?;
    postgres.run(&["pg_ctl", "stop", "--mode", "immediate"])?;
    cluster.run(&["detach", &volume])?;
    cluster.run(&["attach", &volume, "--transport", "fuse", "--mount", &mount])?;
    postgres.start()?;
    postgres.check(done)?;
    postgres.run(&["pg_ctl", "stop", "--mode", "fast"])?;
    drop(postgres.run(&["pg_ctl", "status"]));
    cluster.until_in_sync(&volume)?;
    cluster.run(&["volume", "check", &volume, "--compare"])?;
    cluster.run(&["detach", &volume])?;
    cluster.check_nothing_left()
}

/// Gives the root of a file system to the user of the server.
fn own(mount: &Path) -> Result<()> {
    let status = Command::new("chown").arg("postgres").arg(mount).status()?;
    ensure!(status.success(), "cannot give {} to the user postgres", mount.display());
    Ok(())
}

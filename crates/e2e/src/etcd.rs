//! Three members of etcd, one of them behind a cable that can be pulled.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use store::client::{Client, Options};
use tempfile::TempDir;

use crate::netns::Netns;
use crate::process::{PATIENCE, Program};

/// How many members there are; the last is the one that can be cut off.
pub const MEMBERS: usize = 3;

/// A cluster of etcd. Dropping it kills its members and removes what they wrote.
pub struct EtcdCluster {
    // Before the folder and the network, so that they are dead before these go.
    members: Vec<Member>,
    network: Netns,
    _dir: TempDir,
}

struct Member {
    program: Program,
    words: Vec<String>,
    client: SocketAddr,
    inside: bool,
}

impl EtcdCluster {
    /// Starts all members on empty folders. Needs root, for the network.
    pub async fn start() -> Result<EtcdCluster> {
        let network = Netns::new()?;
        let dir = tempfile::tempdir().context("cannot make a folder")?;
        let mut addresses = Vec::new();
        for nth in 0..MEMBERS {
            addresses.push(if is_inside(nth) {
                let at = |port| SocketAddr::from((network.address(), port));
                (at(2379), at(2380))
            } else {
                (free_at(network.outside())?, free_at(network.outside())?)
            });
        }
        let all: Vec<String> = (0..)
            .zip(&addresses)
            .map(|(nth, (_, peer))| format!("member-{nth}=http://{peer}"))
            .collect();
        let all = all.join(",");
        let mut members = Vec::new();
        for (nth, (client, peer)) in addresses.into_iter().enumerate() {
            let (inside, folder) = (is_inside(nth), dir.path().join(format!("member-{nth}")));
            let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
            let options = [
                ("--name", format!("member-{nth}")),
                ("--data-dir", folder.to_str().context("an odd path")?.to_owned()),
                ("--listen-client-urls", client_url.clone()),
                ("--advertise-client-urls", client_url),
                ("--listen-peer-urls", peer_url.clone()),
                ("--initial-advertise-peer-urls", peer_url),
                ("--initial-cluster", all.clone()),
                // A machine that tests keep busy answers late.
                ("--heartbeat-interval", "200".to_owned()),
                ("--election-timeout", "2000".to_owned()),
            ];
            let words = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
            let words: Vec<String> = words.collect();
            let program = run(&words, inside.then_some(&network))?;
            members.push(Member { program, words, client, inside });
        }
        let cluster = EtcdCluster { members, network, _dir: dir };
        cluster.client().await?;
        Ok(cluster)
    }

    /// Where each member is reached.
    pub fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| format!("http://{}", member.client)).collect()
    }

    /// A client of all members, once one of them answers.
    pub async fn client(&self) -> Result<Client> {
        let patient = Options { deadline: PATIENCE, ..Options::default() };
        Client::connect(&self.endpoints(), patient).await.context("etcd does not answer")
    }

    /// `kill -9` of a member.
    pub fn kill(&mut self, nth: usize) -> Result<()> {
        self.members.get_mut(nth).context("there is no such member")?.program.kill()
    }

    /// Starts a member again that was killed.
    pub fn restart(&mut self, nth: usize) -> Result<()> {
        let member = self.members.get_mut(nth).context("there is no such member")?;
        member.program = run(&member.words, member.inside.then_some(&self.network))?;
        Ok(())
    }

    /// Cuts the last member off.
    pub fn cut(&self) -> Result<()> {
        self.network.cut()
    }

    /// Puts its cable back.
    pub fn mend(&self) -> Result<()> {
        self.network.mend()
    }

    /// Makes a member the leader; whether that was done. While members start there is none to move.
    pub fn lead(&self, nth: usize) -> Result<bool> {
        let output = self.etcdctl(&["endpoint", "status", "--write-out", "json"])?;
        let Ok(found) = serde_json::from_str::<Vec<Value>>(&output) else { return Ok(false) };
        let id = |at: &Value| at["Status"]["header"]["member_id"].as_u64();
        let wanted = self.members.get(nth).context("there is no such member")?;
        let is_wanted = |at: &&Value| {
            at["Endpoint"].as_str().is_some_and(|url| url.ends_with(&wanted.client.to_string()))
        };
        let Some(next) = found.iter().find(is_wanted).and_then(id) else { return Ok(false) };
        let leads = |at: &&Value| at["Status"]["leader"].as_u64() == id(at);
        let Some(leader) = found.iter().find(leads) else { return Ok(false) };
        if id(leader) == Some(next) {
            return Ok(true);
        }
        let url = leader["Endpoint"].as_str().context("an endpoint without an address")?;
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", url, "move-leader", &format!("{next:x}")])
            .output()
            .context("cannot run etcdctl")?;
        Ok(output.status.success())
    }

    fn etcdctl(&self, words: &[&str]) -> Result<String> {
        let output = Command::new("etcdctl")
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints().join(",")])
            .args(words)
            .output()
            .context("cannot run etcdctl")?;
        ensure!(!output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn is_inside(nth: usize) -> bool {
    nth + 1 == MEMBERS
}

fn run(words: &[String], network: Option<&Netns>) -> Result<Program> {
    let mut command = Command::new("etcd");
    command.args(words);
    match network {
        Some(network) => Program::start(&mut network.wrap(&command)),
        None => Program::start(&mut command),
    }
}

/// An address that nobody listens on at this moment.
fn free_at(ip: Ipv4Addr) -> Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((ip, 0)).context("cannot bind a port")?;
    listener.local_addr().context("cannot tell the port")
}

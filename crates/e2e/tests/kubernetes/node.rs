//! A node: containerd, kubelet and proxy on a machine of their own.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::cluster::{DNS, Paths};
use crate::machine::Machine;
use crate::wait::until;

/// Where containerd listens, on each machine.
const SOCKET: &str = "/run/containerd/containerd.sock";

pub(crate) struct Node {
    pub(crate) machine: Machine,
    number: u8,
    /// Absent: somebody else created the node, and removes it.
    cgroup: Option<String>,
}

impl Node {
    pub(crate) fn name(&self) -> &str {
        &self.machine.name
    }

    /// The address of the node with this number.
    pub(crate) fn address(number: u8) -> String {
        format!("10.200.0.1{number}")
    }

    /// The network of its pods.
    pub(crate) fn pods(number: u8) -> String {
        format!("10.244.{number}.0/24")
    }

    /// A machine on the bridge of the first one, with nothing running yet.
    pub(crate) fn new(paths: &Paths, bridge: &Machine, number: u8) -> Result<Node> {
        let name = format!("node{number}");
        let machine = Machine::new(&name, &paths.run.join(&name))?;
        let (address, pid) = (Node::address(number), machine.pid());
        bridge.shell(&format!(
            "ip link add v{number} type veth peer name e{number}
            ip link set v{number} master k0 up"
        ))?;
        // The bridge is in a process namespace of its own, where this process has no number.
        let mut command = std::process::Command::new("nsenter");
        command.arg(format!("--target={}", bridge.pid())).args(["--net", "ip", "link", "set"]);
        command.args([&format!("e{number}"), "netns", &pid.to_string()]);
        crate::machine::output(&mut command, None)?;
        machine.shell(&format!(
            "ip link set e{number} name eth0
            ip addr add {address}/24 dev eth0
            ip link set eth0 up
            ip route add default via 10.200.0.1"
        ))?;
        bridge.shell(&format!("ip route add {} via {address}", Node::pods(number)))?;
        let cgroup = format!("holdfast-{}-{name}", std::process::id());
        Ok(Node { machine, number, cgroup: Some(cgroup) })
    }

    /// A node that another process has started in this directory.
    pub(crate) fn attach(paths: &Paths, number: u8) -> Result<Node> {
        let name = format!("node{number}");
        let machine = Machine::attach(&name, &paths.run.join(&name))?;
        Ok(Node { machine, number, cgroup: None })
    }

    /// The routes to pods of other nodes, lost with the link.
    pub(crate) fn connect_pods(&self, count: u8) -> Result<()> {
        for other in (1..=count).filter(|other| *other != self.number) {
            let (pods, address) = (Node::pods(other), Node::address(other));
            self.machine.shell(&format!("ip route replace {pods} via {address}"))?;
        }
        Ok(())
    }

    /// Starts its programs and loads the images.
    pub(crate) fn start(&self, paths: &Paths) -> Result<()> {
        self.make_cgroups()?;
        let dir = paths.run.join(self.name());
        fs::create_dir_all(dir.join("cni"))?;
        fs::write(dir.join("cni/10-ptp.conflist"), self.network(&dir)?)?;
        fs::write(dir.join("containerd.toml"), containerd(&dir))?;
        fs::write(dir.join("resolv.conf"), format!("nameserver {DNS}\n"))?;
        fs::write(dir.join("kubelet.json"), self.kubelet(paths, &dir)?)?;
        let text = |path: PathBuf| path.display().to_string();
        let machine = &self.machine;
        machine.start("containerd", &["--config".into(), text(dir.join("containerd.toml"))])?;
        until(&format!("containerd of {} answers", self.name()), || {
            self.ctr(&["version"]).map(Some)
        })?;
        for image in fs::read_dir(paths.cache.join("images"))? {
            let image = image?.path();
            if image.extension().is_some_and(|kind| kind == "tar") {
                self.ctr(&["--namespace=k8s.io", "images", "import", &text(image)])?;
            }
        }
        self.start_kubelet(paths)?;
        machine.start(
            &paths.program("kube-proxy"),
            &[
                format!("--kubeconfig={}", paths.kubeconfig("admin")?),
                "--proxy-mode=nftables".into(),
                format!("--hostname-override={}", self.name()),
                "--cluster-cidr=10.244.0.0/16".into(),
                "--metrics-bind-address=127.0.0.1:10249".into(),
                // These are limits of the whole machine.
                "--conntrack-max-per-core=0".into(),
                "--conntrack-min=0".into(),
                "--conntrack-tcp-timeout-established=0s".into(),
                "--conntrack-tcp-timeout-close-wait=0s".into(),
            ],
        )
    }

    /// Starts its kubelet, again if it was killed.
    pub(crate) fn start_kubelet(&self, paths: &Paths) -> Result<()> {
        let config = paths.run.join(self.name()).join("kubelet.json");
        self.machine.start(
            &paths.program("kubelet"),
            &[
                format!("--config={}", config.display()),
                format!("--kubeconfig={}", paths.kubeconfig(self.name())?),
                format!("--hostname-override={}", self.name()),
                format!("--node-ip={}", Node::address(self.number)),
                "--root-dir=/var/lib/kubelet".into(),
                "--v=2".into(),
            ],
        )
    }

    /// Pulls its network cable, or puts it back: nobody reaches it, and it reaches nobody.
    pub(crate) fn set_link(&self, up: bool) -> Result<()> {
        let script = if up {
            "ip link set eth0 up\nip route replace default via 10.200.0.1"
        } else {
            "ip link set eth0 down"
        };
        self.machine.shell(script).map(drop)
    }

    pub(crate) fn ctr(&self, words: &[&str]) -> Result<String> {
        let mut command = self.machine.command("ctr");
        command.args(["--address", SOCKET]).args(words);
        crate::machine::output(&mut command, None)
    }

    /// `kill -9` of a container, by the id that Kubernetes shows.
    pub(crate) fn kill(&self, container: &str) -> Result<()> {
        let id = container.strip_prefix("containerd://").context("an id of containerd")?;
        self.ctr(&["--namespace=k8s.io", "tasks", "kill", "--signal", "SIGKILL", id]).map(drop)
    }

    fn network(&self, dir: &Path) -> Result<String> {
        let ipam = json!({
            "type": "host-local", "dataDir": dir.join("ipam"),
            "ranges": [[{ "subnet": Node::pods(self.number) }]],
            "routes": [{ "dst": "0.0.0.0/0" }],
        });
        // Each pod has a cable of its own to the node, so that all its packets are routed.
        let plugin = json!({ "type": "ptp", "ipMasq": false, "ipam": ipam });
        let list = json!({ "cniVersion": "0.4.0", "name": "pods", "plugins": [plugin] });
        Ok(serde_json::to_string(&list)?)
    }

    fn kubelet(&self, paths: &Paths, dir: &Path) -> Result<String> {
        let name = self.name();
        let config = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": paths.authority("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            "address": "0.0.0.0",
            "tlsCertFile": paths.authority(&format!("{name}.crt")),
            "tlsPrivateKeyFile": paths.authority(&format!("{name}.key")),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup.as_ref().map(|group| format!("/{group}")),
            "failCgroupV1": false,
            "failSwapOn": false,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": false,
            "resolvConf": dir.join("resolv.conf"),
            "clusterDNS": [DNS],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
            "volumePluginDir": dir.join("plugins"),
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%",
            },
        });
        Ok(serde_json::to_string(&config)?)
    }

    /// Control groups for the pods, beside all others of this machine.
    fn make_cgroups(&self) -> Result<()> {
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        for group in groups(cgroup)? {
            fs::create_dir_all(&group).with_context(|| format!("create {}", group.display()))?;
        }
        let cpuset = Path::new("/sys/fs/cgroup/cpuset");
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read_to_string(cpuset.join(file)) {
                fs::write(cpuset.join(cgroup).join(file), all)?;
            }
        }
        Ok(())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Groups can be removed only when they are empty: the innermost first, after the processes.
        let Some(cgroup) = &self.cgroup else { return };
        self.machine.end();
        for group in groups(cgroup).unwrap_or_default() {
            remove_empty(&group);
        }
    }
}

/// The control group of this name under each controller; with one hierarchy there is one.
fn groups(name: &str) -> Result<Vec<PathBuf>> {
    let root = Path::new("/sys/fs/cgroup");
    if root.join("cgroup.controllers").exists() {
        return Ok(vec![root.join(name)]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(root).context("cannot read /sys/fs/cgroup")? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path().join(name));
        }
    }
    Ok(found)
}

fn remove_empty(group: &Path) {
    let Ok(entries) = fs::read_dir(group) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // One that is not empty yet stays behind, and harms nobody.
    let _ = fs::remove_dir(group);
}

fn containerd(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "holdfast.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{dir}/cni"
"#
    )
}

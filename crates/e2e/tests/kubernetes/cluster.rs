//! A whole cluster: control plane, nodes, Holdfast.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::authority::{Authority, Subject};
use crate::machine::{Machine, output};
use crate::node::Node;
use crate::wait::until;

/// Where names are resolved: on the machine of the control plane.
pub(crate) const DNS: &str = "10.200.0.1";
/// Where the API server listens.
const SERVER: &str = "https://10.200.0.1:16443";
/// The namespace of Holdfast, which is also the name of its release.
pub(crate) const HOLDFAST: &str = "holdfast";

/// Where things are.
pub(crate) struct Paths {
    /// Programs and images, made by `cargo xtask test kubernetes`.
    pub(crate) cache: PathBuf,
    /// What this cluster writes.
    pub(crate) run: PathBuf,
}

impl Paths {
    pub(crate) fn program(&self, name: &str) -> String {
        self.cache.join("bin").join(name).display().to_string()
    }

    pub(crate) fn authority(&self, file: &str) -> String {
        self.run.join("authority").join(file).display().to_string()
    }

    /// Writes what somebody with this certificate needs to call the API server.
    pub(crate) fn kubeconfig(&self, name: &str) -> Result<String> {
        let (ca, crt, key) = (
            self.authority("ca.crt"),
            self.authority(&format!("{name}.crt")),
            self.authority(&format!("{name}.key")),
        );
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "c", "cluster": { "server": SERVER, "certificate-authority": ca },
            }],
            "users": [{
                "name": "u", "user": { "client-certificate": crt, "client-key": key },
            }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "c",
        });
        let path = self.run.join(format!("{name}.kubeconfig"));
        fs::write(&path, serde_json::to_string(&config)?)?;
        Ok(path.display().to_string())
    }
}

/// A running cluster. Dropping it ends all its processes.
pub(crate) struct Cluster {
    // Nodes before the machine that their network hangs on, and both before the directory.
    pub(crate) nodes: Vec<Node>,
    head: Machine,
    pub(crate) paths: Paths,
    dir: Option<TempDir>,
}

impl Cluster {
    /// Starts a cluster and waits for its nodes.
    pub(crate) fn start(count: u8) -> Result<Cluster> {
        let cache = cache()?;
        let dir = tempfile::Builder::new().prefix("holdfast-k8s-").tempdir()?;
        let paths = Paths { cache, run: dir.path().to_owned() };
        ensure!(
            Path::new(&paths.program("kubelet")).exists(),
            "the programs of Kubernetes are not built; run `cargo xtask test kubernetes`"
        );
        certificates(&paths, count)?;
        let head = Machine::new("head", &paths.run.join("head"))?;
        head.shell(
            "ip link add k0 type bridge
            ip addr add 10.200.0.1/24 dev k0
            ip link set k0 up
            ip route add default via 10.200.0.254",
        )?;
        let mut cluster = Cluster { nodes: Vec::new(), head, paths, dir: Some(dir) };
        cluster.start_control_plane()?;
        for number in 1..=count {
            let node = Node::new(&cluster.paths, &cluster.head, number)?;
            cluster.nodes.push(node);
        }
        for node in &cluster.nodes {
            node.connect_pods(count)?;
            node.start(&cluster.paths)?;
        }
        until("all nodes are ready", || {
            let nodes = cluster.get(&["nodes"])?;
            let ready = items(&nodes).iter().filter(|node| has_condition(node, "Ready")).count();
            Ok((ready == usize::from(count)).then_some(()))
        })?;
        Ok(cluster)
    }

    fn start_control_plane(&self) -> Result<()> {
        let paths = &self.paths;
        let authority = |file: &str| paths.authority(file);
        let admin = paths.kubeconfig("admin")?;
        let etcd = "http://127.0.0.1:2379";
        let data = paths.run.join("etcd").display().to_string();
        self.write_audit_policy()?;
        self.head.start("etcd", &words(&["--data-dir", &data, "--unsafe-no-fsync"]))?;
        self.start_names()?;
        self.head.start(
            &paths.program("kube-apiserver"),
            &words(&[
                &format!("--etcd-servers={etcd}"),
                "--bind-address=10.200.0.1",
                "--secure-port=16443",
                "--advertise-address=10.200.0.1",
                &format!("--tls-cert-file={}", authority("server.crt")),
                &format!("--tls-private-key-file={}", authority("server.key")),
                &format!("--client-ca-file={}", authority("ca.crt")),
                "--service-account-issuer=https://kubernetes.default.svc",
                &format!("--service-account-signing-key-file={}", authority("accounts.key")),
                &format!("--service-account-key-file={}", authority("accounts.pub")),
                "--service-cluster-ip-range=10.96.0.0/16",
                // The resizer reads VolumeAttributesClasses of this version.
                "--runtime-config=storage.k8s.io/v1beta1=true",
                &format!("--audit-policy-file={}", paths.run.join("audit.json").display()),
                &format!("--audit-log-path={}", paths.run.join("audit.log").display()),
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",
                &format!("--kubelet-client-certificate={}", authority("admin.crt")),
                &format!("--kubelet-client-key={}", authority("admin.key")),
                &format!("--kubelet-certificate-authority={}", authority("ca.crt")),
                "--kubelet-preferred-address-types=InternalIP",
            ]),
        )?;
        until("the API server is ready", || self.kubectl(&["get", "--raw", "/readyz"]).map(Some))?;
        self.head.start(
            &paths.program("kube-controller-manager"),
            &words(&[
                &format!("--kubeconfig={admin}"),
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                &format!("--root-ca-file={}", authority("ca.crt")),
                &format!("--service-account-private-key-file={}", authority("accounts.key")),
                &format!("--cluster-signing-cert-file={}", authority("ca.crt")),
                &format!("--cluster-signing-key-file={}", authority("ca.key")),
                "--node-monitor-grace-period=20s",
                &format!("--flex-volume-plugin-dir={}", paths.run.join("head/plugins").display()),
            ]),
        )?;
        self.head.start(
            &paths.program("kube-scheduler"),
            &words(&[
                &format!("--kubeconfig={admin}"),
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
            ]),
        )?;
        let definitions = paths.cache.join("definitions").display().to_string();
        self.kubectl(&["apply", "--server-side", "--filename", &definitions])?;
        self.head.start(
            &paths.program("snapshot-controller"),
            &words(&[
                &format!("--kubeconfig={admin}"),
                "--feature-gates=CSIVolumeGroupSnapshot=true",
                "--http-endpoint=",
            ]),
        )
    }

    /// Who of Holdfast asks for what is written down.
    fn write_audit_policy(&self) -> Result<()> {
        let accounts = format!("system:serviceaccounts:{HOLDFAST}");
        let audit = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [
                { "level": "Metadata", "userGroups": [accounts] },
                { "level": "None" },
            ],
        });
        fs::write(self.paths.run.join("audit.json"), audit.to_string())?;
        Ok(())
    }

    /// Names of services, for the pods.
    fn start_names(&self) -> Result<()> {
        let hosts = self.paths.run.join("hosts");
        fs::create_dir_all(&hosts)?;
        self.head.start(
            "dnsmasq",
            &words(&[
                "--keep-in-foreground",
                "--no-resolv",
                "--no-hosts",
                "--user=root",
                "--port=53",
                "--bind-interfaces",
                "--local=/local/svc/",
                "--pid-file=/run/dnsmasq.pid",
                &format!("--listen-address={DNS}"),
                &format!("--hostsdir={}", hosts.display()),
            ]),
        )
    }

    /// What roles of Holdfast have asked the API server for, since it started.
    pub(crate) fn requests(&self) -> Result<Vec<Value>> {
        let log = fs::read_to_string(self.paths.run.join("audit.log"))?;
        log.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    }

    /// A cluster that another process has started in this directory.
    pub(crate) fn attach(dir: &Path) -> Result<Cluster> {
        let paths = Paths { cache: cache()?, run: dir.to_owned() };
        let head = Machine::attach("head", &paths.run.join("head"))?;
        let nodes = (1..).map(|number: u8| (number, paths.run.join(format!("node{number}"))));
        let nodes = nodes.take_while(|(_, dir)| dir.exists());
        let nodes = nodes.map(|(number, _)| Node::attach(&paths, number)).collect::<Result<_>>()?;
        Ok(Cluster { nodes, head, paths, dir: None })
    }

    /// The chart of this checkout.
    pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../chart");

    /// The values that an installation here has.
    pub(crate) fn values() -> Value {
        json!({
            "image": { "repository": "holdfast.test/holdfast", "tag": "1", "pullPolicy": "Never" },
            "store": { "persistence": { "local": { "node": "node1" } } },
            "engine": { "nodeSelector": { "engine": "yes" } },
            // The kernel lets only who has CAP_SYS_RESOURCE grow a mounted ext4, and a machine that
            // is a container itself may not have it.
            "storageClasses": { "xfs": { "parameters": { "replicas": "2", "fsType": "xfs" } } },
            "csi": {
                "provisioner": {
                    "image": "holdfast.test/csi-provisioner:1",
                    "args": ["--feature-gates=VolumeAttributesClass=true"],
                },
                "resizer": {
                    "image": "holdfast.test/csi-resizer:1",
                    "args": ["--feature-gates=VolumeAttributesClass=true"],
                },
                "snapshotter": {
                    "enabled": true, "groups": true, "image": "holdfast.test/csi-snapshotter:1",
                },
            },
        })
    }

    /// Helm with values for the chart, as an administrator of the cluster.
    pub(crate) fn helm(&self, words: &[&str], values: &Value) -> Result<String> {
        let file = self.paths.run.join("values.json");
        fs::write(&file, values.to_string())?;
        let values = format!("--values={}", file.display());
        self.helm_without_values(&[words, &[&values]].concat())
    }

    /// Helm, for what takes no values.
    pub(crate) fn helm_without_values(&self, words: &[&str]) -> Result<String> {
        let mut command = self.head.command(&self.paths.program("helm"));
        command.args(["--kubeconfig", &self.paths.kubeconfig("admin")?]);
        command.args(["--namespace", HOLDFAST]).args(words).env("HOME", &self.paths.run);
        output(&mut command, None)
    }

    /// Installs Holdfast by its chart, and makes its names known.
    pub(crate) fn install(&self) -> Result<()> {
        self.kubectl(&["label", "nodes", "--all", "--overwrite", "engine=yes"])?;
        let words = ["install", HOLDFAST, Cluster::CHART, "--create-namespace"];
        self.helm(&words, &Cluster::values())?;
        self.publish_names()?;
        self.wait_for_holdfast()
    }

    /// Waits until all pods of Holdfast are ready.
    pub(crate) fn wait_for_holdfast(&self) -> Result<()> {
        until("all pods of Holdfast are ready", || {
            let pods = self.get(&["pods", "--namespace", HOLDFAST])?;
            let pods = items(&pods);
            let ready = pods.iter().filter(|pod| has_condition(pod, "Ready")).count();
            // Store, control plane, CSI controller, operator; engine and CSI node on each node.
            Ok((ready == 4 + 2 * self.nodes.len() && pods.len() == ready).then_some(()))
        })
    }

    /// Replaces the pods of something of Holdfast, and waits for the new ones.
    pub(crate) fn restart(&self, what: &str) -> Result<()> {
        self.kubectl(&["rollout", "restart", what, "--namespace", HOLDFAST])?;
        let wait = ["rollout", "status", what, "--timeout=300s", "--namespace", HOLDFAST];
        self.kubectl(&wait)?;
        self.wait_for_holdfast()
    }

    /// What a cluster's own name server does: names of services become addresses.
    pub(crate) fn publish_names(&self) -> Result<()> {
        let services = self.get(&["services", "--namespace", HOLDFAST])?;
        let mut lines = String::new();
        for service in items(&services) {
            let name = service["metadata"]["name"].as_str().context("a service has a name")?;
            let address = service["spec"]["clusterIP"].as_str().context("and an address")?;
            writeln!(lines, "{address} {name}.{HOLDFAST}.svc.cluster.local")?;
        }
        fs::write(self.paths.run.join("hosts/services"), lines)?;
        Ok(())
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        let mut command = self.head.command(&self.paths.program("kubectl"));
        let config = self.paths.run.join("admin.kubeconfig");
        output(command.arg("--kubeconfig").arg(config).args(words), None)
    }

    /// Creates or changes resources.
    pub(crate) fn apply(&self, resources: &Value) -> Result<()> {
        let mut command = self.head.command(&self.paths.program("kubectl"));
        let config = self.paths.run.join("admin.kubeconfig");
        command.arg("--kubeconfig").arg(config).args(["apply", "--filename", "-"]);
        output(&mut command, Some(&resources.to_string())).map(drop)
    }

    /// Whether the API server would take these resources.
    pub(crate) fn accepts(&self, resources: &str) -> Result<()> {
        let mut command = self.head.command(&self.paths.program("kubectl"));
        let config = self.paths.run.join("admin.kubeconfig");
        command.arg("--kubeconfig").arg(config).args(["apply", "--dry-run=server"]);
        output(command.args(["--filename", "-"]), Some(resources)).map(drop)
    }

    /// Resources as JSON.
    pub(crate) fn get(&self, words: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "--output=json"], words].concat())?;
        Ok(serde_json::from_str(&text)?)
    }

    /// Asks the control plane of Holdfast, by a pod that has the right to.
    pub(crate) fn holdfast(&self, words: &[&str]) -> Result<Value> {
        let pod = ["exec", "deploy/holdfast-csi-controller", "--container=csi-controller"];
        let server = ["--", "holdfast", "--server=holdfast-control.holdfast.svc:7440"];
        let secrets = ["--ca=/etc/holdfast/csi/ca.crt", "--token-file=/etc/holdfast/csi/token"];
        let namespace = ["--namespace", HOLDFAST];
        let mut all: Vec<&str> = Vec::new();
        all.extend(namespace.iter().chain(&pod).chain(&server[..2]));
        all.extend(words.iter().chain(&server[2..]).chain(&secrets).chain(&["--output=json"]));
        let text = self.kubectl(&all)?;
        // A command that has nothing to say says nothing.
        if text.trim().is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(&text)?) }
    }

    /// Prints what a person would look at first.
    pub(crate) fn explain(&self) {
        let looks: [&[&str]; 6] = [
            &["get", "pods", "--all-namespaces", "--output=wide"],
            &["get", "diskpools,pvc,pv,volumeattachments,csinodes", "-A", "--output=wide"],
            &["get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"],
            &["logs", "--namespace=holdfast", "deploy/holdfast-control", "--tail=30"],
            &["logs", "--namespace=holdfast", "deploy/holdfast-csi-controller", "--tail=30"],
            &["logs", "--namespace=holdfast", "deploy/holdfast-operator", "--tail=20"],
        ];
        for words in looks {
            match self.kubectl(words) {
                Ok(text) => {
                    let lines: Vec<&str> = text.lines().collect();
                    let last = &lines[lines.len().saturating_sub(50)..];
                    eprintln!("> kubectl {}\n{}", words.join(" "), last.join("\n"));
                }
                Err(error) => eprintln!("> kubectl {}: {error:#}", words.join(" ")),
            }
        }
    }

    /// Keeps the directory with all logs beyond the end of the cluster.
    pub(crate) fn keep(&mut self) {
        if let Some(dir) = self.dir.take() {
            eprintln!("logs of the cluster are kept in {}", dir.keep().display());
        }
    }

    pub(crate) fn node(&self, name: &str) -> Result<&Node> {
        self.nodes.iter().find(|node| node.name() == name).context("there is no such node")
    }
}

/// The objects of a list.
pub(crate) fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map_or(&[], Vec::as_slice)
}

/// Whether an object has a condition that holds.
pub(crate) fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().any(|one| one["type"] == kind && one["status"] == "True")
}

fn cache() -> Result<PathBuf> {
    let base = if let Some(dir) = std::env::var_os("XDG_CACHE_HOME").filter(|it| !it.is_empty()) {
        PathBuf::from(dir)
    } else {
        let home = std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?;
        PathBuf::from(home).join(".cache")
    };
    Ok(base.join("holdfast/k8s"))
}

fn certificates(paths: &Paths, count: u8) -> Result<()> {
    let authority = Authority::new(&paths.run.join("authority"))?;
    let server = Subject { name: "kube-apiserver", organization: "kubernetes" };
    let names = ["10.200.0.1", "10.96.0.1", "127.0.0.1", "kubernetes.default.svc"];
    authority.issue("server", &server, &names)?;
    let admin = Subject { name: "admin", organization: "system:masters" };
    authority.issue("admin", &admin, &[])?;
    for number in 1..=count {
        let (name, address) = (format!("node{number}"), Node::address(number));
        let subject =
            Subject { name: &format!("system:node:{name}"), organization: "system:nodes" };
        authority.issue(&name, &subject, &[&name, &address])?;
    }
    Ok(())
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

//! A namespace of the cluster for one scenario, with its claims and pods.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{Cluster, items};
use crate::pods;
use crate::wait::until;

pub(crate) struct Space<'a> {
    pub(crate) cluster: &'a Cluster,
    name: String,
}

impl<'a> Space<'a> {
    pub(crate) fn new(cluster: &'a Cluster, name: &str) -> Result<Space<'a>> {
        let metadata = json!({ "name": name });
        cluster.apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata }))?;
        let space = Space { cluster, name: name.to_owned() };
        until("its service account is there", || {
            space.kubectl(&["get", "serviceaccount", "default"]).map(Some)
        })?;
        Ok(space)
    }

    pub(crate) fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.cluster.kubectl(&[&["--namespace", &self.name], words].concat())
    }

    pub(crate) fn get(&self, words: &[&str]) -> Result<Value> {
        self.cluster.get(&[&["--namespace", &self.name], words].concat())
    }

    /// Creates or changes a resource of this namespace.
    pub(crate) fn apply(&self, mut resource: Value) -> Result<()> {
        resource["metadata"]["namespace"] = json!(self.name);
        self.cluster.apply(&resource)
    }

    /// The same, for what an administrator of the whole cluster creates.
    pub(crate) fn exec(&self, pod: &str, script: &str) -> Result<String> {
        self.kubectl(&["exec", pod, "--", "sh", "-c", script])
    }

    pub(crate) fn logs(&self, pod: &str) -> Result<String> {
        self.kubectl(&["logs", pod])
    }

    /// Deletes a pod and waits for its end.
    pub(crate) fn delete_pod(&self, pod: &str) -> Result<()> {
        self.kubectl(&["delete", "pod", pod, "--wait=true"]).map(drop)
    }

    pub(crate) fn wait_running(&self, pod: &str) -> Result<()> {
        until(&format!("pod {pod} runs"), || {
            let found = self.get(&["pod", pod])?;
            Ok((found["status"]["phase"] == "Running").then_some(()))
        })
    }

    /// Waits until a pod has ended; the answer is what it said, if it ended well.
    pub(crate) fn wait_finished(&self, pod: &str) -> Result<String> {
        let phase = until(&format!("pod {pod} has ended"), || {
            let found = self.get(&["pod", pod])?;
            let phase = found["status"]["phase"].as_str().unwrap_or_default().to_owned();
            Ok(["Succeeded", "Failed"].contains(&&*phase).then_some(phase))
        })?;
        let log = self.logs(pod)?;
        ensure!(phase == "Succeeded", "pod {pod} failed and said: {log}");
        Ok(log)
    }

    /// Runs a pod to its end.
    pub(crate) fn run(&self, pod: Value) -> Result<String> {
        let name = pod["metadata"]["name"].as_str().context("a pod has a name")?.to_owned();
        self.apply(pod)?;
        let log = self.wait_finished(&name)?;
        self.delete_pod(&name)?;
        Ok(log)
    }

    /// The node of a pod.
    pub(crate) fn node_of(&self, pod: &str) -> Result<String> {
        let found = self.get(&["pod", pod])?;
        found["spec"]["nodeName"].as_str().map(str::to_owned).context("a pod has a node")
    }

    /// The name of another node than that.
    pub(crate) fn other_node(&self, than: &str) -> Result<String> {
        let mut names = self.cluster.nodes.iter().map(crate::node::Node::name);
        names.find(|name| *name != than).map(str::to_owned).context("there are several nodes")
    }

    /// The PersistentVolume of a claim.
    pub(crate) fn persistent_volume(&self, claim: &str) -> Result<String> {
        let found = self.get(&["persistentvolumeclaim", claim])?;
        let name = found["spec"]["volumeName"].as_str().filter(|name| !name.is_empty());
        name.map(str::to_owned).context("a claim that is used is bound")
    }

    /// What the control plane says about the volume of a claim.
    pub(crate) fn volume(&self, claim: &str) -> Result<Value> {
        let name = self.persistent_volume(claim)?;
        let id = name.strip_prefix("pvc-").context("a volume is named after its claim")?;
        self.cluster.holdfast(&["volume", "get", id])
    }

    /// The node that serves the volume of a claim.
    pub(crate) fn target(&self, claim: &str) -> Result<String> {
        let volume = self.volume(claim)?;
        let node = volume["status"]["target"]["node"].as_str();
        node.map(str::to_owned).with_context(|| format!("the volume has no target: {volume}"))
    }

    pub(crate) fn wait_in_sync(&self, claim: &str) -> Result<()> {
        until("all copies are in sync", || {
            Ok((self.volume(claim)?["status"]["state"] == "online").then_some(()))
        })
    }

    /// A claim, and a pod `writer` that writes to it until it is deleted.
    pub(crate) fn start_writer(&self, class: &str, node: Option<&str>) -> Result<()> {
        self.apply(pods::claim("data", class, "512Mi"))?;
        let mut pod = pods::pod("writer", "data", pods::WRITER);
        if let Some(node) = node {
            pods::place(&mut pod, node);
        }
        self.apply(pod)?;
        until("the pod writes", || Ok((self.written("writer")? >= 5).then_some(())))
    }

    /// How many files a writer has written so far.
    pub(crate) fn written(&self, pod: &str) -> Result<usize> {
        Ok(self.logs(pod)?.lines().filter(|line| line.starts_with("wrote")).count())
    }

    /// A writer goes on where it was: it has not even been restarted.
    pub(crate) fn goes_on(&self, before: usize) -> Result<()> {
        let after = before + 10;
        until("the pod goes on writing", || Ok((self.written("writer")? >= after).then_some(())))?;
        let pod = self.get(&["pod", "writer"])?;
        let state = &pod["status"]["containerStatuses"][0];
        ensure!(state["restartCount"] == 0 && state["state"]["running"].is_object(), "{state}");
        Ok(())
    }

    /// Everything that a writer was told is on its volume is there.
    pub(crate) fn check_in(&self, pod: &str) -> Result<()> {
        let written = self.written(pod)?;
        let intact: usize = self.exec(pod, pods::CHECK)?.trim().parse().context("a number")?;
        ensure!(intact >= written, "{written} files were written, and {intact} are intact");
        eprintln!("{intact} files are intact in the pod that wrote them");
        Ok(())
    }

    /// Another pod, on this node, finds as many files as were written.
    pub(crate) fn check_on(&self, node: &str, written: usize) -> Result<()> {
        let mut pod = pods::pod("reader", "data", pods::CHECK);
        pods::place(&mut pod, node);
        let intact: usize = self.run(pod)?.trim().parse().context("a number")?;
        ensure!(intact >= written, "{written} files were written, and {intact} are intact");
        eprintln!("{intact} files are intact in a pod on {node}");
        Ok(())
    }

    /// Deletes everything, and waits until its volumes are gone from the control plane too.
    pub(crate) fn end(self) -> Result<()> {
        self.cluster.kubectl(&["delete", "namespace", &self.name, "--wait=false"])?;
        until("the namespace and its volumes are gone", || {
            let volumes = self.cluster.get(&["persistentvolumes"])?;
            let mine = |volume: &&Value| volume["spec"]["claimRef"]["namespace"] == *self.name;
            let left = items(&volumes).iter().filter(mine).count();
            let there = self.cluster.get(&["namespaces"])?;
            let there = items(&there).iter().any(|space| space["metadata"]["name"] == *self.name);
            Ok((left == 0 && !there).then_some(()))
        })
    }
}

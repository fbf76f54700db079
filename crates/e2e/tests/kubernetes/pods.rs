//! Claims and pods, as people write them.

use serde_json::{Value, json};

/// What a writer does: a file of random bytes again and again, each with its checksum, and a line
/// when both are on the volume.
pub(crate) const WRITER: &str = "
    n=$(ls /data | grep -c '^file' || true)
    while :; do
        dd if=/dev/urandom of=/data/file.$n bs=64k count=1 2> /dev/null || exit 1
        (cd /data && sha256sum file.$n >> sums && sync -f sums) || exit 1
        echo wrote $n
        n=$((n + 1))
        sleep 0.2
    done";

/// What a reader does: compare everything with its checksum, and print how many files are intact.
pub(crate) const CHECK: &str =
    "cd /data && sha256sum -c sums > /tmp/sums; ! grep -v ': OK$' /tmp/sums && wc -l < /tmp/sums";

/// A claim of a file system, to be changed further.
pub(crate) fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name },
        "spec": {
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": size } },
        },
    })
}

/// A pod that runs a script with the claim mounted in `/data`.
pub(crate) fn pod(name: &str, claim: &str, script: &str) -> Value {
    let spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "shell",
            "image": "holdfast.test/busybox:1",
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        }],
        "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": claim } }],
    });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name }, "spec": spec })
}

/// The same with a block device at `/dev/data`.
pub(crate) fn block_pod(name: &str, claim: &str, script: &str) -> Value {
    let mut pod = pod(name, claim, script);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeMounts"] = json!([]);
    container["volumeDevices"] = json!([{ "name": "data", "devicePath": "/dev/data" }]);
    pod
}

/// Lets the scheduler run a pod on this node only.
pub(crate) fn place(pod: &mut Value, node: &str) {
    pod["spec"]["nodeSelector"] = json!({ "kubernetes.io/hostname": node });
}

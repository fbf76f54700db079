//! A control plane in memory with a node, a pool and hosts.

use api::rest::Control as _;
use api::rest::fake::Fake;
use model::{Heartbeat, HostAddress, HostName, NodeAddress, NodeName, Nqn, PoolSpec, Timestamp};

const INSTANCE: &str = "00000000-0000-4000-8000-000000000001";

pub(crate) async fn control_plane() -> Fake {
    let fake = Fake::at(Timestamp::from_millis(1_794_778_258_000));
    let name: NodeName = "n1".parse().unwrap();
    let address = NodeAddress {
        api: ([10, 0, 0, 1], 1).into(),
        data: vec![([10, 0, 0, 1], 2).into()],
        nqn: Nqn::node(&name).unwrap(),
    };
    let instance = INSTANCE.parse().unwrap();
    let beat = Heartbeat { instance, version: "1".to_owned(), address, told: None };
    fake.node_heartbeat(name.clone(), beat).await.unwrap();
    let spec = PoolSpec {
        node: name,
        disks: vec!["/dev/sdb".parse().unwrap()],
        uuid: None,
        import: false,
        exported: false,
        cluster_size: None,
        labels: [].into(),
        cordons: [].into(),
    };
    fake.put_pool("pool-1".parse().unwrap(), spec).await.unwrap();
    fake
}

pub(crate) async fn add_host(fake: &Fake, name: &str) {
    let host: HostName = name.parse().unwrap();
    let nqn = format!("nqn.2026-11.io.holdfast:host:{name}");
    let address: HostAddress = serde_json::from_value(serde_json::json!({ "nqn": nqn })).unwrap();
    let instance = INSTANCE.parse().unwrap();
    let beat = Heartbeat { instance, version: "1".to_owned(), address, told: None };
    fake.host_heartbeat(host, beat).await.unwrap();
}

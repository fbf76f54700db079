//! etcd under a control plane that makes volumes: its leader moves, members die, one is cut off.

use e2e::etcd::{EtcdCluster, MEMBERS};

use super::rig::{World, until};

async fn lead(etcd: &EtcdCluster, nth: usize) {
    until("the leader has moved", async || etcd.lead(nth).is_ok_and(|moved| moved)).await;
}

#[tokio::test]
async fn volumes_are_made_while_etcd_loses_its_leader_its_members_and_its_cable() {
    let mut etcd = EtcdCluster::start().await.unwrap();
    let client = etcd.client().await.unwrap();
    let mut world = World::start(&etcd.endpoints(), client, (1, 2)).await;
    world.begin_creating(4, 2);
    world.until_more(10).await;
    for nth in 0..MEMBERS {
        lead(&etcd, nth).await;
        world.until_more(10).await;
    }
    for nth in 0..MEMBERS {
        etcd.kill(nth).unwrap();
        world.until_more(10).await;
        etcd.restart(nth).unwrap();
        world.until_more(5).await;
    }
    // The one that leads is cut off, and does not know.
    lead(&etcd, MEMBERS - 1).await;
    etcd.cut().unwrap();
    world.until_more(10).await;
    etcd.mend().unwrap();
    world.until_more(10).await;
    // All of it at once.
    for nth in 0..MEMBERS {
        etcd.kill(nth).unwrap();
    }
    for nth in 0..MEMBERS {
        etcd.restart(nth).unwrap();
    }
    world.until_more(10).await;
    world.check(0).await;
}

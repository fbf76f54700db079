//! Looks for orphans, and carries out what is decided about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::rest::{Control, VolumeAction};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::{WatchStreamExt as _, watcher};
use model::{LabelValue, Volume, VolumeId};
use tokio::sync::Notify;
use tonic::{Request, Status};

use super::Cluster;
use super::attachment::handle;
use super::orphans::{Brake, CLUSTER, GRACE, Known, Listed, Orphans, Plan, Sight, USED};
use crate::Controller;
use crate::proto::DeleteVolumeRequest;
use crate::proto::controller_server::Controller as Service;

/// Between looks when nothing happens.
const PERIOD: Duration = Duration::from_mins(10);
/// Between a change and the look at it, so that many changes are one look.
const DEBOUNCE: Duration = Duration::from_secs(2);

/// What may be chosen about orphans.
#[derive(Clone, Debug)]
pub struct OrphanConfig {
    /// The cluster whose volumes are looked at.
    pub cluster: LabelValue,
    /// How many orphans at once are deleted without an operator.
    pub most: usize,
}

/// Why a look was not possible.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("the API server: {0}")]
    Api(#[from] kube::Error),
    #[error("the control plane: {}", .0.message())]
    Control(Status),
    #[error("the API server numbers its lists in no way that is known: {0:?}")]
    Revision(Option<String>),
}

/// Deletes volumes of a cluster that nobody in it knows any more, until `stop` ends. Run one of
/// these in a cluster.
pub async fn collect_orphans<C: Control>(
    cluster: &Cluster,
    controller: Arc<Controller<C>>,
    config: OrphanConfig,
    stop: impl Future<Output = ()>,
) {
    let mut collector = Collector::new(cluster, controller, config);
    let changed = Notify::new();
    // Only a hint: what is so is listed.
    let volumes: Api<PartialObjectMeta<PersistentVolume>> = Api::all(cluster.client.clone());
    let watched = watcher(volumes, watcher::Config::default());
    let watching = watched.default_backoff().for_each(|_| {
        changed.notify_one();
        std::future::ready(())
    });
    let began = Instant::now();
    let looking = async {
        loop {
            let next = collector.look(began.elapsed()).await;
            tokio::select! {
                () = tokio::time::sleep(next) => {}
                () = changed.notified() => tokio::time::sleep(DEBOUNCE).await,
            }
        }
    };
    tokio::select! {
        () = stop => {}
        () = watching => {}
        () = looking => {}
    }
}

struct Collector<C> {
    volumes: Api<PersistentVolume>,
    claims: Api<PersistentVolumeClaim>,
    controller: Arc<Controller<C>>,
    config: OrphanConfig,
    orphans: Orphans,
}

impl<C: Control> Collector<C> {
    fn new(
        cluster: &Cluster,
        controller: Arc<Controller<C>>,
        config: OrphanConfig,
    ) -> Collector<C> {
        Collector {
            volumes: Api::all(cluster.client.clone()),
            claims: Api::all(cluster.client.clone()),
            controller,
            config,
            orphans: Orphans::default(),
        }
    }

    /// Looks, decides and acts once; when to look again.
    async fn look(&mut self, now: Duration) -> Duration {
        let seen = match self.observe().await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(%error, "cannot look for orphaned volumes; nothing is deleted");
                return GRACE;
            }
        };
        let (volumes, listed) = seen;
        let known: Vec<Known> = volumes.values().map(known).collect();
        let plan = self.orphans.look(now, &known, (&listed, self.config.most));
        self.carry_out(&plan, &volumes).await;
        if plan.is_waiting || plan.held.is_some() { GRACE } else { PERIOD }
    }

    /// Volumes first: what is made after that is in no list.
    async fn observe(&self) -> Result<(BTreeMap<VolumeId, Volume>, Listed), LookError> {
        let (volumes, _) =
            self.controller.some_volumes(None, None).await.map_err(LookError::Control)?;
        let is_ours =
            |volume: &Volume| volume.spec().labels.get(CLUSTER) == Some(&self.config.cluster);
        let volumes = volumes.into_iter().filter(is_ours);
        let volumes = volumes.map(|volume| (*volume.id(), volume)).collect();
        let all = ListParams::default();
        let claims = self.claims.list_metadata(&all).await?;
        let claims: BTreeSet<_> =
            claims.into_iter().filter_map(|claim| claim.metadata.uid?.parse().ok()).collect();
        let persistent = self.volumes.list(&all).await?;
        let text = persistent.metadata.resource_version.clone();
        let revision = text.as_deref().and_then(|text| text.parse().ok());
        let revision = revision.ok_or(LookError::Revision(text))?;
        let named = persistent.iter().filter_map(|volume| {
            let policy = volume.spec.as_ref()?.persistent_volume_reclaim_policy.as_deref();
            Some((handle(volume)?.parse().ok()?, policy == Some("Delete")))
        });
        Ok((volumes, Listed { revision, volumes: named.collect(), claims }))
    }

    async fn carry_out(&self, plan: &Plan, volumes: &BTreeMap<VolumeId, Volume>) {
        for (id, sight) in &plan.marks {
            if *sight == Sight::Kept {
                tracing::error!(
                    volume = %id,
                    "its PersistentVolume was seen later than what the API server knows: the \
                     cluster was restored from an older backup; the volume is kept until a \
                     PersistentVolume names it again or somebody runs: holdfast volume delete {id}"
                );
            }
            if let Some(volume) = volumes.get(id)
                && let Err(status) = self.mark(volume, *sight).await
            {
                let error = status.message();
                tracing::warn!(volume = %id, error, "cannot label the volume; will try again");
            }
        }
        if let Some((brake, held)) = &plan.held {
            let why = match brake {
                Brake::EmptyList => "no PersistentVolume names any volume of this driver",
                Brake::TooMany => "more volumes are orphans at once than may be deleted",
            };
            let volumes: Vec<String> = held.iter().map(ToString::to_string).collect();
            tracing::error!(
                why,
                volumes = volumes.join(" "),
                "orphaned volumes are kept: see whether the cluster has lost its \
                 PersistentVolumes; if not, delete them with holdfast volume delete, or raise \
                 --most-orphans"
            );
        }
        for id in &plan.delete {
            let request =
                DeleteVolumeRequest { volume_id: id.to_string(), ..DeleteVolumeRequest::default() };
            match Service::delete_volume(&*self.controller, Request::new(request)).await {
                Ok(_) => tracing::warn!(volume = %id, "deleted: no PersistentVolume names it"),
                Err(status) => {
                    let error = status.message();
                    tracing::warn!(volume = %id, error, "the orphan stays; will try again");
                }
            }
        }
    }

    /// Remembers what the PersistentVolume of a volume said.
    async fn mark(&self, volume: &Volume, sight: Sight) -> Result<(), Status> {
        let mut spec = volume.spec().clone();
        spec.labels = sight.write(spec.labels).map_err(crate::status::invalid)?;
        let action = VolumeAction::Modify { spec: Box::new(spec) };
        let control = self.controller.control();
        let changed = control.change_volume(*volume.id(), action, Some(volume.generation())).await;
        changed.map(|_| ()).map_err(crate::status::status)
    }
}

fn known(volume: &Volume) -> Known {
    let status = volume.status.as_ref();
    let target = status.and_then(|status| status.target.as_ref());
    let has_hosts = target.is_some_and(|target| !target.hosts.is_empty());
    // One that nothing was seen of yet may have both.
    let has_snapshots = status.is_none_or(|status| status.snapshots > 0);
    let labels = &volume.spec().labels;
    Known {
        id: *volume.id(),
        sight: Sight::read(labels),
        was_used: labels.contains_key(USED),
        is_in_use: has_hosts || has_snapshots,
    }
}

#[cfg(test)]
mod tests {
    use api::rest::fake::Fake;
    use serde_json::json;

    use super::super::testing::{self, ApiServer};
    use super::*;
    use crate::ControllerConfig;
    use crate::proto::CreateVolumeRequest;
    use crate::testing::{add_host, control_plane};

    const CLUSTER_ID: &str = "0b5e86f0-1111-4222-8333-444455556666";

    struct World {
        server: ApiServer,
        fake: Arc<Fake>,
        controller: Arc<Controller<Fake>>,
        collector: Collector<Fake>,
    }

    fn path(nth: u8) -> String {
        format!("/api/v1/persistentvolumes/pv-{nth}")
    }

    fn uuid(nth: u8) -> String {
        format!("00000000-0000-4000-8000-0000000000{nth:02}")
    }

    /// Volumes of a cluster, each with its PersistentVolume.
    async fn world(volumes: &[u8]) -> World {
        let fake = Arc::new(control_plane().await);
        add_host(&fake, "host-1").await;
        let cluster: LabelValue = CLUSTER_ID.parse().unwrap();
        let config =
            ControllerConfig { cluster: Some(cluster.clone()), ..ControllerConfig::default() };
        let controller = Arc::new(Controller::new(Arc::clone(&fake), config));
        let server = ApiServer::default();
        for nth in volumes {
            let request = CreateVolumeRequest {
                name: format!("pvc-{}", uuid(*nth)),
                volume_capabilities: vec![testing::capability()],
                ..CreateVolumeRequest::default()
            };
            Service::create_volume(&*controller, Request::new(request)).await.unwrap();
            server.put(&path(*nth), testing::volume(&format!("pv-{nth}"), &uuid(*nth)));
        }
        let config = OrphanConfig { cluster, most: 3 };
        let collector = Collector::new(&server.cluster(), Arc::clone(&controller), config);
        World { server, fake, controller, collector }
    }

    impl World {
        /// Looks at a moment.
        async fn look(&mut self, minute: u32) {
            self.collector.look(GRACE * minute).await;
        }

        /// Looks, lets the grace go by, and looks again.
        async fn look_twice(&mut self, minute: u32) {
            self.look(minute).await;
            self.look(minute + 1).await;
        }

        async fn exists(&self, nth: u8) -> bool {
            self.fake.volume(uuid(nth).parse().unwrap()).await.is_ok()
        }
    }

    #[tokio::test]
    async fn a_volume_whose_persistent_volume_is_gone_is_deleted_and_others_stay() {
        let mut world = world(&[1, 2, 3]).await;
        let mut retained = testing::volume("pv-2", &uuid(2));
        retained["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        world.server.put(&path(2), retained);
        let by_hand = model::VolumeSpec::new(model::Size::gib(1), 1);
        world.fake.put_volume(uuid(9).parse().unwrap(), by_hand).await.unwrap();
        world.look(0).await;
        world.server.remove(&path(1));
        world.server.remove(&path(2));
        world.look_twice(1).await;
        assert!(!world.exists(1).await);
        assert!(world.exists(2).await, "its policy was Retain");
        assert!(world.exists(3).await, "its PersistentVolume is there");
        assert!(world.exists(9).await, "no cluster made it");
    }

    #[tokio::test]
    async fn without_an_answer_of_the_api_server_nothing_is_deleted() {
        let mut world = world(&[1, 2]).await;
        world.look(0).await;
        world.server.remove(&path(1));
        world.look(1).await;
        world.server.set_down(true);
        world.look(3).await;
        assert!(world.exists(1).await);
        world.server.set_down(false);
        world.look(4).await;
        assert!(!world.exists(1).await, "it was an orphan before, and is one still");
    }

    #[tokio::test]
    async fn a_cluster_without_persistent_volumes_or_from_an_older_backup_deletes_nothing() {
        let mut lost = world(&[1, 2]).await;
        lost.look(0).await;
        for nth in [1, 2] {
            lost.server.remove(&path(nth));
        }
        lost.look_twice(1).await;
        assert!(lost.exists(1).await && lost.exists(2).await, "the list is empty");

        let mut restored = world(&[1, 2]).await;
        restored.look(0).await;
        restored.server.remove(&path(1));
        restored.server.set_revision(1);
        restored.look_twice(1).await;
        restored.server.set_revision(1000);
        restored.look_twice(3).await;
        assert!(restored.exists(1).await, "the API server forgot it");
    }

    #[tokio::test]
    async fn one_that_never_had_a_persistent_volume_goes_unless_a_node_got_it() {
        for used in [false, true] {
            let mut world = world(&[1, 2]).await;
            world.server.remove(&path(1));
            if used {
                testing::publish(&world.controller, &uuid(1), "host-1").await;
                testing::unpublish(&world.controller, &uuid(1), "host-1").await;
            }
            world.look_twice(1).await;
            assert_eq!(world.exists(1).await, used);
        }
    }

    #[tokio::test]
    async fn one_that_a_claim_waits_for_stays() {
        let mut world = world(&[1, 2]).await;
        world.server.remove(&path(1));
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "name": "data", "namespace": "shop", "uid": uuid(1) },
        });
        world.server.put("/api/v1/persistentvolumeclaims/data", claim);
        world.look_twice(1).await;
        assert!(world.exists(1).await);
    }
}

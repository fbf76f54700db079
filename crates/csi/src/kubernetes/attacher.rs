//! Carries out what VolumeAttachments need: calls of the controller, patches of the attachment.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::rest::Control;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment, VolumeError};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{
    Action as Requeue, Config, Controller as Reconciler, Error as ReconcilerError,
};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tonic::{Code, Request, Status};

use super::Cluster;
use super::attachment::{Action, FINALIZER, HANDLE, NODE_ID, Observed, decide};
use super::attachment::{is_deleted, is_settled};
use crate::Controller;
use crate::proto::controller_server::Controller as Service;
use crate::proto::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};

/// Attachments that are worked on at once.
const CONCURRENCY: u16 = 10;
/// After the first failure; it doubles with each further one.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest wait after a failure.
const LONGEST_DELAY: Duration = Duration::from_mins(1);

/// Follows the VolumeAttachments of a cluster, until `stop` ends. Run one of these in a cluster.
pub async fn run_attacher<C: Control>(
    cluster: &Cluster,
    controller: Arc<Controller<C>>,
    stop: impl Future<Output = ()>,
) {
    let attacher = Arc::new(Attacher::new(cluster, controller));
    let attachments = attacher.attachments.clone();
    let reconciler = Reconciler::new(attachments, watcher::Config::default())
        .with_config(Config::default().concurrency(CONCURRENCY));
    tracing::info!("following VolumeAttachments");
    let following = reconciler.run(reconcile, never, attacher).for_each(|done| {
        match done {
            // One that was deleted while it waited to be looked at again needs nothing.
            Ok(_) | Err(ReconcilerError::ObjectNotFound(_)) => {}
            Err(error) => {
                tracing::warn!(%error, "VolumeAttachments cannot be followed; trying again");
            }
        }
        std::future::ready(())
    });
    tokio::select! {
        () = stop => {}
        () = following => {}
    }
}

async fn reconcile<C: Control>(
    attachment: Arc<VolumeAttachment>,
    attacher: Arc<Attacher<C>>,
) -> Result<Requeue, Infallible> {
    let wait = attacher.settle(&attachment).await;
    Ok(wait.map_or_else(Requeue::await_change, Requeue::requeue))
}

/// Failures are requeued by what reconciles; it never fails itself.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the controller hands a reference")]
fn never<C>(_: Arc<VolumeAttachment>, error: &Infallible, _: Arc<Attacher<C>>) -> Requeue {
    match *error {}
}

/// Why an attachment is not settled.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The API server refused, or could not be asked.
    #[error("the API server: {0}")]
    Api(#[from] kube::Error),
    /// The volume could not be published or unpublished.
    #[error("{}", .0.message())]
    Call(Status),
}

/// When an attachment that failed is tried again.
#[derive(Clone, Copy, Debug)]
struct Delay {
    failures: u32,
    until: Instant,
    /// What was being done; the other thing may be tried at once.
    detaching: bool,
}

struct Attacher<C> {
    attachments: Api<VolumeAttachment>,
    volumes: Api<PersistentVolume>,
    nodes: Api<CSINode>,
    controller: Arc<Controller<C>>,
    delays: Mutex<BTreeMap<String, Delay>>,
}

impl<C: Control> Attacher<C> {
    fn new(cluster: &Cluster, controller: Arc<Controller<C>>) -> Attacher<C> {
        Attacher {
            attachments: Api::all(cluster.client.clone()),
            volumes: Api::all(cluster.client.clone()),
            nodes: Api::all(cluster.client.clone()),
            controller,
            delays: Mutex::default(),
        }
    }

    fn delays(&self) -> MutexGuard<'_, BTreeMap<String, Delay>> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what an attachment needs; after which time it is to be looked at again.
    async fn settle(&self, seen: &VolumeAttachment) -> Option<Duration> {
        let name = seen.name_any();
        let detaching = is_deleted(seen);
        if is_settled(seen) {
            self.delays().remove(&name);
            return None;
        }
        // What we wrote ourselves about a failure is no reason to try again at once.
        let delay = self.delays().get(&name).copied().filter(|it| it.detaching == detaching);
        let left = delay.map(|it| it.until.saturating_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return Some(left);
        }
        let failure = loop {
            match self.step(&name).await {
                Ok(true) => {
                    self.delays().remove(&name);
                    return None;
                }
                Ok(false) => {}
                Err(failure) => break failure,
            }
        };
        let failures = delay.map_or(0, |it| it.failures) + 1;
        let wait = FIRST_DELAY * 2_u32.saturating_pow(failures.min(7) - 1);
        let wait = wait.min(LONGEST_DELAY);
        tracing::warn!(attachment = name, detaching, error = %failure, ?wait, "will try again");
        let until = Instant::now() + wait;
        self.delays().insert(name, Delay { failures, until, detaching });
        Some(wait)
    }

    /// Looks, decides and acts once. Whether that was all.
    async fn step(&self, name: &str) -> Result<bool, Failure> {
        // What the watch has shown may be old: of a name there may be another attachment by now.
        let Some(attachment) = self.attachments.get_opt(name).await? else { return Ok(true) };
        if is_settled(&attachment) {
            return Ok(true);
        }
        let volume = match &attachment.spec.source.persistent_volume_name {
            Some(name) => self.volumes.get_opt(name).await?,
            None => None,
        };
        let node = self.nodes.get_opt(&attachment.spec.node_name).await?;
        let (volume, node) = (volume.as_ref(), node.as_ref());
        let result = match decide(&Observed { attachment: &attachment, volume, node }) {
            Action::Nothing => return Ok(true),
            Action::Record { handle, node_id } => {
                self.record(&attachment, (handle, node_id)).await?;
                return Ok(false);
            }
            Action::Publish(request) => self.publish(&attachment, *request).await,
            Action::Unpublish(request) => self.unpublish(&attachment, request).await,
            Action::Blocked(why) => Err(Failure::Call(Status::failed_precondition(why))),
        };
        if let Err(Failure::Call(status)) = &result {
            self.report(&attachment, status).await?;
        }
        result.map(|()| true)
    }

    async fn record(
        &self,
        attachment: &VolumeAttachment,
        (handle, node_id): (String, String),
    ) -> Result<(), Failure> {
        let mut finalizers = attachment.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|name| name == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
        }
        let metadata = json!({
            // A list is replaced as a whole: by somebody who has read it as it is.
            "resourceVersion": attachment.metadata.resource_version,
            "finalizers": finalizers,
            "annotations": { HANDLE: handle, NODE_ID: node_id },
        });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.attachments.patch(&attachment.name_any(), &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn publish(
        &self,
        attachment: &VolumeAttachment,
        request: ControllerPublishVolumeRequest,
    ) -> Result<(), Failure> {
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        let published =
            Service::controller_publish_volume(&*self.controller, Request::new(request)).await;
        let published = published.map_err(Failure::Call)?.into_inner();
        let status = json!({
            "attached": true,
            "attachmentMetadata": published.publish_context,
            "attachError": null,
        });
        self.write_status(attachment, status).await?;
        tracing::info!(attachment = attachment.name_any(), volume, node, "attached");
        Ok(())
    }

    async fn unpublish(
        &self,
        attachment: &VolumeAttachment,
        request: ControllerUnpublishVolumeRequest,
    ) -> Result<(), Failure> {
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        let unpublished =
            Service::controller_unpublish_volume(&*self.controller, Request::new(request)).await;
        unpublished.map_err(Failure::Call)?;
        let status = json!({ "attached": false, "attachmentMetadata": null, "detachError": null });
        let now = self.write_status(attachment, status).await?;
        let finalizers: Vec<&String> =
            now.metadata.finalizers.iter().flatten().filter(|name| *name != FINALIZER).collect();
        let metadata = json!({
            "resourceVersion": now.metadata.resource_version,
            "finalizers": finalizers,
        });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.attachments.patch(&attachment.name_any(), &PatchParams::default(), &patch).await?;
        tracing::info!(attachment = attachment.name_any(), volume, node, "detached");
        Ok(())
    }

    /// Says in the attachment why it is not settled; the same thing once.
    async fn report(&self, attachment: &VolumeAttachment, status: &Status) -> Result<(), Failure> {
        let said = attachment.status.as_ref();
        let (field, said) = if is_deleted(attachment) {
            ("detachError", said.and_then(|said| said.detach_error.as_ref()))
        } else {
            ("attachError", said.and_then(|said| said.attach_error.as_ref()))
        };
        if said.and_then(|said| said.message.as_deref()) == Some(status.message()) {
            return Ok(());
        }
        let error = VolumeError {
            // Schedulers count a node as full by this one.
            error_code: Some(i32::from(status.code())).filter(|_| status.code() != Code::Ok),
            message: Some(status.message().to_owned()),
            time: Some(Time(Timestamp::now())),
        };
        // Whoever made the first status of it must say whether it is attached.
        let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        self.write_status(attachment, json!({ "attached": attached, field: error })).await?;
        Ok(())
    }

    async fn write_status(
        &self,
        attachment: &VolumeAttachment,
        status: Value,
    ) -> Result<VolumeAttachment, Failure> {
        let patch = Patch::Merge(json!({ "status": status }));
        let name = attachment.name_any();
        Ok(self.attachments.patch_status(&name, &PatchParams::default(), &patch).await?)
    }
}

#[cfg(test)]
mod tests {
    use api::rest::fake::Fake;
    use model::{VolumeId, VolumeSpec};

    use super::super::testing::{self, ApiServer, from};
    use super::*;
    use crate::ControllerConfig;
    use crate::testing::{add_host, control_plane};

    const ID: &str = "5f0c54a1-9d6e-4b6a-8a53-0c1f4b7f8a10";
    const VA: &str = "/apis/storage.k8s.io/v1/volumeattachments/va-1";
    const PV: &str = "/api/v1/persistentvolumes/pv-1";
    const NODE: &str = "/apis/storage.k8s.io/v1/csinodes/node-1";

    struct World {
        server: ApiServer,
        fake: Arc<Fake>,
        attacher: Attacher<Fake>,
    }

    /// A cluster with a volume, a node, and an attachment of the one to the other.
    async fn world() -> World {
        let fake = Arc::new(control_plane().await);
        add_host(&fake, "host-1").await;
        let id: VolumeId = ID.parse().unwrap();
        fake.put_volume(id, VolumeSpec::new(model::Size::gib(1), 1)).await.unwrap();
        let server = ApiServer::default();
        server.put(PV, testing::volume("pv-1", ID));
        server.put(NODE, testing::node("node-1", "host-1"));
        server.put(VA, testing::attachment("va-1", "pv-1", "node-1"));
        let controller = Controller::new(Arc::clone(&fake), ControllerConfig::default());
        let attacher = Attacher::new(&server.cluster(), Arc::new(controller));
        World { server, fake, attacher }
    }

    impl World {
        async fn settle(&self) -> Option<Duration> {
            let seen: VolumeAttachment = from(self.server.get(VA).unwrap());
            Box::pin(self.attacher.settle(&seen)).await
        }

        fn delete(&self) {
            let mut object = self.server.get(VA).unwrap();
            object["metadata"]["deletionTimestamp"] = json!("2026-11-18T00:00:00Z");
            self.server.put(VA, object);
        }

        async fn hosts(&self) -> usize {
            let volume = self.fake.volume(ID.parse().unwrap()).await.unwrap();
            volume.status.and_then(|status| status.target).map_or(0, |target| target.hosts.len())
        }
    }

    #[tokio::test]
    async fn an_attachment_is_published_and_goes_when_it_is_unpublished() {
        let world = world().await;
        assert_eq!(world.settle().await, None);
        let attached = world.server.get(VA).unwrap();
        assert_eq!(attached["status"]["attached"], true);
        assert!(attached["status"]["attachmentMetadata"]["nqn"].is_string(), "{attached}");
        assert_eq!(attached["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(world.hosts().await, 1);
        let patches = world.server.patches();
        assert_eq!(world.settle().await, None);
        assert_eq!(world.server.patches(), patches, "nothing is written again");

        // What was recorded is enough to undo it.
        world.server.remove(PV);
        world.server.remove(NODE);
        world.delete();
        assert_eq!(world.settle().await, None);
        assert_eq!(world.server.get(VA), None);
        assert_eq!(world.hosts().await, 0);
    }

    #[tokio::test]
    async fn a_failure_is_reported_once_and_tried_again_later() {
        let world = world().await;
        world.server.remove(NODE);
        assert_eq!(world.settle().await, Some(FIRST_DELAY));
        let error = world.server.get(VA).unwrap()["status"]["attachError"].clone();
        assert!(error["message"].as_str().unwrap().contains("is its plugin running"), "{error}");
        assert_eq!(error["errorCode"], i32::from(Code::FailedPrecondition));
        let patches = world.server.patches();
        let left = world.settle().await.unwrap();
        assert!(left <= FIRST_DELAY, "its own report does not wake it: {left:?}");
        assert_eq!(world.server.patches(), patches);
        // The other direction does not wait.
        world.delete();
        assert_eq!(world.settle().await, None);
    }

    #[tokio::test]
    async fn what_cannot_be_unpublished_keeps_its_finalizer() {
        let world = world().await;
        world.settle().await;
        world.delete();
        world.fake.set_busy(ID.parse().unwrap(), true);
        assert_eq!(world.settle().await, Some(FIRST_DELAY));
        let stays = world.server.get(VA).unwrap();
        assert_eq!(stays["metadata"]["finalizers"], json!([FINALIZER]));
        assert!(stays["status"]["detachError"]["message"].is_string(), "{stays}");
        assert_eq!(stays["status"]["attached"], true);
    }

    #[tokio::test]
    async fn an_api_server_that_is_away_changes_nothing() {
        let world = world().await;
        let seen: VolumeAttachment = from(world.server.get(VA).unwrap());
        world.server.set_down(true);
        assert_eq!(world.attacher.settle(&seen).await, Some(FIRST_DELAY));
        assert_eq!(world.hosts().await, 0);
    }
}

//! An API server in memory: objects by path, read, listed and patched.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use api::rest::fake::Fake;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Cluster;
use crate::Controller;
use crate::proto::controller_server::Controller as Service;
use crate::proto::volume_capability::access_mode::Mode;
use crate::proto::volume_capability::{AccessMode, AccessType, MountVolume};
use crate::proto::{
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability,
};

/// An object of Kubernetes, from its text.
pub(super) fn from<T: DeserializeOwned>(text: Value) -> T {
    serde_json::from_value(text).unwrap()
}

pub(super) fn volume(name: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {
                "driver": crate::DRIVER_NAME, "volumeHandle": handle, "fsType": "xfs",
                "volumeAttributes": { "fsType": "xfs" },
            },
        },
    })
}

pub(super) fn node(name: &str, id: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": name },
        "spec": { "drivers": [
            { "name": "other", "nodeID": "x" }, { "name": crate::DRIVER_NAME, "nodeID": id },
        ] },
    })
}

pub(super) fn attachment(name: &str, volume: &str, node: &str) -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": { "name": name, "resourceVersion": "1" },
        "spec": {
            "attacher": crate::DRIVER_NAME, "nodeName": node,
            "source": { "persistentVolumeName": volume },
        },
    })
}

/// Objects by the path that they are read at.
#[derive(Clone, Default)]
pub(super) struct ApiServer(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    revision: u64,
    is_down: bool,
    patches: usize,
}

impl ApiServer {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, path: &str, mut object: Value) {
        let mut state = self.state();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        state.objects.insert(path.to_owned(), object);
    }

    pub(super) fn remove(&self, path: &str) {
        let mut state = self.state();
        state.revision += 1;
        state.objects.remove(path);
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.state().objects.get(path).cloned()
    }

    /// The store of the server has this revision now.
    pub(super) fn set_revision(&self, revision: u64) {
        self.state().revision = revision;
    }

    pub(super) fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// How many changes were asked for.
    pub(super) fn patches(&self) -> usize {
        self.state().patches
    }

    pub(super) fn cluster(&self) -> Cluster {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        Cluster { client: kube::Client::new(service, "default") }
    }

    async fn answer(&self, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let path = head.uri.path().to_owned();
        let (code, answer) = self.state().answer(&head.method, &path, &body);
        let body = Body::from(serde_json::to_vec(&answer).unwrap());
        Response::builder().status(code).body(body).unwrap()
    }
}

fn failed(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16(),
    });
    (code, status)
}

impl State {
    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (StatusCode, Value) {
        if self.is_down {
            return failed(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
        }
        let is_list = path.ends_with('s') && !self.objects.contains_key(path);
        if *method == Method::GET && is_list {
            let prefix = format!("{path}/");
            let items: Vec<&Value> = self
                .objects
                .range(prefix.clone()..)
                .take_while(|(at, _)| at.starts_with(&prefix))
                .map(|(_, object)| object)
                .collect();
            let revision = self.revision.to_string();
            let list = json!({
                "apiVersion": "v1", "kind": "List",
                "metadata": { "resourceVersion": revision }, "items": items,
            });
            return (StatusCode::OK, list);
        }
        let object = path.trim_end_matches("/status");
        let Some(found) = self.objects.get_mut(object) else {
            return failed(StatusCode::NOT_FOUND, "NotFound");
        };
        if *method == Method::PATCH {
            let patch: Value = serde_json::from_slice(body).unwrap();
            let wanted = &patch["metadata"]["resourceVersion"];
            if !wanted.is_null() && *wanted != found["metadata"]["resourceVersion"] {
                return failed(StatusCode::CONFLICT, "Conflict");
            }
            self.patches += 1;
            self.revision += 1;
            merge(found, &patch);
            found["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            let now = found.clone();
            let is_going = !now["metadata"]["deletionTimestamp"].is_null();
            let is_free = now["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
            if is_going && is_free {
                self.objects.remove(object);
            }
            return (StatusCode::OK, now);
        }
        (StatusCode::OK, found.clone())
    }
}

/// A merge patch, as RFC 7396 has it.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *into = patch.clone();
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (name, value) in fields {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut into[name.as_str()], value);
        }
    }
}

pub(super) fn capability() -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

pub(super) async fn publish(controller: &Controller<Fake>, volume: &str, host: &str) {
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: host.to_owned(),
        volume_capability: Some(capability()),
        ..ControllerPublishVolumeRequest::default()
    };
    Service::controller_publish_volume(controller, tonic::Request::new(request)).await.unwrap();
}

pub(super) async fn unpublish(controller: &Controller<Fake>, volume: &str, host: &str) {
    let request = ControllerUnpublishVolumeRequest {
        volume_id: volume.to_owned(),
        node_id: host.to_owned(),
        ..ControllerUnpublishVolumeRequest::default()
    };
    Service::controller_unpublish_volume(controller, tonic::Request::new(request)).await.unwrap();
}

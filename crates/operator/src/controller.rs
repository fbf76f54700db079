//! Watches the resources and carries decisions out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::Paging;
use api::rest::{Control, PoolQuery, VolumeQuery};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node as KubernetesNode;
use k8s_openapi::jiff::{Timestamp, Unit};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action as Requeue;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::watcher;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use model::{NodeName, Pool, PoolName, Problem, ProblemKind};
use serde_json::json;

use crate::disk_pool::{Condition, DiskPool, FINALIZER};
use crate::lease::Election;
use crate::reconcile::{Action, Decision, Next, Observed, decide, event, missing, refused};

/// How the operator runs.
#[derive(Clone, Debug)]
pub struct Config {
    /// The namespace of its lease.
    pub namespace: String,
    /// Its name among operators, such as the name of its pod.
    pub identity: String,
    /// How often each pool is looked at when nothing happens.
    pub poll: Duration,
}

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Kubernetes cannot be reached, or refuses.
    #[error(
        "cannot talk to Kubernetes; is there a kubeconfig or a service account, with the \
             rights of the chart?"
    )]
    Kubernetes(#[from] kube::Error),
    /// The configuration of the client cannot be found.
    #[error("there is no configuration for Kubernetes: run it in a pod, or set KUBECONFIG")]
    Configuration(#[from] kube::config::InferConfigError),
    /// Another operator leads.
    #[error("the lease was lost; another operator may act now")]
    LeaseLost,
}

/// How long after the first failure it is tried again; twice as long after each further one.
const FIRST_RETRY: Duration = Duration::from_secs(2);
/// The longest time between two attempts.
const LAST_RETRY: Duration = Duration::from_mins(5);
/// When something begun is looked at.
const SOON: Duration = Duration::from_secs(1);

/// What every reconciliation uses.
struct Context<C> {
    resources: Api<DiskPool>,
    recorder: Recorder,
    control: Arc<C>,
    poll: Duration,
    failures: Mutex<HashMap<String, u32>>,
}

/// Runs the operator until `stop`, once it leads.
pub async fn run<C: Control>(
    control: Arc<C>,
    config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), OperatorError> {
    let kubernetes = kube::Config::infer().await?;
    let client = Client::try_from(kubernetes)?;
    let mut election = Election::new(client.clone(), &config.namespace, config.identity.clone());
    let mut stop = std::pin::pin!(stop);
    tokio::select! {
        () = election.lead() => tracing::info!("{} leads", config.identity),
        () = &mut stop => return Ok(()),
    }
    let context = Arc::new(Context {
        resources: Api::all(client.clone()),
        recorder: Recorder::new(client.clone(), reporter(&config)),
        control,
        poll: config.poll,
        failures: Mutex::default(),
    });
    let work = async {
        adopt(&context).await?;
        let kubernetes_nodes = Api::all(client);
        tokio::join!(
            reconcile_all(Arc::clone(&context)),
            synchronize_nodes(kubernetes_nodes, Arc::clone(&context)),
        );
        Ok::<(), OperatorError>(())
    };
    tokio::select! {
        ended = work => ended,
        () = election.lose() => Err(OperatorError::LeaseLost),
        () = &mut stop => Ok(()),
    }
}

fn reporter(config: &Config) -> Reporter {
    Reporter { controller: "holdfast-operator".into(), instance: Some(config.identity.clone()) }
}

/// Creates the resources that pools of the control plane lack.
async fn adopt<C: Control>(context: &Context<C>) -> Result<(), OperatorError> {
    let pools = loop {
        match pools(&*context.control).await {
            Ok(pools) => break pools,
            Err(problem) => {
                tracing::warn!("cannot list the pools: {}; will retry", problem.detail);
                tokio::time::sleep(FIRST_RETRY).await;
            }
        }
    };
    let resources = context.resources.list(&ListParams::default()).await?.items;
    for resource in missing(&pools, &resources) {
        let name = resource.name_any();
        match context.resources.create(&PostParams::default(), &resource).await {
            Ok(_) => tracing::info!("created DiskPool {name} for a pool that had none"),
            // Somebody was quicker.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

async fn pools<C: Control>(control: &C) -> Result<Vec<Pool>, Problem> {
    let mut query = PoolQuery::default();
    let mut all = Vec::new();
    loop {
        let page = control.pools(query).await?;
        all.extend(page.items);
        let Some(after) = page.after else { return Ok(all) };
        query = PoolQuery::default().at(Paging { limit: None, after: Some(after) });
    }
}

async fn reconcile_all<C: Control>(context: Arc<Context<C>>) {
    let resources = context.resources.clone();
    kube::runtime::Controller::new(resources, watcher::Config::default())
        .run(reconcile, |_, _, context| Requeue::requeue(context.poll), context)
        .for_each(|done| async {
            if let Err(error) = done {
                tracing::warn!("reconciliation failed: {error}");
            }
        })
        .await;
}

async fn synchronize_nodes<C: Control>(nodes: Api<KubernetesNode>, context: Arc<Context<C>>) {
    kube::runtime::Controller::new(nodes, watcher::Config::default())
        .run(synchronize_node, |_, _, context| Requeue::requeue(context.poll), context)
        .for_each(|done| async {
            if let Err(error) = done {
                tracing::warn!("a node was not synchronized: {error}");
            }
        })
        .await;
}

/// Why a node could not be brought up to date.
#[derive(Debug, thiserror::Error)]
#[error("node {node}: {}; it is tried again", problem.detail)]
struct NotSynchronized {
    node: String,
    problem: Problem,
}

/// Brings one node of the control plane up to date with Kubernetes.
async fn synchronize_node<C: Control>(
    node: Arc<KubernetesNode>,
    context: Arc<Context<C>>,
) -> Result<Requeue, NotSynchronized> {
    let later = Requeue::requeue(context.poll);
    let Ok(name) = node.name_any().parse::<NodeName>() else { return Ok(later) };
    let failed = |problem| NotSynchronized { node: name.to_string(), problem };
    let found = match context.control.node(name.clone()).await {
        Ok(found) => found,
        // It has no engine.
        Err(problem) if problem.kind == ProblemKind::NotFound => return Ok(later),
        Err(problem) => return Err(failed(problem)),
    };
    for change in crate::nodes::changes(&node, found.spec()) {
        tracing::info!(%name, ?change, "node changed in Kubernetes");
        context.control.change_node(name.clone(), change, None).await.map_err(failed)?;
    }
    Ok(later)
}

/// Looks at one resource, decides, acts, and shows what became of it.
async fn reconcile<C: Control>(
    resource: Arc<DiskPool>,
    context: Arc<Context<C>>,
) -> Result<Requeue, kube::Error> {
    let now = Timestamp::now();
    let now = now.round(Unit::Second).unwrap_or(now);
    let observed = context.observe(&resource).await;
    let mut decision = decide(&resource, &observed, now);
    if let Some(action) = decision.action.clone()
        && let Err(problem) = context.act(&resource, action).await?
    {
        tracing::warn!("DiskPool {}: {}", resource.name_any(), problem.detail);
        decision = refused(decision, &problem, now);
    }
    context.show(&resource, &decision).await?;
    Ok(Requeue::requeue(context.wait(&resource.name_any(), decision.next)))
}

impl<C: Control> Context<C> {
    /// What the control plane says about the pool of a resource.
    async fn observe(&self, resource: &DiskPool) -> Observed {
        let name = resource.name_any();
        let Ok(name) = name.parse::<PoolName>() else {
            return Observed::Absent;
        };
        let unreachable = |problem: Problem| Observed::Unreachable { reason: problem.detail };
        let pool = match self.control.pool(name.clone()).await {
            Ok(pool) => Box::new(pool),
            Err(problem) if problem.kind == ProblemKind::NotFound => return Observed::Absent,
            Err(problem) => return unreachable(problem),
        };
        if resource.metadata.deletion_timestamp.is_none() {
            return Observed::Present { pool, volumes: Vec::new() };
        }
        let query = VolumeQuery { pool: Some(name), ..VolumeQuery::default() };
        match self.control.volumes(query).await {
            Ok(page) => {
                let volumes = page.items.iter().map(|volume| volume.id().to_string()).collect();
                Observed::Present { pool, volumes }
            }
            Err(problem) => unreachable(problem),
        }
    }

    /// Does one thing; the inner error is the control plane's.
    async fn act(
        &self,
        resource: &DiskPool,
        action: Action,
    ) -> Result<Result<(), Problem>, kube::Error> {
        let name = resource.name_any();
        let mut finalizers = resource.finalizers().to_vec();
        match action {
            Action::AddFinalizer => finalizers.push(FINALIZER.to_owned()),
            Action::RemoveFinalizer => finalizers.retain(|name| name != FINALIZER),
            action => return Ok(self.ask(&name, action).await),
        }
        // With the version that was read, so that a concurrent change of the list is not lost.
        let metadata = json!({
            "finalizers": finalizers,
            "resourceVersion": resource.metadata.resource_version,
        });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        self.resources.patch(&name, &PatchParams::default(), &patch).await?;
        Ok(Ok(()))
    }

    /// Asks the control plane for something.
    async fn ask(&self, name: &str, action: Action) -> Result<(), Problem> {
        let name: PoolName = name.parse().map_err(Problem::from)?;
        match action {
            Action::Create(spec) => self.control.put_pool(name, *spec).await.map(drop),
            Action::Change(change) => self.control.change_pool(name, change, None).await.map(drop),
            Action::Delete => match self.control.delete_pool(name, None).await {
                Err(problem) if problem.kind != ProblemKind::NotFound => Err(problem),
                _ => Ok(()),
            },
            Action::AddFinalizer | Action::RemoveFinalizer => Ok(()),
        }
    }

    /// Writes the status and tells what is new about it.
    async fn show(&self, resource: &DiskPool, decision: &Decision) -> Result<(), kube::Error> {
        if decision.action == Some(Action::RemoveFinalizer) {
            return Ok(());
        }
        let before = resource.status.as_ref();
        if before != Some(&decision.status) {
            let patch = Patch::Merge(json!({ "status": decision.status }));
            let parameters = PatchParams::default();
            self.resources.patch_status(&resource.name_any(), &parameters, &patch).await?;
        }
        if let Some(condition) = event(before, &decision.status) {
            let reference = resource.object_ref(&());
            self.recorder.publish(&told(condition), &reference).await?;
        }
        Ok(())
    }

    /// How long to wait.
    fn wait(&self, name: &str, next: Next) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Next::Soon => SOON,
            Next::Poll => {
                failures.remove(name);
                self.poll
            }
            Next::BackOff => {
                let count = failures.entry(name.to_owned()).or_default();
                let wait = back_off(*count);
                *count = count.saturating_add(1);
                wait
            }
        }
    }
}

/// The wait after so many failures.
fn back_off(failures: u32) -> Duration {
    FIRST_RETRY.saturating_mul(1 << failures.min(16)).min(LAST_RETRY)
}

fn told(condition: &Condition) -> Event {
    let well = condition.status == "True" || condition.reason == "Creating";
    let well = well || ["Accepted", "Opening", "Destroying"].contains(&&*condition.reason);
    Event {
        type_: if well { EventType::Normal } else { EventType::Warning },
        reason: condition.reason.clone(),
        note: Some(condition.message.chars().take(1000).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_between_attempts_doubles_up_to_five_minutes() {
        let seconds: Vec<_> = (0..10).map(|count| back_off(count).as_secs()).collect();
        assert_eq!(seconds, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(back_off(u32::MAX), LAST_RETRY);
    }
}

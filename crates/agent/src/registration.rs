//! Shows the control plane that this host is there, as long as it runs.
//!
//! ```text
//!   Unknown ── name asked for ──► Known ── heartbeat, again and again ──► deregistration
//! ```
//!
//! Attached volumes do not need it: they have processes of their own, which outlive it.

use std::sync::Arc;
use std::time::Duration;

use api::heartbeat::Deregister;
use api::rest::Control;
use linux::{Kernel, Tree};
use model::{Heartbeat, HostAddress, HostName, InstanceId, MachineId, Nqn, Problem, ProblemKind};

use crate::attach::{AttachError, new_instance, own_machine, own_nqn};
use crate::record::{ControlPlane, Records};

/// How long one question may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// After one that was not answered.
const AGAIN: Duration = Duration::from_secs(1);

/// Registers a host and keeps it registered until `stop` is over.
async fn run(
    control: &ControlPlane,
    host: HostName,
    tree: &Tree,
    stop: impl Future<Output = ()>,
) -> Result<(), AttachError> {
    let remote = control.client(PATIENCE)?;
    let own = (own_nqn(&host, tree)?, own_machine(tree)?);
    let instance = new_instance()?;
    let beating = async {
        loop {
            let wait = match beat(&remote, &host, (&own, instance)).await {
                Ok(wait) => wait,
                Err(problem) => {
                    tracing::warn!(%host, %problem, "control plane was not told of this host");
                    AGAIN
                }
            };
            tokio::time::sleep(wait).await;
        }
    };
    tokio::select! {
        () = stop => {}
        () = beating => {}
    }
    match remote.deregister_host(host, Deregister { instance }).await {
        Ok(_) => Ok(()),
        Err(problem) => Err(AttachError::Control(problem)),
    }
}

/// Registers a host and keeps it registered until `stop` is over. Meanwhile it watches the paths of
/// its volumes: reports them, and lets those of the kernel follow their targets.
pub async fn run_watching(
    control: &ControlPlane,
    host: HostName,
    (kernel, records): (Arc<dyn Kernel>, &Records),
    stop: impl Future<Output = ()>,
) -> Result<(), AttachError> {
    let remote = control.client(PATIENCE)?;
    let (named, tree) = (host.clone(), kernel.tree());
    let watching = async {
        tokio::select! {
            () = stop => {}
            () = crate::path_watch::run(&remote, &named, (tree, records)) => {}
            () = crate::kernel_paths::run(Arc::clone(&kernel), records) => {}
        }
    };
    run(control, host, tree, watching).await
}

/// One sign of life; when the next one is wanted.
async fn beat(
    remote: &impl Control,
    host: &HostName,
    ((own, machine), instance): (&(Nqn, MachineId), InstanceId),
) -> Result<Duration, Problem> {
    // A host that is known keeps its name: what is published to it, is published to that. Whether
    // it is this machine at all is for the control plane to say.
    let nqn = match remote.host(host.clone()).await {
        Ok(known) => known.spec().address.nqn.clone(),
        Err(problem) if problem.kind == ProblemKind::NotFound => own.clone(),
        Err(problem) => return Err(problem),
    };
    let heartbeat = Heartbeat {
        instance,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: HostAddress { nqn, agent: None, machine: Some(*machine) },
        told: None,
    };
    Ok(remote.host_heartbeat(host.clone(), heartbeat).await?.next_in())
}

#[cfg(test)]
mod tests {
    use api::rest::fake::Fake;

    use super::*;

    #[tokio::test]
    async fn a_host_registers_once_and_keeps_the_name_it_is_known_by() {
        let fake = Fake::at(model::Timestamp::EPOCH);
        let host: HostName = "host-1".parse().unwrap();
        let instance = "00000000-0000-4000-8000-000000000001".parse().unwrap();
        let name =
            |text: &str| -> Nqn { format!("nqn.2026-11.io.holdfast:{text}").parse().unwrap() };
        let machine: MachineId = "00000000-0000-4000-8000-000000000009".parse().unwrap();
        beat(&fake, &host, (&(name("first"), machine), instance)).await.unwrap();
        beat(&fake, &host, (&(name("second"), machine), instance)).await.unwrap();
        let known = fake.host(host).await.unwrap();
        assert_eq!(known.spec().address.nqn, name("first"));
        assert_eq!(known.spec().address.machine, Some(machine));
    }
}

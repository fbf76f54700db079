//! One operator acts at a time: leader election on a `Lease`.
//!
//! [`decide`] is the rule; [`Election`] carries it out. A lease is renewed at a third of its time,
//! and given up when it could not be renewed for two thirds of it, before anybody else may take it.
//! Writes carry the resource version that was read, so of two that try, one is refused.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::time::Instant;

/// How long a lease lasts after its last renewal.
const LASTS: Duration = Duration::from_secs(30);
/// The same, as the lease carries it.
const LASTS_SECONDS: i32 = 30;
/// How often it is renewed, and looked at by those who wait.
pub(crate) const RENEW_EVERY: Duration = Duration::from_secs(10);
/// When one that cannot be renewed is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(20);

/// What to do about the lease.
#[derive(Debug, PartialEq)]
enum Step {
    /// It is held by somebody else.
    Wait,
    /// Write this.
    Write(LeaseSpec),
}

/// Decides about the lease; `changed` is when its content was last seen to change, by our clock:
/// clocks of other machines are not compared with ours.
fn decide(found: Option<&LeaseSpec>, changed: Duration, identity: &str, now: Timestamp) -> Step {
    let renewed = |acquired: Option<MicroTime>, transitions| LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(LASTS_SECONDS),
        acquire_time: acquired.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    };
    let Some(found) = found else { return Step::Write(renewed(None, 0)) };
    let transitions = found.lease_transitions.unwrap_or(0);
    let holder = found.holder_identity.as_deref().filter(|holder| !holder.is_empty());
    let lasts = found.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let lasts = lasts.map_or(LASTS, Duration::from_secs);
    match holder {
        Some(holder) if holder == identity => {
            Step::Write(renewed(found.acquire_time.clone(), transitions))
        }
        Some(_) if changed < lasts => Step::Wait,
        _ => Step::Write(renewed(None, transitions.saturating_add(1))),
    }
}

/// A candidate.
pub(crate) struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// What was last read, and since when it is so.
    seen: Option<(LeaseSpec, Instant)>,
    /// What this operator wrote last: it need not be read again to be renewed.
    held: Option<Lease>,
    renewed: Option<Instant>,
}

impl Election {
    pub(crate) fn new(client: Client, namespace: &str, identity: String) -> Election {
        let leases = Api::namespaced(client, namespace);
        let name = "holdfast-operator".to_owned();
        Election { leases, name, identity, seen: None, held: None, renewed: None }
    }

    /// Waits until this operator leads.
    pub(crate) async fn lead(&mut self) {
        loop {
            match self.attempt().await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!("cannot read or write the lease: {error}; will retry"),
            }
            tokio::time::sleep(RENEW_EVERY).await;
        }
    }

    /// Returns when this operator leads no longer.
    pub(crate) async fn lose(&mut self) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            match self.attempt().await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let late = self.renewed.is_none_or(|at| at.elapsed() >= GIVE_UP_AFTER);
                    tracing::warn!("the lease could not be renewed: {error}");
                    if late {
                        return;
                    }
                }
            }
        }
    }

    /// Takes or renews the lease; whether it is ours now.
    async fn attempt(&mut self) -> Result<bool, kube::Error> {
        if let Some(lease) = self.held.take()
            && self.write(Some(lease)).await?
        {
            return Ok(true);
        }
        // Somebody changed it, be it only an annotation.
        let found = self.leases.get_opt(&self.name).await?;
        self.write(found).await
    }

    /// Writes what is to be done about the lease as it is known; whether it is ours now.
    async fn write(&mut self, found: Option<Lease>) -> Result<bool, kube::Error> {
        let spec = found.as_ref().and_then(|lease| lease.spec.clone());
        let changed = self.age(spec.as_ref());
        let now = Timestamp::now();
        let Step::Write(spec) = decide(spec.as_ref(), changed, &self.identity, now) else {
            return Ok(false);
        };
        let parameters = PostParams::default();
        let written = if let Some(lease) = found {
            let lease = Lease { spec: Some(spec), ..lease };
            self.leases.replace(&self.name, &parameters, &lease).await
        } else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            self.leases.create(&parameters, &Lease { metadata, spec: Some(spec) }).await
        };
        match written {
            Ok(lease) => {
                self.renewed = Some(Instant::now());
                self.held = Some(lease);
                Ok(true)
            }
            // Somebody else wrote between our reading and our writing.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// For how long the lease has been as it is.
    fn age(&mut self, spec: Option<&LeaseSpec>) -> Duration {
        let now = Instant::now();
        match (&self.seen, spec) {
            (Some((before, since)), Some(spec)) if before == spec => now - *since,
            (_, Some(spec)) => {
                self.seen = Some((spec.clone(), now));
                Duration::ZERO
            }
            (_, None) => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use kube::client::Body;

    use super::*;

    fn lease(holder: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(30),
            lease_transitions: Some(4),
            acquire_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
            ..LeaseSpec::default()
        }
    }

    fn check(found: Option<&LeaseSpec>, unchanged_for: u64, wanted: &str) {
        let now = Timestamp::from_second(1_000).unwrap();
        let step = decide(found, Duration::from_secs(unchanged_for), "me", now);
        let found = match step {
            Step::Wait => "wait".to_owned(),
            Step::Write(spec) => {
                let acquired = spec.acquire_time.unwrap().0 == now;
                let how = if acquired { "take" } else { "renew" };
                format!("{how} as {} number {}", spec.holder_identity.unwrap(), {
                    spec.lease_transitions.unwrap()
                })
            }
        };
        assert_eq!(found, wanted);
    }

    #[test]
    fn a_lease_is_taken_only_when_its_holder_did_not_renew_it_in_time() {
        check(None, 0, "take as me number 0");
        check(Some(&lease("me")), 0, "renew as me number 4");
        check(Some(&lease("you")), 0, "wait");
        check(Some(&lease("you")), 29, "wait");
        check(Some(&lease("you")), 30, "take as me number 5");
        check(Some(&lease("")), 0, "take as me number 5");
    }

    /// An API server with one lease, of which each write changes the version.
    fn server(calls: &Arc<Mutex<Vec<String>>>) -> Client {
        let state = Arc::new(Mutex::new((0_u64, None::<Lease>)));
        let calls = Arc::clone(calls);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (state, calls) = (Arc::clone(&state), Arc::clone(&calls));
            async move {
                calls.lock().unwrap().push(request.method().to_string());
                let (head, body) = request.into_parts();
                let sent = body.collect_bytes().await.unwrap();
                let mut state = state.lock().unwrap();
                let answer = |code: u16, text: String| {
                    let body = Body::from(text.into_bytes());
                    Ok::<_, Infallible>(http::Response::builder().status(code).body(body).unwrap())
                };
                let failure = |code: u16| {
                    let reason = if code == 404 { "NotFound" } else { "Conflict" };
                    let status = "Failure";
                    let text = serde_json::json!({
                        "kind": "Status", "status": status, "reason": reason, "code": code,
                    });
                    answer(code, text.to_string())
                };
                let version = state.0.to_string();
                if head.method == http::Method::GET {
                    let Some(lease) = &state.1 else { return failure(404) };
                    return answer(200, serde_json::to_string(lease).unwrap());
                }
                let mut lease: Lease = serde_json::from_slice(&sent).unwrap();
                if lease.metadata.resource_version.is_some_and(|sent| sent != version) {
                    return failure(409);
                }
                state.0 += 1;
                lease.metadata.resource_version = Some(state.0.to_string());
                state.1 = Some(lease.clone());
                answer(200, serde_json::to_string(&lease).unwrap())
            }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn a_renewal_is_one_request_and_a_change_by_others_is_read() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let client = server(&calls);
        let mut election = Election::new(client.clone(), "default", "me".into());
        let taken = |calls: &Mutex<Vec<String>>| calls.lock().unwrap().split_off(0).join(" ");
        assert!(election.attempt().await.unwrap());
        assert_eq!(taken(&calls), "GET POST");
        assert!(election.attempt().await.unwrap());
        assert_eq!(taken(&calls), "PUT");
        // Somebody puts a label on it.
        let leases: Api<Lease> = Api::namespaced(client.clone(), "default");
        let lease = leases.get("holdfast-operator").await.unwrap();
        leases.replace("holdfast-operator", &PostParams::default(), &lease).await.unwrap();
        taken(&calls);
        assert!(election.attempt().await.unwrap());
        assert_eq!(taken(&calls), "PUT GET PUT");
        // Somebody else takes it.
        let mut lease = leases.get("holdfast-operator").await.unwrap();
        lease.spec.as_mut().unwrap().holder_identity = Some("you".into());
        leases.replace("holdfast-operator", &PostParams::default(), &lease).await.unwrap();
        assert!(!election.attempt().await.unwrap());
    }
}

//! Calls to engines and what follows from their answers.

use model::{ErrorClass, EventName, NodeName, Problem, ProblemKind, Severity, Subject};

use super::{Call, CallId, CallResponse, Controller, Effect};

/// A call under way.
#[derive(Clone, Debug)]
pub(crate) struct CallInFlight {
    pub(crate) subject: Subject,
    pub(crate) node: NodeName,
    pub(crate) call: Call,
}

impl Controller {
    /// Asks an engine; there must be no other call about the subject.
    pub(crate) fn call(&mut self, subject: Subject, node: NodeName, call: Call) {
        let id = CallId(self.number());
        let engine_object = self.engine_object(&subject);
        (engine_object.call, engine_object.last_call) = (Some(id), id.0);
        self.calls.insert(id, CallInFlight { subject, node: node.clone(), call: call.clone() });
        self.out.push(Effect::Call(id, node, Box::new(call)));
    }

    pub(crate) fn on_answered(&mut self, id: CallId, result: Result<CallResponse, Problem>) {
        let Some(calling) = self.calls.remove(&id) else { return };
        let CallInFlight { subject, node, call } = calling;
        if let Call::List = call {
            return match result {
                Ok(CallResponse::Listing(listing)) => self.on_listing(&node, id, *listing),
                Ok(_) => self.on_listing_failed(&node, id, &odd_answer()),
                Err(problem) => self.on_listing_failed(&node, id, &problem),
            };
        }
        if self
            .engine_objects
            .get(&subject)
            .is_none_or(|engine_object| engine_object.call != Some(id))
        {
            return;
        }
        let moment = self.number();
        self.engine_object(&subject).last_call = moment;
        match result {
            Ok(answer) => {
                self.engine_object(&subject).succeed();
                self.on_answer(&subject, &node, call, answer);
            }
            // Nothing waits for it; the next listing shows that it is missing.
            Err(problem) if matches!(call, Call::PutSpecBackup(..)) => {
                tracing::debug!(%subject, %problem, "what is wanted of a volume is not on disk");
                self.engine_object(&subject).succeed();
                self.on_spec_backup(&subject, &call);
            }
            // What failed is a comparison, not the volume.
            Err(problem) if matches!(call, Call::CheckTarget(..)) => {
                tracing::debug!(%subject, %problem, "copies cannot be compared now");
                self.engine_object(&subject).succeed();
                if let Subject::Volume(volume) = subject {
                    self.comparison_failed(volume, &problem);
                }
            }
            Err(problem) => {
                self.on_refusal(&subject, &call, &problem);
                let now = self.now;
                self.engine_object(&subject).fail(problem, now);
            }
        }
        self.enqueue(&subject);
    }

    fn on_answer(&mut self, subject: &Subject, node: &NodeName, call: Call, answer: CallResponse) {
        match (call, answer) {
            // It was closed where it should not have been open.
            (Call::PutPool(..), CallResponse::Pool(_)) if !matches!(subject, Subject::Pool(_)) => {}
            (Call::PutPool(name, order), CallResponse::Pool(found)) => {
                self.hold(subject, order.generation);
                self.see_pool(&name, Some(found.status));
            }
            (Call::PutReplica(id, order), CallResponse::Replica(found)) => {
                self.hold(subject, order.generation);
                self.see_replica(id, Some(found.status));
            }
            (call @ Call::PutSpecBackup(..), CallResponse::SpecBackup) => {
                self.on_spec_backup(subject, &call);
            }
            (Call::PutTarget(id, order), CallResponse::Target(found)) => {
                self.hold(subject, order.generation);
                self.see_target(id, Some(found.status));
            }
            (Call::DeletePool(..) | Call::DeleteReplica(..) | Call::DeleteTarget(..), _) => {
                self.engine_object(subject).gone = true;
            }
            (Call::PutTargetSnapshot(_, id, _), CallResponse::TargetSnapshot(taken))
                if !taken.replicas.is_empty() =>
            {
                self.on_snapshot_taken(id, &taken.replicas);
            }
            (Call::PutSnapshot(replica, id, _), CallResponse::Snapshot(found)) => {
                if !self.on_rescued(replica, &found) {
                    self.on_snapshot_taken(id, &[replica].into());
                }
            }
            (Call::DeleteSnapshot(replica, id, _), _) => self.on_snapshot_dropped(id, replica),
            (Call::PutRebuild(_, order), CallResponse::Rebuild(_)) => {
                let message = format!("copy {} is being brought in sync", order.spec.replica);
                self.tell(subject.clone(), EventName::RebuildStarted, Severity::Info, message);
                self.look_at(node);
            }
            (Call::CheckTarget(_, asked), CallResponse::Checked(report)) => {
                if let Subject::Volume(volume) = subject {
                    self.on_checked(*volume, &asked, &report);
                }
            }
            (Call::PutScrub(replica, _) | Call::Scrub(replica), CallResponse::Scrub(scrub)) => {
                self.on_scrub(replica, &scrub);
            }
            (_, _) => {
                let now = self.now;
                self.engine_object(subject).fail(odd_answer(), now);
            }
        }
    }

    /// A spec backup was sent; it is not sent again before something changes.
    fn on_spec_backup(&mut self, subject: &Subject, call: &Call) {
        if let Call::PutSpecBackup(_, spec_backup) = call {
            self.engine_object(subject).backed_up = Some(spec_backup.generation);
        }
    }

    /// What else follows when an engine will not do something.
    fn on_refusal(&mut self, subject: &Subject, call: &Call, problem: &Problem) {
        if matches!(call, Call::PutRebuild(..)) {
            self.back_off_volume(subject.clone());
        }
        // What passes by itself is asked for again; what lasts is in the status of the thing.
        let passes = problem.kind.class() == ErrorClass::Retry
            || matches!(problem.kind, ProblemKind::TimedOut | ProblemKind::Busy);
        if passes {
            tracing::debug!(%subject, %problem, "an engine cannot carry out an order now");
        } else {
            tracing::warn!(%subject, %problem, "engine refused a request");
        }
    }

    fn hold(&mut self, subject: &Subject, generation: model::Generation) {
        let engine_object = self.engine_object(subject);
        (engine_object.applied, engine_object.present) = (Some(generation), true);
    }
}

fn odd_answer() -> Problem {
    Problem::new(ProblemKind::Internal, "the engine answered something else than was asked")
}

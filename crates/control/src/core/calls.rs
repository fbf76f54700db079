//! Calls to engines and what follows from their answers.

use model::{Blame, EventName, Kind, NodeName, Problem, Severity, Subject};

use super::{Answer, Call, CallId, Core, Effect};

/// A call under way.
#[derive(Clone, Debug)]
pub(crate) struct Calling {
    pub(crate) subject: Subject,
    pub(crate) node: NodeName,
    pub(crate) call: Call,
}

impl Core {
    /// Asks an engine; there must be no other call about the subject.
    pub(crate) fn call(&mut self, subject: Subject, node: NodeName, call: Call) {
        let id = CallId(self.number());
        let leaf = self.leaf(&subject);
        (leaf.call, leaf.stirred) = (Some(id), id.0);
        self.calls.insert(id, Calling { subject, node: node.clone(), call: call.clone() });
        self.out.push(Effect::Call(id, node, Box::new(call)));
    }

    pub(crate) fn on_answered(&mut self, id: CallId, result: Result<Answer, Problem>) {
        let Some(calling) = self.calls.remove(&id) else { return };
        let Calling { subject, node, call } = calling;
        if let Call::List = call {
            return match result {
                Ok(Answer::Listing(listing)) => self.on_listing(&node, id, *listing),
                Ok(_) => self.on_listing_failed(&node, id, &odd_answer()),
                Err(problem) => self.on_listing_failed(&node, id, &problem),
            };
        }
        if self.leaves.get(&subject).is_none_or(|leaf| leaf.call != Some(id)) {
            return;
        }
        let moment = self.number();
        self.leaf(&subject).stirred = moment;
        match result {
            Ok(answer) => {
                self.leaf(&subject).succeed();
                self.on_answer(&subject, &node, call, answer);
            }
            // Nothing waits for it; the next listing shows that it is missing.
            Err(problem) if matches!(call, Call::PutMemo(..)) => {
                tracing::debug!(%subject, %problem, "what is wanted of a volume is not on disk");
                self.leaf(&subject).succeed();
                self.on_memo(&subject, &call);
            }
            Err(problem) => {
                self.on_refusal(&subject, &call, &problem);
                let now = self.now;
                self.leaf(&subject).fail(problem, now);
            }
        }
        self.touch(&subject);
    }

    fn on_answer(&mut self, subject: &Subject, node: &NodeName, call: Call, answer: Answer) {
        match (call, answer) {
            // It was closed where it should not have been open.
            (Call::PutPool(..), Answer::Pool(_)) if !matches!(subject, Subject::Pool(_)) => {}
            (Call::PutPool(name, order), Answer::Pool(found)) => {
                self.hold(subject, order.generation);
                self.see_pool(&name, Some(found.status));
            }
            (Call::PutReplica(id, order), Answer::Replica(found)) => {
                self.hold(subject, order.generation);
                self.see_replica(id, Some(found.status));
            }
            (call @ Call::PutMemo(..), Answer::Memo) => self.on_memo(subject, &call),
            (Call::PutTarget(id, order), Answer::Target(found)) => {
                self.hold(subject, order.generation);
                self.see_target(id, Some(found.status));
            }
            (Call::DeletePool(..) | Call::DeleteReplica(..) | Call::DeleteTarget(..), _) => {
                self.leaf(subject).gone = true;
            }
            (Call::PutTargetSnapshot(_, id, _), Answer::TargetSnapshot(taken))
                if !taken.replicas.is_empty() =>
            {
                self.on_snapshot_taken(id, &taken.replicas);
            }
            (Call::PutSnapshot(replica, id, _), Answer::Snapshot(found)) => {
                if !self.on_rescued(replica, &found) {
                    self.on_snapshot_taken(id, &[replica].into());
                }
            }
            (Call::DeleteSnapshot(replica, id, _), _) => self.on_snapshot_dropped(id, replica),
            (Call::PutRebuild(_, order), Answer::Rebuild(_)) => {
                let message = format!("copy {} is being brought in sync", order.spec.replica);
                self.tell(subject.clone(), EventName::RebuildStarted, Severity::Info, message);
                self.look_at(node);
            }
            (Call::PutScrub(replica, _) | Call::Scrub(replica), Answer::Scrub(scrub)) => {
                self.on_scrub(replica, &scrub);
            }
            (_, _) => {
                let now = self.now;
                self.leaf(subject).fail(odd_answer(), now);
            }
        }
    }

    /// A memo was sent; it is not sent again before something changes.
    fn on_memo(&mut self, subject: &Subject, call: &Call) {
        if let Call::PutMemo(_, memo) = call {
            self.leaf(subject).noted = Some(memo.generation);
        }
    }

    /// What else follows when an engine will not do something.
    fn on_refusal(&mut self, subject: &Subject, call: &Call, problem: &Problem) {
        if matches!(call, Call::PutRebuild(..)) {
            self.rest(subject.clone());
        }
        // What passes by itself is asked for again; what lasts is in the status of the thing.
        let passes = problem.kind.blame() == Blame::Retry
            || matches!(problem.kind, Kind::TimedOut | Kind::Busy);
        if passes {
            tracing::debug!(%subject, %problem, "an engine cannot carry out an order now");
        } else {
            tracing::warn!(%subject, %problem, "an engine refused an order");
        }
    }

    fn hold(&mut self, subject: &Subject, generation: model::Generation) {
        let leaf = self.leaf(subject);
        (leaf.held, leaf.listed) = (Some(generation), true);
    }
}

fn odd_answer() -> Problem {
    Problem::new(Kind::Internal, "the engine answered something else than was asked")
}

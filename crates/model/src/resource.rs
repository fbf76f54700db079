//! What every resource is made of: an id, a spec, a lifecycle and a status.
//!
//! Invariants:
//! - A generation stands for one wanted content ([`Resource::order`]): beginning a change takes the
//!   next one, finishing it keeps that, undoing it takes another. So an order of an undone change
//!   that arrives late is refused by whoever has seen the next one.
//! - A change that would make the spec invalid is refused before anything is stored.

use alloc::format;
use core::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{
    Generation, GivenName, InvalidTransition, Lifecycle, LifecycleEvent, Operation, Outcome,
    Problem, ProblemKind, Timestamp, ValidationError, VersionedSpec,
};

/// What is wanted of one kind of resource, and how that may change.
pub trait Spec: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned {
    /// The kind's name in stored records, events and messages.
    const KIND: &'static str;
    /// How one is told from another.
    type Id: Clone + fmt::Debug + fmt::Display + Ord + Serialize + DeserializeOwned;
    /// What is seen of it.
    type Status: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned;
    /// What can be done to it after it was made.
    type Change: Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// Refuses what no cluster could ever do.
    fn validate(&self) -> Result<(), ValidationError>;

    /// Refuses a change that makes no sense to this spec.
    fn check(&self, change: &Self::Change) -> Result<(), ValidationError>;

    /// The change, in effect. Again is the same as once.
    fn apply(&mut self, change: &Self::Change);

    /// What people call it instead of its id; no two of a kind have the same.
    fn name(&self) -> Option<&GivenName> {
        None
    }

    /// What no longer holds once it exists; whether there was any.
    fn settle(&mut self) -> bool {
        false
    }

    /// Whether a request to create it once more asks for what is there.
    fn satisfies(&self, request: &Self) -> bool {
        self == request
    }
}

/// One resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, bound = "")]
#[cfg_attr(
    feature = "schema",
    schemars(
        rename = "ResourceOf{S}",
        bound = "S: schemars::JsonSchema, S::Id: schemars::JsonSchema, \
                 S::Status: schemars::JsonSchema, S::Change: schemars::JsonSchema"
    )
)]
pub struct Resource<S: Spec> {
    id: S::Id,
    generation: Generation,
    created_at: Timestamp,
    lifecycle: Lifecycle<S::Change>,
    spec: S,
    /// What was last seen of it; absent while nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<S::Status>,
}

impl<S: Spec> Resource<S> {
    /// A new one, about to be made.
    pub fn new(id: S::Id, spec: S, now: Timestamp) -> Result<Resource<S>, ValidationError> {
        spec.validate()?;
        let lifecycle = Lifecycle::Creating {};
        let generation = Generation::FIRST;
        Ok(Resource { id, generation, created_at: now, lifecycle, spec, status: None })
    }

    /// One that exists already and was found without a record; engines have seen this generation.
    pub fn found(
        id: S::Id,
        spec: S,
        seen: Option<Generation>,
        now: Timestamp,
    ) -> Result<Resource<S>, ValidationError> {
        let mut object = Resource::new(id, spec, now)?;
        object.generation = seen.map_or(Generation::FIRST, Generation::next);
        object.lifecycle = Lifecycle::Created { operation: None };
        object.spec.settle();
        Ok(object)
    }

    /// How it is told from others.
    pub fn id(&self) -> &S::Id {
        &self.id
    }

    /// Number of what is wanted.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// When it was first asked for.
    pub fn created_at(&self) -> Timestamp {
        self.created_at
    }

    /// Where it is in its life.
    pub fn lifecycle(&self) -> &Lifecycle<S::Change> {
        &self.lifecycle
    }

    /// What is in effect: without the change under way.
    pub fn spec(&self) -> &S {
        &self.spec
    }

    /// What is wanted now, with the change under way unless it failed.
    pub fn order(&self) -> VersionedSpec<S> {
        let mut spec = self.spec.clone();
        if let Some(change) = self.lifecycle.operation().and_then(effective) {
            spec.apply(change);
        }
        VersionedSpec { generation: self.generation, spec }
    }

    /// Whether a request to create it once more may be answered with this one.
    pub fn again(&self, request: &S) -> Result<(), Problem> {
        if matches!(self.lifecycle, Lifecycle::Deleting {} | Lifecycle::Deleted {}) {
            return Err(self.going());
        }
        if self.spec.satisfies(request) {
            return Ok(());
        }
        let detail = format!(
            "{} {} exists with another spec; use another id, or change it with its own requests",
            S::KIND,
            self.id
        );
        Err(Problem::new(ProblemKind::AlreadyExists, detail))
    }

    /// Refuses a caller who has not seen the newest generation (`If-Match`).
    pub fn expect(&self, seen: Generation) -> Result<(), Problem> {
        if seen == self.generation {
            return Ok(());
        }
        let detail = format!(
            "{} {} is at generation {}, not {seen}; read it again",
            S::KIND,
            self.id,
            self.generation
        );
        Err(Problem::new(ProblemKind::StaleGeneration, detail))
    }

    /// All of it exists.
    pub fn made(&mut self) -> Result<(), InvalidTransition> {
        self.live(LifecycleEvent::Made)?;
        if self.spec.settle() {
            self.generation = self.generation.next();
        }
        Ok(())
    }

    /// Writes down what is about to be done.
    pub fn begin(&mut self, change: S::Change, now: Timestamp) -> Result<(), Problem> {
        self.must_be_idle()?;
        self.spec.check(&change)?;
        let mut wanted = self.spec.clone();
        wanted.apply(&change);
        wanted.validate()?;
        self.live(LifecycleEvent::Begin(Operation { change, started_at: now, outcome: None }))?;
        self.generation = self.generation.next();
        Ok(())
    }

    /// Notes how the operation ended; nothing else may begin before [`Resource::commit`] is stored.
    pub fn end(&mut self, outcome: Outcome) -> Result<(), InvalidTransition> {
        let failed = matches!(outcome, Outcome::Failed { .. });
        self.live(LifecycleEvent::End(outcome))?;
        if failed {
            self.generation = self.generation.next();
        }
        Ok(())
    }

    /// Takes the ended operation into the spec, or drops it if it failed.
    pub fn commit(&mut self) -> Result<(), InvalidTransition> {
        let wanted = self.order().spec;
        self.live(LifecycleEvent::Commit)?;
        self.spec = wanted;
        Ok(())
    }

    /// A change that needs no steps: begun, done and committed at once, to be stored once.
    pub fn change(&mut self, change: S::Change, now: Timestamp) -> Result<(), Problem> {
        self.begin(change, now)?;
        self.end(Outcome::Done {})?;
        self.commit()?;
        Ok(())
    }

    /// It is to go. An operation under way must end first.
    pub fn delete(&mut self) -> Result<(), Problem> {
        match self.lifecycle {
            Lifecycle::Deleting {} => return Ok(()),
            Lifecycle::Deleted {} => return Err(self.going()),
            Lifecycle::Created { operation: Some(_) } => self.must_be_idle()?,
            Lifecycle::Creating {} | Lifecycle::Created { operation: None } => {}
        }
        self.live(LifecycleEvent::Delete)?;
        self.generation = self.generation.next();
        Ok(())
    }

    /// Nothing of it is left.
    pub fn gone(&mut self) -> Result<(), InvalidTransition> {
        self.live(LifecycleEvent::Gone)
    }

    /// It must stay after all, and all of it is still there.
    pub fn keep(&mut self) -> Result<(), InvalidTransition> {
        self.live(LifecycleEvent::Keep)?;
        self.generation = self.generation.next();
        Ok(())
    }

    fn live(&mut self, event: LifecycleEvent<S::Change>) -> Result<(), InvalidTransition> {
        self.lifecycle = self.lifecycle.clone().on(event)?;
        Ok(())
    }

    fn must_be_idle(&self) -> Result<(), Problem> {
        let busy = match self.lifecycle {
            Lifecycle::Created { operation: None } => return Ok(()),
            Lifecycle::Deleting {} | Lifecycle::Deleted {} => return Err(self.going()),
            Lifecycle::Creating {} => "is being created",
            Lifecycle::Created { operation: Some(_) } => "has an operation under way",
        };
        let detail = format!("{} {} {busy}; try again when that has ended", S::KIND, self.id);
        Err(Problem::new(ProblemKind::Busy, detail))
    }

    fn going(&self) -> Problem {
        let detail = format!("{} {} is being deleted; wait until it is gone", S::KIND, self.id);
        Problem::new(ProblemKind::Deleting, detail)
    }
}

/// The change, unless it is known to have failed.
fn effective<C>(operation: &Operation<C>) -> Option<&C> {
    let failed = matches!(operation.outcome, Some(Outcome::Failed { .. }));
    (!failed).then_some(&operation.change)
}

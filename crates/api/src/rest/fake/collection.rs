//! Resources of one kind.

use std::collections::BTreeMap;

use model::{Generation, Problem, ProblemKind, Resource, Spec, Timestamp};

use crate::rest::{ApiResult, IdOrName};
use crate::{Applied, Deleted, Page, Paging};

/// All resources of one kind.
#[derive(Clone, Debug)]
pub(super) struct Collection<S: Spec>(BTreeMap<S::Id, Resource<S>>);

impl<S: Spec> Default for Collection<S> {
    fn default() -> Collection<S> {
        Collection(BTreeMap::new())
    }
}

impl<S: Spec> Collection<S> {
    pub(super) fn have(&mut self, one: Resource<S>) {
        self.0.insert(one.id().clone(), one);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Resource<S>> {
        self.0.values()
    }

    pub(super) fn get(&self, id: &S::Id) -> ApiResult<Resource<S>> {
        self.0.get(id).cloned().ok_or_else(|| missing::<S>(id))
    }

    pub(super) fn get_mut(&mut self, id: &S::Id) -> ApiResult<&mut Resource<S>> {
        self.0.get_mut(id).ok_or_else(|| missing::<S>(id))
    }

    pub(super) fn page(
        &self,
        paging: &Paging,
        asked: impl Fn(&Resource<S>) -> bool,
    ) -> ApiResult<Page<Resource<S>>> {
        let some = self.0.values().filter(|one| asked(one)).cloned();
        paging.cut(some, |one| one.id().to_string())
    }

    /// As [`Collection::page`], of those that are called so.
    pub(super) fn page_of(
        &self,
        called: Option<&IdOrName>,
        paging: &Paging,
        asked: impl Fn(&Resource<S>) -> bool,
    ) -> ApiResult<Page<Resource<S>>> {
        let is_called = called.map(|called| called.among(self.all()));
        self.page(paging, |one| is_called.as_ref().is_none_or(|it| it(one)) && asked(one))
    }

    /// Made, unless it is there; `see` gives what is seen of a new one, or refuses to make it.
    pub(super) fn put(
        &mut self,
        id: &S::Id,
        spec: S,
        now: Timestamp,
        see: impl FnOnce(&S) -> ApiResult<S::Status>,
    ) -> ApiResult<Applied<Resource<S>>> {
        if let Some(have) = self.0.get(id) {
            have.again(&spec)?;
            return Ok(Applied::unchanged(have.clone()));
        }
        self.expect_free_name(id, &spec)?;
        let status = see(&spec)?;
        let mut made = Resource::new(id.clone(), spec, now)?;
        made.made()?;
        made.status = Some(status);
        self.have(made.clone());
        Ok(Applied::created(made))
    }

    fn expect_free_name(&self, id: &S::Id, spec: &S) -> ApiResult<()> {
        let Some(name) = spec.name() else { return Ok(()) };
        let mut others = self.0.values().filter(|other| other.id() != id);
        let Some(other) = others.find(|other| other.spec().name() == Some(name)) else {
            return Ok(());
        };
        let detail = format!("{} {} is called {name} already", S::KIND, other.id());
        Err(Problem::new(ProblemKind::AlreadyExists, detail))
    }

    pub(super) fn change(
        &mut self,
        id: &S::Id,
        change: S::Change,
        if_match: Option<Generation>,
        now: Timestamp,
    ) -> ApiResult<Applied<Resource<S>>> {
        let have = self.get_mut(id)?;
        if_match.map_or(Ok(()), |if_match| have.expect(if_match))?;
        let mut wanted = have.spec().clone();
        wanted.apply(&change);
        if wanted == *have.spec() && have.lifecycle().is_idle() {
            have.spec().check(&change)?;
            return Ok(Applied::unchanged(have.clone()));
        }
        have.change(change, now)?;
        Ok(Applied::changed(have.clone()))
    }

    pub(super) fn delete(
        &mut self,
        id: &S::Id,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        let Some(have) = self.0.get_mut(id) else { return Ok(Deleted { existed: false }) };
        if_match.map_or(Ok(()), |if_match| have.expect(if_match))?;
        have.delete()?;
        self.0.remove(id);
        Ok(Deleted { existed: true })
    }
}

fn missing<S: Spec>(id: &S::Id) -> Problem {
    let detail = format!("there is no {} {id}; list them to see what there is", S::KIND);
    Problem::new(ProblemKind::NotFound, detail)
}

//! Resources of one kind.

use std::collections::BTreeMap;

use model::{Generation, Kind, Object, Problem, Spec, Timestamp};

use crate::rest::Answered;
use crate::{Ensured, Gone, Page, Paging};

/// All resources of one kind.
#[derive(Clone, Debug)]
pub(super) struct Things<S: Spec>(BTreeMap<S::Id, Object<S>>);

impl<S: Spec> Default for Things<S> {
    fn default() -> Things<S> {
        Things(BTreeMap::new())
    }
}

impl<S: Spec> Things<S> {
    pub(super) fn have(&mut self, one: Object<S>) {
        self.0.insert(one.id().clone(), one);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Object<S>> {
        self.0.values()
    }

    pub(super) fn get(&self, id: &S::Id) -> Answered<Object<S>> {
        self.0.get(id).cloned().ok_or_else(|| missing::<S>(id))
    }

    pub(super) fn get_mut(&mut self, id: &S::Id) -> Answered<&mut Object<S>> {
        self.0.get_mut(id).ok_or_else(|| missing::<S>(id))
    }

    pub(super) fn page(
        &self,
        paging: &Paging,
        asked: impl Fn(&Object<S>) -> bool,
    ) -> Answered<Page<Object<S>>> {
        let some = self.0.values().filter(|one| asked(one)).cloned();
        paging.cut(some, |one| one.id().to_string())
    }

    /// Made, unless it is there; `see` gives what is seen of a new one, or refuses to make it.
    pub(super) fn put(
        &mut self,
        id: &S::Id,
        spec: S,
        now: Timestamp,
        see: impl FnOnce(&S) -> Answered<S::Status>,
    ) -> Answered<Ensured<Object<S>>> {
        if let Some(have) = self.0.get(id) {
            have.again(&spec)?;
            return Ok(Ensured::unchanged(have.clone()));
        }
        let status = see(&spec)?;
        let mut made = Object::new(id.clone(), spec, now)?;
        made.made()?;
        made.status = Some(status);
        self.have(made.clone());
        Ok(Ensured::created(made))
    }

    pub(super) fn change(
        &mut self,
        id: &S::Id,
        change: S::Change,
        seen: Option<Generation>,
        now: Timestamp,
    ) -> Answered<Ensured<Object<S>>> {
        let have = self.get_mut(id)?;
        seen.map_or(Ok(()), |seen| have.expect(seen))?;
        let mut wanted = have.spec().clone();
        wanted.apply(&change);
        if wanted == *have.spec() && have.lifecycle().is_idle() {
            have.spec().check(&change)?;
            return Ok(Ensured::unchanged(have.clone()));
        }
        have.change(change, now)?;
        Ok(Ensured::changed(have.clone()))
    }

    pub(super) fn delete(&mut self, id: &S::Id, seen: Option<Generation>) -> Answered<Gone> {
        let Some(have) = self.0.get_mut(id) else { return Ok(Gone { was_there: false }) };
        seen.map_or(Ok(()), |seen| have.expect(seen))?;
        have.delete()?;
        self.0.remove(id);
        Ok(Gone { was_there: true })
    }
}

fn missing<S: Spec>(id: &S::Id) -> Problem {
    let detail = format!("there is no {} {id}; list them to see what there is", S::KIND);
    Problem::new(Kind::NotFound, detail)
}

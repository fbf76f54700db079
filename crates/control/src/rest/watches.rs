//! Watches: who is called when something happens.

use api::rest::Answered;
use api::{Ensured, Gone, Page, Paging};
use model::{Generation, Watch, WatchChange, WatchName, WatchSpec};

use super::{Rest, ensured, missing};
use crate::core::Wish;

impl Rest {
    pub(super) fn watches_page(&self, paging: &Paging) -> Answered<Page<Watch>> {
        self.one(|core| {
            paging.cut(core.state().watches.values().cloned(), |watch| watch.id().to_string())
        })
    }

    pub(super) fn watch_seen(&self, name: &WatchName) -> Answered<Watch> {
        let find = |core: &crate::core::Core| core.state().watches.get(name).cloned();
        self.one(|core| find(core).ok_or_else(|| missing("watch", name)))
    }

    pub(super) async fn make_watch(
        &self,
        name: WatchName,
        spec: WatchSpec,
    ) -> Answered<Ensured<Watch>> {
        self.0.callbacks.check(&spec.url)?;
        let done = self.0.ask(Wish::CreateWatch(name.clone(), Box::new(spec)), None).await?;
        self.watch_seen(&name).map(|now| ensured(done, now))
    }

    pub(super) async fn alter_watch(
        &self,
        name: WatchName,
        change: WatchChange,
        seen: Option<Generation>,
    ) -> Answered<Ensured<Watch>> {
        let WatchChange::Modify { spec } = &change;
        self.0.callbacks.check(&spec.url)?;
        let done = self.0.ask(Wish::ChangeWatch(name.clone(), change), seen).await?;
        // Nothing more is called at an address that was given up.
        self.0.settle_calls();
        self.watch_seen(&name).map(|now| ensured(done, now))
    }

    pub(super) async fn drop_watch(
        &self,
        name: WatchName,
        seen: Option<Generation>,
    ) -> Answered<Gone> {
        let gone = self.gone(Wish::DeleteWatch(name), seen).await?;
        // Nothing more is called at an address that was given up.
        self.0.settle_calls();
        Ok(gone)
    }
}

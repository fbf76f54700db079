//! Watches: who is called when something happens.

use api::rest::Answered;
use api::{Ensured, Gone, Page, Paging};
use model::{Generation, Watch, WatchChange, WatchName, WatchSpec};

use super::{Rest, ensured, missing};
use crate::core::Wish;

impl Rest {
    pub(super) fn watches_page(&self, paging: &Paging) -> Answered<Page<Watch>> {
        let all = self.one(|core| Ok(core.state().watches.clone()))?;
        let seen = all.into_values().map(|watch| self.with_status(watch));
        paging.cut(seen, |watch| watch.id().to_string())
    }

    pub(super) fn watch_seen(&self, name: &WatchName) -> Answered<Watch> {
        let find = |core: &crate::core::Core| core.state().watches.get(name).cloned();
        let watch = self.one(|core| find(core).ok_or_else(|| missing("watch", name)))?;
        Ok(self.with_status(watch))
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
        self.settle()?;
        self.watch_seen(&name).map(|now| ensured(done, now))
    }

    pub(super) async fn drop_watch(
        &self,
        name: WatchName,
        seen: Option<Generation>,
    ) -> Answered<Gone> {
        let gone = self.gone(Wish::DeleteWatch(name), seen).await?;
        self.settle()?;
        Ok(gone)
    }

    /// Nothing more is called at an address that was given up.
    fn settle(&self) -> Answered<()> {
        self.one(|core| {
            self.0.callbacks.settle(&core.state().watches);
            Ok(())
        })
    }

    fn with_status(&self, mut watch: Watch) -> Watch {
        watch.status = Some(self.0.callbacks.status(watch.id()));
        watch
    }
}

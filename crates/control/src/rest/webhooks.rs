//! Webhooks: who is called when something happens.

use api::rest::ApiResult;
use api::{Applied, Deleted, Page, Paging};
use model::{Generation, Webhook, WebhookChange, WebhookName, WebhookSpec};

use super::{Rest, ensured, missing};
use crate::controller::Request;

impl Rest {
    pub(super) fn webhooks_page(&self, paging: &Paging) -> ApiResult<Page<Webhook>> {
        self.one(|controller| {
            paging.cut(controller.state().webhooks.values().cloned(), |webhook| {
                webhook.id().to_string()
            })
        })
    }

    pub(super) fn webhook_seen(&self, name: &WebhookName) -> ApiResult<Webhook> {
        let find = |controller: &crate::controller::Controller| {
            controller.state().webhooks.get(name).cloned()
        };
        self.one(|controller| find(controller).ok_or_else(|| missing("webhook", name)))
    }

    pub(super) async fn make_webhook(
        &self,
        name: WebhookName,
        spec: WebhookSpec,
    ) -> ApiResult<Applied<Webhook>> {
        self.0.callbacks.check(&spec.url)?;
        let done = self.0.ask(Request::CreateWebhook(name.clone(), Box::new(spec)), None).await?;
        self.webhook_seen(&name).map(|now| ensured(done, now))
    }

    pub(super) async fn alter_webhook(
        &self,
        name: WebhookName,
        change: WebhookChange,
        if_match: Option<Generation>,
    ) -> ApiResult<Applied<Webhook>> {
        let WebhookChange::Modify { spec } = &change;
        self.0.callbacks.check(&spec.url)?;
        let done = self.0.ask(Request::ChangeWebhook(name.clone(), change), if_match).await?;
        // Nothing more is called at an address that was given up.
        self.0.settle_calls();
        self.webhook_seen(&name).map(|now| ensured(done, now))
    }

    pub(super) async fn drop_webhook(
        &self,
        name: WebhookName,
        if_match: Option<Generation>,
    ) -> ApiResult<Deleted> {
        let gone = self.gone(Request::DeleteWebhook(name), if_match).await?;
        // Nothing more is called at an address that was given up.
        self.0.settle_calls();
        Ok(gone)
    }
}

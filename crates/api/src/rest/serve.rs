//! The contract, served over HTTP.

use std::sync::Arc;

use axum::Router;
use model::Event;

use super::{Control, routes};
use crate::events::Log;
use crate::{ApiRouter, EventStream, Guard};

/// A control plane and what it tells.
pub struct ControlService<C> {
    /// Who answers.
    pub control: C,
    /// What happened there; whoever stops the server closes it first.
    pub events: Arc<Log<Event>>,
}

/// The value; the type only says that there is one.
macro_rules! given {
    ($type:ty; $value:expr) => {
        $value
    };
}

macro_rules! served {
    ($(
        $constant:ident $name:ident(
            $(at: $at:ty,)? $(query: $query:ty,)? $(body: $body:ty,)? $(if $if_match:ident,)?
        ) -> $answer:ty;
        $method:ident $path:literal $role:ident $summary:literal;
    )+) => {
        /// Every route with its handler.
        pub fn api<C: Control>() -> ApiRouter<ControlService<C>> {
            let mut api = ApiRouter::<ControlService<C>>::new(
                "Holdfast",
                "Volumes from intent to healed.",
            );
            $(
                api = api
                    .on(&routes::$constant, async move |served: Arc<ControlService<C>>, request| {
                    // Some take nothing of it.
                    let _ = &request;
                    $(let $if_match = request.if_match;)?
                    served.control.$name(
                        $(given!($at; request.at.0),)? $(given!($query; request.query),)?
                        $(given!($body; request.body),)? $($if_match,)?
                    ).await
                });
            )+
            api.on(&routes::EVENTS, async move |served, request| {
                Ok(EventStream::new(Arc::clone(&served.events), request.last_event))
            })
        }
    };
}

routes::each_route!(served);

/// REST as a service.
pub fn router<C: Control>(control: C, events: Arc<Log<Event>>, guard: Guard) -> Router {
    api().router(Arc::new(ControlService { control, events }), guard)
}

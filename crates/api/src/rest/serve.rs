//! The contract, served over HTTP.

use std::sync::Arc;

use axum::Router;
use model::Event;

use super::{Control, routes};
use crate::events::Log;
use crate::{Api, Guard, Watch};

/// A control plane and what it tells.
pub struct Served<C> {
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
            $(at: $at:ty,)? $(query: $query:ty,)? $(body: $body:ty,)? $(if $seen:ident,)?
        ) -> $answer:ty;
        $method:ident $path:literal $role:ident $summary:literal;
    )+) => {
        /// Every route with its handler.
        pub fn api<C: Control>() -> Api<Served<C>> {
            let mut api = Api::<Served<C>>::new("Holdfast", "Volumes from intent to healed.");
            $(
                api = api.on(&routes::$constant, async move |served: Arc<Served<C>>, request| {
                    // Some take nothing of it.
                    let _ = &request;
                    $(let $seen = request.seen;)?
                    served.control.$name(
                        $(given!($at; request.at.0),)? $(given!($query; request.query),)?
                        $(given!($body; request.body),)? $($seen,)?
                    ).await
                });
            )+
            api.on(&routes::EVENTS, async move |served, request| {
                Ok(Watch::new(Arc::clone(&served.events), request.last_event))
            })
        }
    };
}

routes::each_route!(served);

/// REST as a service.
pub fn router<C: Control>(control: C, events: Arc<Log<Event>>, guard: Guard) -> Router {
    api().router(Arc::new(Served { control, events }), guard)
}

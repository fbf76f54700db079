//! Something that is called over HTTP, and speaks one contract.

use std::marker::PhantomData;

use futures::TryFutureExt;
use futures::future::BoxFuture;
use http::uri::Authority;
use model::{Event, Generation, Problem};
use serde::Serialize;

use crate::response::FromResponse;
use crate::{
    Body, CallError, Client, ClientConfig, EventStream, NoBody, NoQuery, PathParams, Route,
    Subscription,
};

/// What is spoken: its trait is implemented for a [`Remote`] of it.
pub trait Contract {
    /// Where events are told.
    const EVENTS: Route<(), NoQuery, NoBody, EventStream<Event>>;
}

/// A server far away. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Remote<C> {
    client: Client,
    contract: PhantomData<fn() -> C>,
}

impl<C: Contract> Remote<C> {
    /// The one behind this client.
    pub fn new(client: Client) -> Remote<C> {
        Remote { client, contract: PhantomData }
    }

    /// The one at this address, without TLS and token.
    pub fn plain(server: Authority) -> Result<Remote<C>, CallError> {
        Client::new(ClientConfig::plain(server)).map(Remote::new)
    }

    /// What happens there, going on after `last` if there is one.
    pub async fn events(&self, last: Option<String>) -> Result<Subscription<Event>, CallError> {
        self.client.watch(&C::EVENTS, last).await
    }

    /// Asks as the trait of the contract does.
    pub(crate) fn ask<P, Q, B, A>(
        &self,
        route: &Route<P, Q, B, A>,
        at: P,
        (query, body): (Q, B),
        seen: Option<Generation>,
    ) -> BoxFuture<'_, Result<A, Problem>>
    where
        P: PathParams,
        Q: Serialize,
        B: Body,
        A: FromResponse + 'static,
    {
        Box::pin(self.client.call_seeing(route, at, query, body, seen).map_err(Problem::from))
    }
}

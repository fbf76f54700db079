//! Answers on the wire.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, Uri, header};
use model::{Generation, Problem, ProblemKind, Resource, Spec};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Applied, Deleted, Effect, IfMatch, Page};

/// A [`Problem`] on its way to the caller.
#[derive(Debug)]
pub struct Failed(pub Problem);

impl From<Problem> for Failed {
    fn from(problem: Problem) -> Failed {
        Failed(problem)
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Failed(problem) = self;
        let kind = problem.kind;
        let status = StatusCode::from_u16(kind.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = json(status, &problem, "application/problem+json");
        if kind == ProblemKind::Unauthenticated {
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        // The middleware adds the request's id: only it knows it here.
        answer.extensions_mut().insert(problem);
        answer
    }
}

fn json<T: Serialize>(status: StatusCode, value: &T, media: &'static str) -> Response {
    let (status, text) = match serde_json::to_vec(value) {
        Ok(text) => (status, text),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written as JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, Vec::new())
        }
    };
    let mut answer = Response::new(Body::from(text));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    answer
}

/// The answer to a path that does not exist.
pub(crate) async fn no_such_path(uri: Uri) -> Failed {
    let detail = format!("there is nothing at {}; the API begins at /v1", uri.path());
    Failed(Problem::new(ProblemKind::NotFound, detail))
}

/// The answer to a method that a path does not take.
pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Failed {
    let detail = format!("{} does not take {method}; see Allow", uri.path());
    Failed(Problem::new(ProblemKind::MethodNotAllowed, detail))
}

/// What a handler may answer with, and how the document shows it.
pub trait Reply: Send + 'static {
    /// The statuses of success.
    const STATUSES: &'static [u16];
    /// Its media type.
    const MEDIA: &'static str;

    /// On the wire.
    fn reply(self) -> Response;

    /// In the document.
    fn schema(generator: &mut SchemaGenerator) -> Schema;
}

/// A whole answer as a client reads it.
pub trait FromResponse: Reply + Sized {
    /// From the bytes of the body; the error says what is wrong with them.
    fn read(body: &[u8]) -> Result<Self, String>;
}

/// An answer that is one JSON value.
pub trait Json: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// The statuses of success.
    const STATUSES: &'static [u16] = &[200];

    /// The status of this one.
    fn status(&self) -> StatusCode {
        StatusCode::OK
    }

    /// Number of what is wanted of it, which callers can name in `If-Match`.
    fn generation(&self) -> Option<Generation> {
        None
    }
}

impl<T: Json> Reply for T {
    const STATUSES: &'static [u16] = <T as Json>::STATUSES;
    const MEDIA: &'static str = "application/json";

    fn reply(self) -> Response {
        let mut answer = json(self.status(), &self, Self::MEDIA);
        let tag = self.generation().map(IfMatch::tag).map(HeaderValue::try_from);
        if let Some(Ok(tag)) = tag {
            answer.headers_mut().insert(header::ETAG, tag);
        }
        answer
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

impl<T: Json> FromResponse for T {
    fn read(body: &[u8]) -> Result<T, String> {
        serde_json::from_slice(body).map_err(|error| error.to_string())
    }
}

/// Plain text, such as metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(pub String);

impl Reply for Text {
    const STATUSES: &'static [u16] = &[200];
    const MEDIA: &'static str = "text/plain; version=0.0.4";

    fn reply(self) -> Response {
        let mut answer = Response::new(Body::from(self.0));
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(Self::MEDIA));
        answer
    }

    fn schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<String>()
    }
}

impl FromResponse for Text {
    fn read(body: &[u8]) -> Result<Text, String> {
        str::from_utf8(body).map(|text| Text(text.to_owned())).map_err(|error| error.to_string())
    }
}

impl<T: Json> Json for Applied<T> {
    const STATUSES: &'static [u16] = &[200, 201];

    fn generation(&self) -> Option<Generation> {
        self.now.generation()
    }

    fn status(&self) -> StatusCode {
        let created = self.effect == Effect::Created;
        if created { StatusCode::CREATED } else { StatusCode::OK }
    }
}

impl<T: Serialize + DeserializeOwned + JsonSchema + Send + 'static> Json for Page<T> {}
impl Json for Deleted {}

/// One resource; its generation is its tag.
impl<S> Json for Resource<S>
where
    S: Spec<Id: JsonSchema + Send, Status: JsonSchema + Send, Change: JsonSchema + Send>
        + JsonSchema
        + Send
        + 'static,
{
    fn generation(&self) -> Option<Generation> {
        Some(Resource::generation(self))
    }
}

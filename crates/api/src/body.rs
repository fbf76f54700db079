//! What callers send: bodies and query strings, read strictly.
//!
//! An unknown field is refused, since somebody meant something by it. A refusal names the field and
//! says what was expected there.

use axum::body::Body as Stream;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError};
use model::{
    Heartbeat, Problem, ProblemKind, ReplicaLabel, Spec, SpecBackup, ValidationError, VersionedSpec,
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::NoBody;

/// What may stand in the body of a request.
pub trait Body: Sized + Send + 'static {
    /// From the bytes, complete and valid.
    fn read(headers: &HeaderMap, bytes: &Bytes) -> Result<Self, Problem>;

    /// To the bytes; nothing: there is no body.
    fn write(&self) -> Result<Option<Vec<u8>>, serde_json::Error>;

    /// In the document; nothing: there is no body.
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;
}

impl Body for NoBody {
    fn read(_: &HeaderMap, bytes: &Bytes) -> Result<NoBody, Problem> {
        if bytes.is_empty() {
            return Ok(NoBody);
        }
        Err(Problem::new(ProblemKind::Malformed, "this request takes no body; send none"))
    }

    fn write(&self) -> Result<Option<Vec<u8>>, serde_json::Error> {
        Ok(None)
    }

    fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
        None
    }
}

/// A body that is one JSON value.
pub trait JsonBody: Serialize + DeserializeOwned + JsonSchema + Send + 'static {
    /// Refuses what has the right form but can never be done.
    fn validate(&self) -> Result<(), ValidationError> {
        Ok(())
    }
}

impl<S: Spec + JsonSchema + Send + 'static> JsonBody for VersionedSpec<S> {
    fn validate(&self) -> Result<(), ValidationError> {
        self.spec.validate().map_err(|invalid| invalid.within("spec"))
    }
}

impl JsonBody for ReplicaLabel {}
impl JsonBody for SpecBackup {
    fn validate(&self) -> Result<(), ValidationError> {
        Spec::validate(&*self.spec).map_err(|invalid| invalid.within("spec"))
    }
}
impl<A: Serialize + DeserializeOwned + JsonSchema + Send + 'static> JsonBody for Heartbeat<A> {}

impl<T: JsonBody> Body for T {
    fn read(headers: &HeaderMap, bytes: &Bytes) -> Result<T, Problem> {
        must_be_json(headers)?;
        let value: T = parse(bytes)?;
        value.validate()?;
        Ok(value)
    }

    fn write(&self) -> Result<Option<Vec<u8>>, serde_json::Error> {
        serde_json::to_vec(self).map(Some)
    }

    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }
}

fn must_be_json(headers: &HeaderMap) -> Result<(), Problem> {
    let media = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media = media.map(|media| media.split(';').next().unwrap_or(media).trim());
    if media.is_some_and(|media| media.eq_ignore_ascii_case("application/json")) {
        return Ok(());
    }
    let detail = "send the body as JSON, with the header Content-Type: application/json";
    Err(Problem::new(ProblemKind::WrongMediaType, detail))
}

fn parse<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Problem> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let field = error.path().to_string();
        let cause = error.inner();
        refused(cause.is_data(), &field, "the body", cause)
    })?;
    reader.end().map_err(|error| refused(false, ".", "the body", &error))?;
    Ok(value)
}

/// What stands after the question mark.
pub(crate) fn query<Q: DeserializeOwned>(text: Option<&str>) -> Result<Q, Problem> {
    let pairs = form_urlencoded::parse(text.unwrap_or("").as_bytes());
    let reader = serde_urlencoded::Deserializer::new(pairs);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let field = error.path().to_string();
        refused(true, &field, "the query", error.inner())
    })
}

fn refused(is_data: bool, field: &str, whole: &str, cause: &dyn std::fmt::Display) -> Problem {
    // serde_path_to_error calls the whole value ".".
    let named = (is_data && field != ".").then(|| field.to_owned());
    let place = named.as_deref().unwrap_or(whole);
    let kind = if is_data { ProblemKind::InvalidArgument } else { ProblemKind::Malformed };
    let detail =
        format!("{place} cannot be read: {cause}; GET /v1/openapi.json says what is taken");
    Problem { field: named, ..Problem::new(kind, detail) }
}

/// All of the body; its size was limited where the request came in.
pub(crate) async fn collect(stream: Stream) -> Result<Bytes, Problem> {
    match stream.collect().await {
        Ok(whole) => Ok(whole.to_bytes()),
        Err(error) if is_too_large(&error) => Err(Problem::new(
            ProblemKind::TooLarge,
            "the body is larger than this server takes; send less",
        )),
        Err(error) => Err(Problem::new(
            ProblemKind::Malformed,
            format!("the body did not arrive whole: {error}"),
        )),
    }
}

fn is_too_large(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_too_large)
}

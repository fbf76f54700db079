//! One request as a value: method, path, who may, what it carries, what is answered.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use model::{Generation, ValidationError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Role;

/// How a route is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Look.
    Get,
    /// Have it so. Again is the same as once.
    Put,
    /// Do it. Only where again is the same as once, too.
    Post,
    /// Have it gone. Again is the same as once.
    Delete,
}

impl Method {
    /// Its name in HTTP.
    pub fn http(self) -> http::Method {
        match self {
            Method::Get => http::Method::GET,
            Method::Put => http::Method::PUT,
            Method::Post => http::Method::POST,
            Method::Delete => http::Method::DELETE,
        }
    }
}

/// A request that can be made.
///
/// `P` is what stands in the path, `Q` after the question mark, `B` in the body; `A` is the answer.
pub struct Route<P, Q, B, A> {
    /// How.
    pub method: Method,
    /// Where; parameters in braces.
    pub path: &'static str,
    /// Who may.
    pub role: Role,
    /// Its name for programs, unique in its document.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub summary: &'static str,
    types: PhantomData<fn(P, Q, B) -> A>,
}

impl<P, Q, B, A> Route<P, Q, B, A> {
    /// A route; nothing in it is checked here: the document's tests do that.
    pub const fn new(
        (method, path): (Method, &'static str),
        role: Role,
        name: &'static str,
        summary: &'static str,
    ) -> Self {
        Route { method, path, role, name, summary, types: PhantomData }
    }
}

/// A request as a handler gets it: everything was read and is of the right form.
#[derive(Debug)]
pub struct Request<P, Q, B> {
    /// What stood in the path.
    pub at: P,
    /// What stood after the question mark.
    pub query: Q,
    /// The body.
    pub body: B,
    /// The generation the caller has seen, if it said so (`If-Match`).
    pub if_match: Option<Generation>,
    /// The last event the caller has seen, if it reads events and said so (`Last-Event-ID`).
    pub last_event: Option<String>,
    /// The id of the request; it is in every log line of it.
    pub request: String,
}

/// Nothing stands after the question mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoQuery {}

/// There is no body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoBody;

/// What stands in a path: nothing, or one or two ids.
pub trait PathParams: Sized + Send + 'static {
    /// How many parameters it has.
    const COUNT: usize;

    /// Reads the parameters in order.
    fn parse(parts: &[String]) -> Result<Self, ValidationError>;

    /// Writes them.
    fn parts(&self) -> Vec<String>;

    /// Their schemas.
    fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<schemars::Schema>;
}

/// An id as it stands in a path.
pub trait PathId:
    FromStr<Err = ValidationError> + fmt::Display + JsonSchema + Send + 'static
{
}

impl<T: FromStr<Err = ValidationError> + fmt::Display + JsonSchema + Send + 'static> PathId for T {}

fn part<T: PathId>(parts: &[String], index: usize) -> Result<T, ValidationError> {
    parts.get(index).map_or("", String::as_str).parse()
}

impl PathParams for () {
    const COUNT: usize = 0;

    fn parse(_: &[String]) -> Result<(), ValidationError> {
        Ok(())
    }

    fn parts(&self) -> Vec<String> {
        Vec::new()
    }

    fn schemas(_: &mut schemars::SchemaGenerator) -> Vec<schemars::Schema> {
        Vec::new()
    }
}

impl<T: PathId> PathParams for (T,) {
    const COUNT: usize = 1;

    fn parse(parts: &[String]) -> Result<(T,), ValidationError> {
        Ok((part(parts, 0)?,))
    }

    fn parts(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<schemars::Schema> {
        vec![generator.subschema_for::<T>()]
    }
}

impl<T: PathId, U: PathId> PathParams for (T, U) {
    const COUNT: usize = 2;

    fn parse(parts: &[String]) -> Result<(T, U), ValidationError> {
        Ok((part(parts, 0)?, part(parts, 1)?))
    }

    fn parts(&self) -> Vec<String> {
        vec![self.0.to_string(), self.1.to_string()]
    }

    fn schemas(generator: &mut schemars::SchemaGenerator) -> Vec<schemars::Schema> {
        vec![generator.subschema_for::<T>(), generator.subschema_for::<U>()]
    }
}

/// The names in braces of a path, in order.
pub(crate) fn parameters(path: &'static str) -> impl Iterator<Item = &'static str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// The path with its parameters filled in. Ids and names need no escape: the model sees to that.
pub(crate) fn fill(path: &'static str, parts: &[String]) -> String {
    let mut parts = parts.iter();
    let filled = path.split('/').map(|part| {
        if part.starts_with('{') { parts.next().map_or("", String::as_str) } else { part }
    });
    filled.collect::<Vec<_>>().join("/")
}

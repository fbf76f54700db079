//! Problems as HTTP answers.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::{Kind, Problem};

/// A [`Problem`] on its way to the caller.
pub(crate) struct Failed(pub(crate) Problem);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Failed(problem) = self;
        let status =
            StatusCode::from_u16(problem.kind.http()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut answer = (status, Json(problem)).into_response();
        let kind = HeaderValue::from_static("application/problem+json");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        answer
    }
}

/// The answer to a path that does not exist.
pub(crate) async fn no_such_path(uri: axum::http::Uri) -> Failed {
    let detail = format!("there is nothing at {}; the API begins at /v1", uri.path());
    Failed(Problem::new(Kind::NotFound, detail))
}

/// The answer to a method that a path does not take.
pub(crate) async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> Failed {
    let detail = format!("{} does not take {method}", uri.path());
    Failed(Problem::new(Kind::MethodNotAllowed, detail))
}

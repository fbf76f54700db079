//! JSON over HTTP, as etcd's gateway speaks it: each call is translated to gRPC, handed to the same
//! services, and its answers are translated back.
//!
//! The translation knows the protocol as data (`proto/descriptors.bin`), so it has no code for any
//! single message. Names of fields, numbers of 64 bits as text, bytes in base 64, errors and their
//! HTTP status are those of etcd's gateway.

mod frame;
mod routes;

pub(super) use routes::not_found;

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    response::Response,
    routing::post,
};
use futures::{StreamExt as _, stream};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, TE},
};
use http_body_util::{BodyExt as _, Limited};
use prost_reflect::{
    DescriptorError, DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor,
    SerializeOptions, prost::Message as _,
};
use serde_json::{Value, json};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tower::ServiceExt as _;

use super::lifecycle::MAX_MESSAGE;
use frame::Deframer;

/// Most bytes of one call: base 64 makes a message longer by a third.
const MAX_BODY: usize = MAX_MESSAGE * 2;
/// Messages of a client's stream that wait.
const REQUESTS: usize = 4;

/// One call.
struct Method {
    /// Path of the gRPC call.
    path: String,
    input: MessageDescriptor,
    output: MessageDescriptor,
    /// Whether the client sends many messages.
    many_in: bool,
    /// Whether the answer is many messages.
    many_out: bool,
}

struct Gateway {
    methods: HashMap<&'static str, Method>,
    grpc: Router,
}

/// The routes of the gateway, in front of the gRPC services.
pub(super) fn router(grpc: Router) -> Result<Router, DescriptorError> {
    let pool = DescriptorPool::decode(crate::proto::DESCRIPTORS)?;
    let mut methods = HashMap::new();
    for service in pool.services() {
        for method in service.methods() {
            let name = format!("{}/{}", service.full_name(), method.name());
            for (path, _) in routes::ROUTES.iter().filter(|(_, called)| *called == name) {
                let method = Method {
                    path: format!("/{name}"),
                    input: method.input(),
                    output: method.output(),
                    many_in: method.is_client_streaming(),
                    many_out: method.is_server_streaming(),
                };
                methods.insert(*path, method);
            }
        }
    }
    let gateway = Arc::new(Gateway { methods, grpc });
    let mut router = Router::new();
    for prefix in routes::PREFIXES {
        router = router.route(&format!("{prefix}{{*path}}"), post(call));
    }
    Ok(router.with_state(gateway))
}

async fn call(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let path = request.uri().path();
    let path = routes::PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix));
    let Some(method) = path.and_then(|path| gateway.methods.get(path)) else {
        return not_found();
    };
    match gateway.forward(method, request).await {
        Ok(answer) => answer,
        Err(status) => refusal(&status),
    }
}

impl Gateway {
    async fn forward(&self, method: &Method, request: Request) -> Result<Response, Status> {
        let (parts, body) = request.into_parts();
        let body = if method.many_in {
            messages(body, method.input.clone())
        } else {
            let body = Limited::new(body, MAX_BODY).collect().await;
            let body = body.map_err(|error| bad_request(&*error))?.to_bytes();
            let message = if body.trim_ascii().is_empty() {
                Bytes::new()
            } else {
                let json: Value = serde_json::from_slice(&body).map_err(|e| bad_request(&e))?;
                encode(json, &method.input)?
            };
            Body::from(frame::enframe(&message))
        };
        let mut call = Request::post(method.path.as_str())
            .body(body)
            .map_err(|error| Status::internal(error.to_string()))?;
        *call.headers_mut() = metadata(&parts.headers);
        let answer = self.grpc.clone().oneshot(call).await;
        let (parts, body) = answer.unwrap_or_else(|never: Infallible| match never {}).into_parts();
        // An error without any message stands in the headers.
        if let Some(status) = Status::from_header_map(&parts.headers)
            && status.code() != Code::Ok
        {
            return Err(status);
        }
        let mut answers = Deframer::new(body);
        if method.many_out {
            return Ok(stream_of(answers, method.output.clone()));
        }
        let message = answers.next().await?;
        let message = message.ok_or_else(|| Status::internal("no answer"))?;
        let text = decode(&message, &method.output)?.to_string();
        answers.next().await?;
        Ok(response(StatusCode::OK, text.into()))
    }
}

fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut metadata = HeaderMap::new();
    metadata.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    metadata.insert(TE, HeaderValue::from_static("trailers"));
    if let Some(token) = headers.get(AUTHORIZATION) {
        metadata.insert(AUTHORIZATION, token.clone());
    }
    metadata
}

/// The JSON messages of a body as a gRPC stream, each as soon as it is whole.
fn messages(body: Body, input: MessageDescriptor) -> Body {
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Bytes, Status>>(REQUESTS);
    tokio::spawn(async move {
        let mut body = body.into_data_stream();
        let mut text = Vec::new();
        while let Some(Ok(piece)) = body.next().await {
            text.extend_from_slice(&piece);
            let mut read = serde_json::Deserializer::from_slice(&text).into_iter::<Value>();
            let mut found = Vec::new();
            while let Some(Ok(json)) = read.next() {
                found.push(json);
            }
            let used = read.byte_offset();
            text.drain(..used);
            for json in found {
                let message = encode(json, &input).map(|message| frame::enframe(&message));
                let bad = message.is_err();
                if sender.send(message).await.is_err() || bad {
                    return;
                }
            }
            if text.len() > MAX_BODY {
                return;
            }
        }
    });
    Body::from_stream(ReceiverStream::new(receiver))
}

/// Answers as lines, each as soon as it is there.
fn stream_of(answers: Deframer, output: MessageDescriptor) -> Response {
    let lines = stream::unfold(Some(answers), move |answers| {
        let output = output.clone();
        async move {
            let mut answers = answers?;
            let line = match answers.next().await {
                Ok(Some(message)) => decode(&message, &output).map(|json| json!({"result": json})),
                Ok(None) => return None,
                Err(status) => Err(status),
            };
            let (line, rest) = match line {
                Ok(line) => (line, Some(answers)),
                Err(status) => (json!({ "error": stream_error(&status) }), None),
            };
            Some((Ok::<_, Infallible>(format!("{line}\n")), rest))
        }
    });
    response(StatusCode::OK, Body::from_stream(lines))
}

fn encode(json: Value, input: &MessageDescriptor) -> Result<Bytes, Status> {
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(input.clone(), json, &options);
    Ok(message.map_err(|error| bad_request(&error))?.encode_to_vec().into())
}

fn decode(message: &[u8], output: &MessageDescriptor) -> Result<Value, Status> {
    let internal = |error: &dyn std::error::Error| Status::internal(error.to_string());
    let message = DynamicMessage::decode(output.clone(), message).map_err(|e| internal(&e))?;
    let options = SerializeOptions::new().use_proto_field_name(true).skip_default_fields(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|e| internal(&e))
}

fn bad_request(error: &dyn std::error::Error) -> Status {
    Status::invalid_argument(error.to_string())
}

fn response(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The answer to a call that is refused.
pub(super) fn refusal(status: &Status) -> Response {
    let (code, message) = (i32::from(status.code()), status.message());
    let body = json!({ "error": message, "code": code, "message": message });
    response(http_status(status.code()), body.to_string().into())
}

fn stream_error(status: &Status) -> Value {
    let http = http_status(status.code());
    json!({
        "grpc_code": i32::from(status.code()),
        "http_code": http.as_u16(),
        "message": status.message(),
        "http_status": http.canonical_reason().unwrap_or_default(),
    })
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::Cancelled => StatusCode::REQUEST_TIMEOUT,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

//! The OpenAPI 3.1 document of a contract, made from its routes and the schemas of its types.

use http::StatusCode;
use model::{Problem, ProblemKind};
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::{Body, PathParams, Reply, Role, Route, route};

/// Values that callers can copy, by the name of their schema: the golden files of the model.
const EXAMPLES: &[(&str, &str)] = &[
    ("BlockDevice", include_str!("../../model/golden/block-device.json")),
    ("VersionedSpecOfTargetSpec", include_str!("../../model/golden/target-order.json")),
    ("Problem", include_str!("../../model/golden/problem.json")),
];

/// One route as the document shows it.
struct Operation {
    path: &'static str,
    method: String,
    value: Value,
}

/// Routes and schemas gathered so far.
pub(crate) struct Documented {
    title: &'static str,
    description: &'static str,
    operations: Vec<Operation>,
    generator: SchemaGenerator,
}

impl Documented {
    pub(crate) fn new(title: &'static str, description: &'static str) -> Documented {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        let generator = settings.into_generator();
        Documented { title, description, operations: Vec::new(), generator }
    }

    pub(crate) fn add<P: PathParams, Q: JsonSchema, B: Body, A: Reply>(
        &mut self,
        route: &Route<P, Q, B, A>,
    ) {
        self.operations.push(Operation::of(route, &mut self.generator));
    }

    pub(crate) fn document(&self) -> Value {
        let mut generator = self.generator.clone();
        generator.subschema_for::<Problem>();
        let mut schemas = generator.take_definitions(true);
        for (name, example) in EXAMPLES {
            let example = serde_json::from_str::<Value>(example);
            let schema = schemas.get_mut(*name).and_then(Value::as_object_mut);
            if let (Some(schema), Ok(example)) = (schema, example) {
                schema.insert("examples".to_owned(), json!([example]));
            }
        }
        let mut paths = Map::new();
        for operation in &self.operations {
            let here = paths.entry(operation.path).or_insert_with(|| json!({}));
            if let Some(here) = here.as_object_mut() {
                here.insert(operation.method.clone(), operation.value.clone());
            }
        }
        json!({
            "openapi": "3.1.0",
            "info": {
                "title": self.title,
                "description": self.description,
                "version": env!("CARGO_PKG_VERSION"),
                "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
            },
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            },
        })
    }
}

impl Operation {
    fn of<P: PathParams, Q: JsonSchema, B: Body, A: Reply>(
        route: &Route<P, Q, B, A>,
        generator: &mut SchemaGenerator,
    ) -> Operation {
        let mut parameters: Vec<Value> = route::parameters(route.path)
            .zip(P::schemas(generator))
            .map(|(name, schema)| {
                json!({ "name": name, "in": "path", "required": true, "schema": schema })
            })
            .collect();
        parameters.extend(in_query(&Q::json_schema(generator)));
        let mut responses = Map::new();
        let answer = A::schema(generator);
        for status in A::STATUSES {
            let content = json!({ A::MEDIA: { "schema": answer } });
            let answer = json!({ "description": words(*status), "content": content });
            responses.insert(status.to_string(), answer);
        }
        responses.insert("default".to_owned(), problem());
        let mut value = json!({
            "operationId": camel(route.name),
            "summary": route.summary,
            "parameters": parameters,
            "responses": responses,
        });
        if let (Some(body), Some(value)) = (B::schema(generator), value.as_object_mut()) {
            let content = json!({ "application/json": { "schema": body } });
            value.insert("requestBody".into(), json!({ "required": true, "content": content }));
        }
        if let (true, Some(value)) = (route.role > Role::Anybody, value.as_object_mut()) {
            value.insert("security".to_owned(), json!([{ "token": [] }]));
            value.insert("x-role".to_owned(), json!(route.role.name()));
        }
        Operation { path: route.path, method: route.method.http().as_str().to_lowercase(), value }
    }
}

/// `put_volume` as `putVolume`: names of the document are those of JSON.
fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
        text.push_str(&first.to_ascii_uppercase());
        text.push_str(rest);
    }
    text
}

fn in_query(schema: &Schema) -> Vec<Value> {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let properties = schema.get("properties").and_then(Value::as_object).cloned();
    let parameter = |(name, schema): (String, Value)| {
        let required = required.iter().any(|required| *required == name);
        json!({ "name": name, "in": "query", "required": required, "schema": schema })
    };
    properties.unwrap_or_default().into_iter().map(parameter).collect()
}

fn problem() -> Value {
    let kinds = ProblemKind::ALL.iter().map(|kind| format!("{} {kind}", kind.http()));
    let kinds = kinds.collect::<Vec<_>>().join(", ");
    json!({
        "description": format!("It failed; status and kind: {kinds}."),
        "content": {
            "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } },
        },
    })
}

fn words(status: u16) -> &'static str {
    let status = StatusCode::from_u16(status).ok();
    status.and_then(|status| status.canonical_reason()).unwrap_or("Success")
}

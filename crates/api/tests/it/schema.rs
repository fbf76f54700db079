//! Just enough of JSON Schema to hold examples against our own documents; a keyword it does not
//! know is an error, so that nothing passes unseen.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

/// Every `$ref` below a value.
pub(crate) fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get("$ref") {
                found.insert(reference.clone());
            }
            map.values().for_each(|value| references(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

/// Whether a value fits a schema of a document, or where it does not.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Value::Object(schema) = schema else {
        return if *schema == Value::Bool(false) { Err("nothing fits".into()) } else { Ok(()) };
    };
    let fits = |schema: &Value| check(document, schema, value);
    for (keyword, rule) in schema {
        let ok = match keyword.as_str() {
            "description" | "title" | "default" | "format" | "examples" => true,
            "$ref" => {
                let pointer = rule.as_str().unwrap().strip_prefix('#').unwrap();
                fits(document.pointer(pointer).unwrap())?;
                true
            }
            "type" => is_type(rule, value),
            "const" => rule == value,
            "enum" => rule.as_array().unwrap().contains(value),
            "minimum" => value.as_u64() >= rule.as_u64(),
            "maximum" => value.as_u64() <= rule.as_u64(),
            "oneOf" => {
                rule.as_array().unwrap().iter().filter(|rule| fits(rule).is_ok()).count() == 1
            }
            "anyOf" => rule.as_array().unwrap().iter().any(|rule| fits(rule).is_ok()),
            "allOf" => rule.as_array().unwrap().iter().all(|rule| fits(rule).is_ok()),
            "items" => {
                for item in value.as_array().into_iter().flatten() {
                    check(document, rule, item).map_err(|why| format!("[]: {why}"))?;
                }
                true
            }
            "uniqueItems" => value.as_array().is_none_or(|items| {
                items.iter().map(Value::to_string).collect::<BTreeSet<_>>().len() == items.len()
            }),
            "required" => {
                let missing = |name: &&Value| value.get(name.as_str().unwrap()).is_none();
                rule.as_array().unwrap().iter().find(missing).is_none()
            }
            "properties" => {
                for (name, rule) in rule.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(document, rule, value).map_err(|why| format!("{name}: {why}"))?;
                    }
                }
                true
            }
            "additionalProperties" => further(document, schema, rule, value)?,
            unknown => return Err(format!("the keyword {unknown} is not known here")),
        };
        if !ok {
            return Err(format!("{value} does not fit {keyword} {rule}"));
        }
    }
    Ok(())
}

fn further(
    document: &Value,
    schema: &Map<String, Value>,
    rule: &Value,
    value: &Value,
) -> Result<bool, String> {
    let named = schema.get("properties").and_then(Value::as_object);
    let is_named = |name: &String| named.is_some_and(|named| named.contains_key(name));
    for (name, value) in value.as_object().into_iter().flatten() {
        if !is_named(name) {
            check(document, rule, value).map_err(|why| format!("{name}: {why}"))?;
        }
    }
    Ok(true)
}

fn is_type(rule: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    match rule {
        Value::String(name) => is(name),
        _ => rule.as_array().unwrap().iter().any(|name| is(name.as_str().unwrap())),
    }
}

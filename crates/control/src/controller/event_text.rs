//! What happened, in words for people.

use model::{FailoverReason, OfflineReason, UnknownReason};
use serde::Serialize;
use serde_json::Value;

/// A change: its kind, and what it says beside that as far as that is short.
pub(crate) fn change(change: &impl Serialize) -> String {
    let Ok(Value::Object(fields)) = serde_json::to_value(change) else {
        return "changed".to_owned();
    };
    let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("change");
    let said = fields.iter().filter(|(name, _)| *name != "kind" && *name != "spec");
    let said: Vec<String> = said.map(|(_, value)| short(value)).collect();
    let kind = apart(kind);
    if said.is_empty() { kind } else { format!("{kind}: {}", said.join(", ")) }
}

/// `setReplicas` as `set replicas`.
fn apart(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            text.push(' ');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(short).collect::<Vec<_>>().join(" "),
        Value::Object(map) if map.is_empty() => "none".to_owned(),
        Value::Object(map) => {
            let each = map.iter().map(|(name, value)| format!("{name}={}", short(value)));
            each.collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    }
}

/// Why it is not certain that a node answers.
pub(crate) fn doubt(doubt: UnknownReason) -> &'static str {
    match doubt {
        UnknownReason::NotSeen => "it was not heard of yet",
        UnknownReason::Late => "its heartbeat is late",
        UnknownReason::ListingFailed => "it does not say what it has",
    }
}

/// Why a node is taken for away.
pub(crate) fn absence(absence: OfflineReason) -> &'static str {
    match absence {
        OfflineReason::Lapsed => "its heartbeats stopped",
        OfflineReason::Left => "it was stopped",
        OfflineReason::Refused => "its engine has ended: nobody listens at its address",
        OfflineReason::Unresponsive => "it sends heartbeats but does not say what it has",
    }
}

/// Why a target moves.
pub(crate) fn cause(cause: &FailoverReason) -> String {
    match cause {
        FailoverReason::PathLost { host, address } => {
            format!("host {host} lost its path to {address}")
        }
        FailoverReason::NodeLapsed { node } => format!("node {node} does not answer"),
        FailoverReason::Drain { node } => format!("node {node} is being emptied"),
        FailoverReason::Asked {} => "as asked, or because it had stopped".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use model::{Labels, NodeChange, VolumeChange};

    use super::*;

    #[test]
    fn changes_in_words() {
        let labels: Labels = [("app", "db"), ("tier", "fast")]
            .map(|(key, value)| (key.parse().unwrap(), value.parse().unwrap()))
            .into();
        let cordon = "upgrade".parse().unwrap();
        assert_eq!(change(&NodeChange::Cordon { cordon }), "cordon: upgrade");
        assert_eq!(change(&NodeChange::Label { labels }), "label: app=db tier=fast");
        let none = NodeChange::Label { labels: Labels::new() };
        assert_eq!(change(&none), "label: none");
        assert_eq!(change(&VolumeChange::SetReplicas { replicas: 3 }), "set replicas: 3");
        let spec = Box::new(model::VolumeSpec::new(model::Size::gib(1), 2));
        assert_eq!(change(&VolumeChange::Modify { spec }), "modify");
    }
}

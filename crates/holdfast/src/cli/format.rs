//! Words for what the model knows, the same in every table.

use std::fmt::Display;

use api::{Applied, Deleted, Effect};
use model::{
    ChildState, Labels, Lifecycle, Liveness, OfflineReason, PoolState, ReplicaState, Resource,
    SnapshotState, Spec, TargetState, Timestamp, UnknownReason, VolumeState,
};
use serde::Serialize;

use super::table::{Cell, Tone};

/// A unit variant as it is called on the wire.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

pub(crate) fn liveness(liveness: Option<Liveness>) -> Cell {
    match liveness {
        Some(Liveness::Online) => Cell::toned("online", Tone::Good),
        Some(Liveness::Unknown { reason }) => {
            let why = match reason {
                UnknownReason::NotSeen => "not seen",
                UnknownReason::Late => "late",
                UnknownReason::ListingFailed => "does not list",
            };
            Cell::toned(format!("unknown ({why})"), Tone::Warn)
        }
        Some(Liveness::Offline { reason: OfflineReason::Lapsed }) => {
            Cell::toned("offline (lapsed)", Tone::Bad)
        }
        Some(Liveness::Offline { reason: OfflineReason::Left }) => {
            Cell::toned("offline (left)", Tone::Warn)
        }
        Some(Liveness::Offline { reason: OfflineReason::Refused }) => {
            Cell::toned("offline (refused)", Tone::Bad)
        }
        Some(Liveness::Offline { reason: OfflineReason::Unresponsive }) => {
            Cell::toned("offline (unresponsive)", Tone::Bad)
        }
        None => Cell::toned("unknown", Tone::Warn),
    }
}

pub(crate) fn volume_state(state: Option<VolumeState>) -> Cell {
    let (word, tone) = match state {
        Some(VolumeState::Online) => ("online", Tone::Good),
        Some(VolumeState::Degraded) => ("degraded", Tone::Warn),
        Some(VolumeState::Faulted) => ("faulted", Tone::Bad),
        Some(VolumeState::Unknown) | None => ("unknown", Tone::Warn),
    };
    Cell::toned(word, tone)
}

pub(crate) fn pool_state(state: Option<&PoolState>, exported: bool) -> Cell {
    let (word, tone) = match state {
        _ if exported => ("exported", Tone::Faint),
        Some(PoolState::Online) => ("online", Tone::Good),
        Some(PoolState::Suspect { .. }) => ("suspect", Tone::Warn),
        Some(PoolState::Faulted { .. }) => ("faulted", Tone::Bad),
        Some(PoolState::Offline) => ("offline", Tone::Bad),
        Some(PoolState::Unknown) | None => ("unknown", Tone::Warn),
    };
    Cell::toned(word, tone)
}

pub(crate) fn replica_state(state: Option<&ReplicaState>) -> Cell {
    match state {
        Some(ReplicaState::Online) => Cell::toned("online", Tone::Good),
        Some(ReplicaState::Faulted { detail }) => {
            Cell::toned(format!("faulted ({detail})"), Tone::Bad)
        }
        Some(ReplicaState::Unknown) | None => Cell::toned("unknown", Tone::Warn),
    }
}

pub(crate) fn child_state(state: Option<ChildState>) -> Cell {
    match state {
        Some(ChildState::InSync) => Cell::toned("in sync", Tone::Good),
        Some(ChildState::Stale) => Cell::toned("stale", Tone::Warn),
        Some(ChildState::Rebuilding) => Cell::toned("rebuilding", Tone::Warn),
        Some(ChildState::Faulted { reason }) => {
            Cell::toned(format!("faulted ({})", word(&reason)), Tone::Bad)
        }
        Some(ChildState::Offline) => Cell::toned("offline", Tone::Faint),
        None => Cell::maybe(None::<String>),
    }
}

pub(crate) fn target_state(state: Option<TargetState>) -> Cell {
    let tone = match state {
        Some(TargetState::Open) => Tone::Good,
        Some(TargetState::Init | TargetState::Degraded | TargetState::ShuttingDown { .. }) => {
            Tone::Warn
        }
        Some(TargetState::Suspended { .. }) => Tone::Bad,
        Some(TargetState::Shutdown { .. }) => Tone::Faint,
        None => return Cell::toned("unknown", Tone::Warn),
    };
    Cell::toned(state.map_or("unknown", TargetState::name), tone)
}

pub(crate) fn snapshot_state(state: Option<SnapshotState>) -> Cell {
    let (word, tone) = match state {
        Some(SnapshotState::Ready) => ("ready", Tone::Good),
        Some(SnapshotState::Degraded) => ("degraded", Tone::Warn),
        Some(SnapshotState::Unavailable) => ("unavailable", Tone::Bad),
        None => ("unknown", Tone::Warn),
    };
    Cell::toned(word, tone)
}

/// Where a resource is in its life, when that is worth saying.
pub(crate) fn life<S: Spec<Change: Serialize>>(object: &Resource<S>) -> Cell {
    let doing = |change: &S::Change| match serde_json::to_value(change) {
        Ok(value) => value.get("kind").and_then(|kind| kind.as_str()).unwrap_or("change").into(),
        Err(_) => "change".to_owned(),
    };
    match object.lifecycle() {
        Lifecycle::Created { operation: None } => Cell::maybe(None::<String>),
        Lifecycle::Created { operation: Some(operation) } => {
            Cell::toned(doing(&operation.change), Tone::Warn)
        }
        other => Cell::toned(other.name(), Tone::Warn),
    }
}

pub(crate) fn labels(labels: &Labels) -> Cell {
    let each = labels.iter().map(|(key, value)| format!("{key}={value}"));
    let text = each.collect::<Vec<_>>().join(",");
    if text.is_empty() { Cell::maybe(None::<String>) } else { text.into() }
}

pub(crate) fn list<T: Display>(items: impl IntoIterator<Item = T>) -> Cell {
    let text = items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(",");
    if text.is_empty() { Cell::maybe(None::<String>) } else { text.into() }
}

/// To the second, without the letters that only programs need.
pub(crate) fn time(at: Timestamp) -> String {
    let text = at.to_string();
    text.get(..19).unwrap_or(&text).replace('T', " ")
}

/// What an order did, in a sentence.
pub(crate) fn ensured<T>(what: impl Display, answer: &Applied<T>) -> String {
    match answer.effect {
        Effect::Created => format!("{what} created"),
        Effect::Changed => format!("{what} changed"),
        Effect::Unchanged => format!("{what} unchanged: it was so before"),
    }
}

pub(crate) fn gone(what: impl Display, answer: Deleted) -> String {
    if answer.existed { format!("{what} deleted") } else { format!("{what} was not there") }
}

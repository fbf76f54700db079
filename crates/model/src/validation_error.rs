//! Why a value was refused: which field, which value, what to do instead.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;

use crate::ProblemKind;

/// A value that cannot be accepted, whoever sends it and however often.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {value} is refused: {remedy}")]
pub struct ValidationError {
    kind: ProblemKind,
    field: String,
    value: String,
    remedy: String,
}

impl ValidationError {
    /// A value of the wrong form. `remedy` completes "is refused: …" and says what is accepted.
    pub fn new(
        field: &str,
        value: impl fmt::Display,
        remedy: impl fmt::Display,
    ) -> ValidationError {
        ValidationError {
            kind: ProblemKind::InvalidArgument,
            field: field.to_string(),
            value: shown(&value.to_string()),
            remedy: remedy.to_string(),
        }
    }

    /// Text of the wrong form; quoted in the message.
    pub fn text(field: &str, text: &str, remedy: impl fmt::Display) -> ValidationError {
        let value = format!("{:?}", shown(text));
        ValidationError { value, ..ValidationError::new(field, "", remedy) }
    }

    /// The same refusal as another kind, for example one that says the state is in the way.
    #[must_use]
    pub fn of_kind(self, kind: ProblemKind) -> ValidationError {
        ValidationError { kind, ..self }
    }

    /// The same refusal seen from the thing that holds the field: `limits` + `iops`.
    #[must_use]
    pub fn within(self, parent: &str) -> ValidationError {
        ValidationError { field: format!("{parent}.{}", self.field), ..self }
    }

    /// What kind of error this is.
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The field, as a path of JSON names: `topology.nodes.allowed`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The value as it was given, shortened when it is long.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// What would be accepted.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

/// Refused input is repeated in messages and logs: never all of a long one.
fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_names_field_value_and_remedy() {
        let invalid =
            ValidationError::new("iops", 0, "give at least 1, or leave it out").within("limits");
        assert_eq!(
            invalid.to_string(),
            "limits.iops 0 is refused: give at least 1, or leave it out"
        );
        let text = ValidationError::text("node name", "A\n", "use lower case");
        assert_eq!(text.to_string(), r#"node name "A\n" is refused: use lower case"#);
    }

    #[test]
    fn long_values_are_cut_at_a_character() {
        let invalid = ValidationError::text("name", &"é".repeat(1000), "shorter");
        assert_eq!(invalid.value().chars().filter(|&c| c == 'é').count(), 80);
    }
}

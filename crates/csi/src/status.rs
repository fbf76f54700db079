//! Problems as gRPC statuses: one table, that of [`model::ProblemKind`].

use model::{Problem, ProblemKind, ValidationError};
use tonic::{Code, Status};

/// The status of a problem. The details stay empty, as the specification wants.
pub(crate) fn status(problem: Problem) -> Status {
    let code = Code::from_i32(i32::from(problem.kind.csi().number()));
    let Problem { field, detail, .. } = problem;
    let message = field.map_or_else(|| detail.clone(), |field| format!("{field}: {detail}"));
    Status::new(code, message)
}

/// A required field is missing.
pub(crate) fn missing(field: &'static str) -> Status {
    Status::invalid_argument(format!("{field} is missing from the request"))
}

/// A value is not acceptable.
pub(crate) fn invalid(invalid: ValidationError) -> Status {
    status(invalid.into())
}

/// Nothing has this id.
pub(crate) fn not_found(what: &str, id: &str) -> Status {
    Status::not_found(format!("there is no {what} {id}"))
}

/// Whether a problem says that something is not there.
pub(crate) fn is_missing(problem: &Problem) -> bool {
    problem.kind == ProblemKind::NotFound
}

/// What is there, or nothing.
pub(crate) fn found<T>(answered: Result<T, Problem>) -> Result<Option<T>, Status> {
    match answered {
        Ok(found) => Ok(Some(found)),
        Err(problem) if is_missing(&problem) => Ok(None),
        Err(problem) => Err(status(problem)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_code_and_its_message_names_the_field() {
        for kind in ProblemKind::ALL {
            let found = status(Problem::new(*kind, "detail"));
            assert_eq!(i32::from(found.code()), i32::from(kind.csi().number()), "{kind}");
            assert!(found.code() != Code::Ok && found.code() != Code::Unknown, "{kind}");
            assert_eq!((found.message(), found.details()), ("detail", &[][..]));
        }
        let size: Result<model::Size, _> = "x".parse();
        let refused = invalid(size.unwrap_err());
        assert_eq!(refused.code(), Code::InvalidArgument);
    }
}

//! Transactions: compares, the branch they choose, and inner transactions.
//!
//! All compares, those of inner transactions too, are judged before anything is written, as etcd
//! does; then everything on the chosen path is checked; only then is it done.

use std::cmp::Ordering;

use crate::proto::etcdserverpb::{
    Compare, RequestOp, ResponseOp, TxnRequest, TxnResponse,
    compare::{CompareResult, CompareTarget, TargetUnion},
    request_op::Request,
    response_op::Response,
};

use super::{
    index::Index,
    keys::KeyRange,
    machine::Step,
    query::{self, header},
    record::Record,
    status::Refusal,
};

/// A transaction with its branches chosen.
pub(crate) struct Path<'a> {
    succeeded: bool,
    steps: Vec<PathStep<'a>>,
}

enum PathStep<'a> {
    Op(&'a Request),
    Inner(Path<'a>),
}

/// Chooses the branches by the newest revision to be seen.
pub(crate) fn path<'a>(index: &Index, request: &'a TxnRequest, current: i64) -> Path<'a> {
    let succeeded = request.compare.iter().all(|compare| holds(index, compare, current));
    let ops = if succeeded { &request.success } else { &request.failure };
    let step = |op: &'a RequestOp| match &op.request {
        Some(Request::RequestTxn(inner)) => Some(PathStep::Inner(path(index, inner, current))),
        Some(op) => Some(PathStep::Op(op)),
        None => None,
    };
    Path { succeeded, steps: ops.iter().filter_map(step).collect() }
}

/// Whether anything is put on the path.
pub(crate) fn puts(path: &Path<'_>) -> bool {
    path.steps.iter().any(|step| match step {
        PathStep::Op(op) => matches!(op, Request::RequestPut(_)),
        PathStep::Inner(inner) => puts(inner),
    })
}

/// Whether all on the path can be done.
pub(crate) fn check(step: &Step<'_>, path: &Path<'_>) -> Result<(), Refusal> {
    for op in &path.steps {
        match op {
            PathStep::Op(Request::RequestPut(put)) => step.check_put(put)?,
            PathStep::Op(Request::RequestRange(range)) => {
                query::readable(step.index(), range.revision, step.current())?;
            }
            PathStep::Op(_) => {}
            PathStep::Inner(inner) => check(step, inner)?,
        }
    }
    Ok(())
}

/// Does all that is on a checked path.
pub(crate) fn apply(step: &mut Step<'_>, path: &Path<'_>) -> Result<TxnResponse, Refusal> {
    let mut responses = Vec::with_capacity(path.steps.len());
    for op in &path.steps {
        let response = match op {
            PathStep::Op(Request::RequestPut(put)) => Response::ResponsePut(step.put(put)),
            PathStep::Op(Request::RequestDeleteRange(delete)) => {
                Response::ResponseDeleteRange(step.delete_range(delete))
            }
            PathStep::Op(Request::RequestRange(range)) => {
                Response::ResponseRange(query::range(step.index(), range, step.current())?)
            }
            PathStep::Op(Request::RequestTxn(_)) => continue,
            PathStep::Inner(inner) => Response::ResponseTxn(apply(step, inner)?),
        };
        responses.push(ResponseOp { response: Some(response) });
    }
    let header = header(step.current());
    Ok(TxnResponse { header, succeeded: path.succeeded, responses })
}

/// Answers a transaction that cannot write, when `current` is the newest revision to be seen.
pub(crate) fn read(
    index: &Index,
    request: &TxnRequest,
    current: i64,
) -> Result<TxnResponse, Refusal> {
    read_path(index, &path(index, request, current), current)
}

fn read_path(index: &Index, path: &Path<'_>, current: i64) -> Result<TxnResponse, Refusal> {
    let mut responses = Vec::with_capacity(path.steps.len());
    for op in &path.steps {
        let response = match op {
            PathStep::Op(Request::RequestRange(range)) => {
                Response::ResponseRange(query::range(index, range, current)?)
            }
            PathStep::Op(_) => continue,
            PathStep::Inner(inner) => Response::ResponseTxn(read_path(index, inner, current)?),
        };
        responses.push(ResponseOp { response: Some(response) });
    }
    Ok(TxnResponse { header: header(current), succeeded: path.succeeded, responses })
}

fn holds(index: &Index, compare: &Compare, current: i64) -> bool {
    let range = KeyRange::new(&compare.key, &compare.range_end);
    let mut found = index.range(&range, current).peekable();
    if found.peek().is_some() {
        return found.all(|record| relates(compare, target(compare, Some(record))));
    }
    // A missing key has version, revisions and lease 0, but no value: an empty one would lie.
    compare.target() != CompareTarget::Value && relates(compare, target(compare, None))
}

/// How the key's side stands to the operand. An operand of another kind counts as zero or empty.
fn target(compare: &Compare, record: Option<&Record>) -> Ordering {
    let union = compare.target_union.as_ref();
    let number = |of: fn(&Record) -> i64, operand: Option<i64>| {
        record.map_or(0, of).cmp(&operand.unwrap_or(0))
    };
    match (compare.target(), union) {
        (CompareTarget::Version, Some(TargetUnion::Version(v))) => number(|r| r.version, Some(*v)),
        (CompareTarget::Version, _) => number(|r| r.version, None),
        (CompareTarget::Create, Some(TargetUnion::CreateRevision(v))) => {
            number(|r| r.create_revision, Some(*v))
        }
        (CompareTarget::Create, _) => number(|r| r.create_revision, None),
        (CompareTarget::Mod, Some(TargetUnion::ModRevision(v))) => {
            number(|r| r.revision.main, Some(*v))
        }
        (CompareTarget::Mod, _) => number(|r| r.revision.main, None),
        (CompareTarget::Lease, Some(TargetUnion::Lease(v))) => number(|r| r.lease, Some(*v)),
        (CompareTarget::Lease, _) => number(|r| r.lease, None),
        (CompareTarget::Value, union) => {
            let operand: &[u8] = match union {
                Some(TargetUnion::Value(value)) => value,
                _ => &[],
            };
            record.map_or(&[][..], |record| &record.value[..]).cmp(operand)
        }
    }
}

fn relates(compare: &Compare, ordering: Ordering) -> bool {
    match compare.result() {
        CompareResult::Equal => ordering.is_eq(),
        CompareResult::NotEqual => ordering.is_ne(),
        CompareResult::Greater => ordering.is_gt(),
        CompareResult::Less => ordering.is_lt(),
    }
}

//! Transactions.

use bytes::Bytes;
use tonic::Code::{InvalidArgument, NotFound, OutOfRange};

use super::target::{Target, put_request, revision};
use super::{Checked, Failure, refused, same};
use crate::proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::etcdserverpb::request_op::Request;
use crate::proto::etcdserverpb::response_op::Response;
use crate::proto::etcdserverpb::{self as pb, Compare, RequestOp, TxnRequest, TxnResponse};

const TWICE: (tonic::Code, &str) =
    (InvalidArgument, "etcdserver: duplicate key given in txn request");

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn put(at: &Target, name: &str, value: &str) -> RequestOp {
    op(Request::RequestPut(put_request(at.key(name), value)))
}

fn get(at: &Target, name: &str) -> RequestOp {
    op(Request::RequestRange(pb::RangeRequest { key: at.key(name), ..Default::default() }))
}

fn delete(at: &Target, from: &str, to: &str) -> RequestOp {
    let range_end = if to.is_empty() { Bytes::new() } else { at.key(to) };
    let request = pb::DeleteRangeRequest { key: at.key(from), range_end, prev_kv: false };
    op(Request::RequestDeleteRange(request))
}

fn inner(txn: TxnRequest) -> RequestOp {
    op(Request::RequestTxn(txn))
}

fn then(success: Vec<RequestOp>) -> TxnRequest {
    TxnRequest { success, ..Default::default() }
}

fn compare(at: &Target, name: &str, result: CompareResult, with: TargetUnion) -> Compare {
    let target = match &with {
        TargetUnion::Version(_) => CompareTarget::Version,
        TargetUnion::CreateRevision(_) => CompareTarget::Create,
        TargetUnion::ModRevision(_) => CompareTarget::Mod,
        TargetUnion::Value(_) => CompareTarget::Value,
        TargetUnion::Lease(_) => CompareTarget::Lease,
    };
    Compare {
        result: result.into(),
        target: target.into(),
        key: at.key(name),
        range_end: Bytes::new(),
        target_union: Some(with),
    }
}

fn value(text: &'static str) -> TargetUnion {
    TargetUnion::Value(Bytes::from_static(text.as_bytes()))
}

async fn succeeds(at: &Target, compare: Compare) -> Result<bool, Failure> {
    let request = TxnRequest { compare: vec![compare], ..Default::default() };
    Ok(at.txn(request).await?.succeeded)
}

/// The values read by the first operation.
fn first_read(answer: &TxnResponse) -> Vec<String> {
    match answer.responses.first().and_then(|op| op.response.as_ref()) {
        Some(Response::ResponseRange(range)) => {
            range.kvs.iter().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).collect()
        }
        _ => vec!["not a read".into()],
    }
}

pub(super) async fn compares_every_target(at: Target) -> Checked {
    let lease = at.grant(60).await?;
    let created = at.put("a", "k").await?;
    let request = pb::PutRequest { lease, ..put_request(at.key("a"), "m") };
    at.kv().put(request).await?;
    let (version, changed) = (2, created + 1);
    // Each operand is below, at, or above the key's side.
    let operands = [
        ("version", [1, version, 3].map(TargetUnion::Version)),
        ("create", [created - 1, created, created + 1].map(TargetUnion::CreateRevision)),
        ("mod", [changed - 1, changed, changed + 1].map(TargetUnion::ModRevision)),
        ("value", ["l", "m", "n"].map(value)),
        ("lease", [lease - 1, lease, lease + 1].map(TargetUnion::Lease)),
    ];
    let wanted = [
        (CompareResult::Equal, [false, true, false]),
        (CompareResult::Greater, [true, false, false]),
        (CompareResult::Less, [false, false, true]),
        (CompareResult::NotEqual, [true, false, true]),
    ];
    for (target, operands) in operands {
        for (result, want) in wanted {
            for (operand, want) in operands.iter().zip(want) {
                let what = format!("{target} {result:?} {operand:?}");
                let holds = succeeds(&at, compare(&at, "a", result, operand.clone())).await?;
                same(&what, holds, want)?;
            }
        }
    }
    Ok(())
}

pub(super) async fn compares_a_missing_key(at: Target) -> Checked {
    use CompareResult::{Equal, Greater, Less, NotEqual};
    for zero in [
        TargetUnion::Version(0),
        TargetUnion::CreateRevision(0),
        TargetUnion::ModRevision(0),
        TargetUnion::Lease(0),
    ] {
        let what = format!("{zero:?}");
        same(&what, succeeds(&at, compare(&at, "a", Equal, zero.clone())).await?, true)?;
        same(&what, succeeds(&at, compare(&at, "a", Greater, zero)).await?, false)?;
    }
    for result in [Equal, Greater, Less, NotEqual] {
        let holds = succeeds(&at, compare(&at, "a", result, value(""))).await?;
        same("the value of a missing key compares to nothing", holds, false)?;
    }
    Ok(())
}

pub(super) async fn compares_a_range(at: Target) -> Checked {
    at.put("a", "x").await?;
    at.put("b", "x").await?;
    let all = |result, with| Compare {
        key: at.key(""),
        range_end: at.end(),
        ..compare(&at, "", result, with)
    };
    let equal = CompareResult::Equal;
    same("both hold x", succeeds(&at, all(equal, value("x"))).await?, true)?;
    at.put("b", "y").await?;
    same("one holds y", succeeds(&at, all(equal, value("x"))).await?, false)?;
    let some = CompareResult::Greater;
    same("all exist", succeeds(&at, all(some, TargetUnion::CreateRevision(0))).await?, true)?;
    at.tidy().await?;
    same(
        "none is like a missing key",
        succeeds(&at, all(equal, TargetUnion::Version(0))).await?,
        true,
    )
}

pub(super) async fn all_in_one_revision(at: Target) -> Checked {
    at.put("c", "1").await?;
    let before = at.put("d", "1").await?;
    let ops = vec![put(&at, "a", "1"), put(&at, "b", "1"), delete(&at, "c", "e")];
    let answer = at.txn(then(ops)).await?;
    same("succeeded", answer.succeeded, true)?;
    same("one revision", revision(answer.header), before + 1)?;
    same("answers", answer.responses.len(), 3)?;
    let kvs = at.range(at.all()).await?.kvs;
    same("left", at.names(&kvs).concat(), "ab".into())?;
    let revisions: Vec<_> = kvs.iter().map(|kv| (kv.create_revision, kv.mod_revision)).collect();
    same("their revisions", revisions, vec![(before + 1, before + 1); 2])
}

pub(super) async fn reads_its_own_writes(at: Target) -> Checked {
    at.put("a", "old").await?;
    let ops = vec![get(&at, "a"), put(&at, "a", "new"), get(&at, "a"), delete(&at, "b", "")];
    let answer = at.txn(then(ops)).await?;
    same("before the write", first_read(&answer), vec!["old".into()])?;
    match answer.responses.get(2).and_then(|op| op.response.as_ref()) {
        Some(Response::ResponseRange(range)) => {
            let value = range.kvs.first().map(|kv| kv.value.clone());
            same("after the write", value, Some(Bytes::from_static(b"new")))
        }
        _ => Err(Failure::Missing("the second read")),
    }
}

pub(super) async fn takes_the_other_branch(at: Target) -> Checked {
    at.put("a", "1").await?;
    let request = TxnRequest {
        compare: vec![
            compare(&at, "a", CompareResult::Equal, value("1")),
            compare(&at, "a", CompareResult::Equal, TargetUnion::Version(7)),
        ],
        success: vec![put(&at, "a", "then")],
        failure: vec![get(&at, "a"), put(&at, "a", "else")],
    };
    let answer = at.txn(request).await?;
    same("succeeded", answer.succeeded, false)?;
    same("read", first_read(&answer), vec!["1".into()])?;
    same("written", at.must_get("a").await?.value.as_ref(), b"else")
}

pub(super) async fn reading_makes_no_revision(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    let answer = at.txn(then(vec![get(&at, "a")])).await?;
    same("after a read", revision(answer.header), before)?;
    let answer = at.txn(TxnRequest::default()).await?;
    same("an empty one succeeds", (answer.succeeded, answer.responses.len()), (true, 0))?;
    let answer = at.txn(then(vec![delete(&at, "b", "c")])).await?;
    same("after deleting nothing", revision(answer.header), before)
}

pub(super) async fn nested(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    let innermost = TxnRequest {
        compare: vec![compare(&at, "a", CompareResult::Equal, value("2"))],
        success: vec![put(&at, "c", "then")],
        failure: vec![put(&at, "c", "else")],
    };
    let middle = TxnRequest {
        compare: vec![compare(&at, "a", CompareResult::Equal, value("1"))],
        success: vec![put(&at, "b", "then"), inner(innermost)],
        failure: vec![],
    };
    let answer = at.txn(then(vec![put(&at, "d", "1"), inner(middle)])).await?;
    same("one revision", revision(answer.header), before + 1)?;
    let Some(Response::ResponseTxn(middle)) =
        answer.responses.get(1).and_then(|op| op.response.as_ref())
    else {
        return Err(Failure::Missing("the answer of the inner transaction"));
    };
    same("middle succeeded", middle.succeeded, true)?;
    let Some(Response::ResponseTxn(innermost)) =
        middle.responses.get(1).and_then(|op| op.response.as_ref())
    else {
        return Err(Failure::Missing("the answer of the innermost transaction"));
    };
    same("innermost took the other branch", innermost.succeeded, false)?;
    same("b", at.must_get("b").await?.value.as_ref(), b"then")?;
    same("c", at.must_get("c").await?.value.as_ref(), b"else")?;
    same("c's revision", at.must_get("c").await?.mod_revision, before + 1)
}

pub(super) async fn inner_compares_see_the_state_before(at: Target) -> Checked {
    at.put("a", "old").await?;
    let check = TxnRequest {
        compare: vec![compare(&at, "a", CompareResult::Equal, value("old"))],
        success: vec![put(&at, "b", "saw old")],
        failure: vec![put(&at, "b", "saw new")],
    };
    at.txn(then(vec![put(&at, "a", "new"), inner(check)])).await?;
    same("b", at.must_get("b").await?.value.as_ref(), b"saw old")
}

pub(super) async fn refuses_a_key_written_twice(at: Target) -> Checked {
    let before = at.put("z", "1").await?;
    let two = then(vec![put(&at, "a", "1"), put(&at, "a", "2")]);
    refused("twice", at.txn(two).await, TWICE)?;
    let two =
        TxnRequest { failure: vec![put(&at, "a", "1"), put(&at, "a", "2")], ..Default::default() };
    refused("twice in the branch not taken", at.txn(two).await, TWICE)?;
    let two = then(vec![delete(&at, "a", "c"), put(&at, "b", "1")]);
    refused("deleted and written", at.txn(two).await, TWICE)?;
    let two = then(vec![put(&at, "b", "1"), delete(&at, "a", "c")]);
    refused("written and deleted", at.txn(two).await, TWICE)?;
    let two = then(vec![put(&at, "a", "1"), inner(then(vec![put(&at, "a", "2")]))]);
    refused("outside and inside", at.txn(two).await, TWICE)?;
    let two =
        then(vec![inner(then(vec![put(&at, "a", "1")])), inner(then(vec![put(&at, "a", "2")]))]);
    refused("in two inner ones", at.txn(two).await, TWICE)?;
    at.txn(then(vec![delete(&at, "a", "c"), delete(&at, "b", "d")])).await?;
    same("nothing was written", at.put("z", "2").await? - before, 1)
}

pub(super) async fn branches_may_write_the_same_key(at: Target) -> Checked {
    let inner_one = TxnRequest {
        compare: vec![],
        success: vec![put(&at, "b", "then")],
        failure: vec![put(&at, "b", "else")],
    };
    let request = TxnRequest {
        compare: vec![],
        success: vec![put(&at, "a", "then"), inner(inner_one)],
        failure: vec![put(&at, "a", "else")],
    };
    at.txn(request).await?;
    same("a", at.must_get("a").await?.value.as_ref(), b"then")?;
    same("b", at.must_get("b").await?.value.as_ref(), b"then")
}

pub(super) async fn refuses_too_many_operations(at: Target) -> Checked {
    let many = |count: usize| (0..count).map(|n| put(&at, &n.to_string(), "1")).collect();
    at.txn(then(many(128))).await?;
    let too_many = (InvalidArgument, "etcdserver: too many operations in txn request");
    refused("129", at.txn(then(many(129))).await, too_many)?;
    let request = TxnRequest { failure: many(129), ..Default::default() };
    refused("129 otherwise", at.txn(request).await, too_many)?;
    let compare = compare(&at, "a", CompareResult::Equal, TargetUnion::Version(0));
    let request = TxnRequest { compare: vec![compare; 129], ..Default::default() };
    refused("129 compares", at.txn(request).await, too_many)
}

pub(super) async fn refuses_bad_operations(at: Target) -> Checked {
    let no_key = (InvalidArgument, "etcdserver: key is not provided");
    let empty = op(Request::RequestPut(pb::PutRequest::default()));
    refused("put", at.txn(then(vec![empty])).await, no_key)?;
    let empty = op(Request::RequestRange(pb::RangeRequest::default()));
    refused("read", at.txn(then(vec![empty])).await, no_key)?;
    let empty = op(Request::RequestDeleteRange(pb::DeleteRangeRequest::default()));
    refused("delete", at.txn(then(vec![empty])).await, no_key)?;
    let unnamed = Compare {
        key: Bytes::new(),
        ..compare(&at, "a", CompareResult::Equal, TargetUnion::Version(0))
    };
    let request = TxnRequest { compare: vec![unnamed], ..Default::default() };
    refused("compare", at.txn(request).await, no_key)?;
    let keep = pb::PutRequest {
        ignore_value: true,
        value: Bytes::from_static(b"v"),
        ..put_request(at.key("a"), "")
    };
    let answer = at.txn(then(vec![op(Request::RequestPut(keep))])).await;
    refused("value to ignore", answer, (InvalidArgument, "etcdserver: value is provided"))
}

pub(super) async fn refused_as_a_whole(at: Target) -> Checked {
    let before = at.put("a", "1").await?;
    let lease = pb::PutRequest { lease: 4711, ..put_request(at.key("b"), "1") };
    let request = then(vec![put(&at, "a", "2"), op(Request::RequestPut(lease.clone()))]);
    let gone = (NotFound, "etcdserver: requested lease not found");
    refused("unknown lease", at.txn(request).await, gone)?;
    let keep = pb::PutRequest { ignore_value: true, ..put_request(at.key("b"), "") };
    let request = then(vec![put(&at, "a", "2"), op(Request::RequestPut(keep))]);
    let missing = (InvalidArgument, "etcdserver: key not found");
    refused("nothing to keep", at.txn(request).await, missing)?;
    let not_taken =
        TxnRequest { failure: vec![op(Request::RequestPut(lease))], ..then(vec![get(&at, "a")]) };
    let answer = at.txn(not_taken).await?;
    same("a branch not taken needs no lease", first_read(&answer), vec!["1".into()])?;
    let kv = at.must_get("a").await?;
    same("nothing was written", (kv.mod_revision, kv.version), (before, 1))
}

pub(super) async fn reads_at_an_old_revision(at: Target) -> Checked {
    let first = at.put("a", "1").await?;
    let second = at.put("a", "2").await?;
    let read = |revision| {
        let range = pb::RangeRequest { key: at.key("a"), revision, ..Default::default() };
        then(vec![op(Request::RequestRange(range)), put(&at, "b", "1")])
    };
    let answer = at.txn(read(first)).await?;
    same("old value", first_read(&answer), vec!["1".into()])?;
    let words = "etcdserver: mvcc: required revision is a future revision";
    let answer = at.txn(read(second + 1000)).await;
    refused("future", answer, (OutOfRange, words))
}

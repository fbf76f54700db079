//! Between the contract and the messages of the protocol.

use std::time::Duration;

use crate::contract::{
    Change, Compare, CompareOp, KeyValue, LeaseId, Op, OpResponse, Operand, Page, Projection,
    Query, Revision, Txn, TxnOutcome,
};
use crate::proto::etcdserverpb as pb;
use crate::proto::mvccpb;

pub(super) fn range_request(query: &Query) -> pb::RangeRequest {
    let (key, range_end) = query.keys.to_wire();
    pb::RangeRequest {
        key,
        range_end,
        limit: query.limit.into(),
        revision: query.at.map_or(0, |revision| revision.0),
        keys_only: query.of == Projection::Keys,
        count_only: query.of == Projection::Count,
        ..Default::default()
    }
}

pub(super) fn page(answer: pb::RangeResponse) -> Page {
    Page {
        revision: revision(answer.header.as_ref()),
        kvs: answer.kvs.into_iter().map(key_value).collect(),
        more: answer.more,
        count: count(answer.count),
    }
}

pub(super) fn txn_request(txn: Txn) -> pb::TxnRequest {
    pb::TxnRequest {
        compare: txn.when.into_iter().map(compare).collect(),
        success: txn.then.into_iter().map(request_op).collect(),
        failure: txn.otherwise.into_iter().map(request_op).collect(),
    }
}

pub(super) fn txn_outcome(answer: pb::TxnResponse) -> TxnOutcome {
    TxnOutcome {
        revision: revision(answer.header.as_ref()),
        succeeded: answer.succeeded,
        answers: answer.responses.into_iter().filter_map(|op| op.response).map(reply).collect(),
    }
}

pub(super) fn change(event: mvccpb::Event) -> Option<Change> {
    let deleted = event.r#type() == mvccpb::event::EventType::Delete;
    let kv = event.kv?;
    let before = event.prev_kv.map(key_value);
    Some(if deleted {
        Change::Deleted { key: kv.key, at: Revision(kv.mod_revision), before }
    } else {
        Change::Put { now: key_value(kv), before }
    })
}

pub(super) fn revision(header: Option<&pb::ResponseHeader>) -> Revision {
    header.map_or(Revision::ZERO, |header| Revision(header.revision))
}

/// Leases are counted in seconds; a part of a second lives for a whole one.
pub(super) fn whole_seconds(time: Duration) -> i64 {
    let more = u64::from(time.subsec_nanos() > 0);
    i64::try_from(time.as_secs().saturating_add(more)).unwrap_or(i64::MAX)
}

pub(super) fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

fn key_value(kv: mvccpb::KeyValue) -> KeyValue {
    KeyValue {
        key: kv.key,
        value: kv.value,
        created: Revision(kv.create_revision),
        changed: Revision(kv.mod_revision),
        version: kv.version,
        lease: LeaseId::from_wire(kv.lease),
    }
}

fn count(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

fn compare(compare: Compare) -> pb::Compare {
    use pb::compare::{CompareResult, CompareTarget, TargetUnion};
    let result = match compare.is {
        CompareOp::Equal => CompareResult::Equal,
        CompareOp::Greater => CompareResult::Greater,
        CompareOp::Less => CompareResult::Less,
        CompareOp::NotEqual => CompareResult::NotEqual,
    };
    let (target, operand) = match compare.with {
        Operand::Version(version) => (CompareTarget::Version, TargetUnion::Version(version)),
        Operand::Created(at) => (CompareTarget::Create, TargetUnion::CreateRevision(at.0)),
        Operand::Changed(at) => (CompareTarget::Mod, TargetUnion::ModRevision(at.0)),
        Operand::Value(value) => (CompareTarget::Value, TargetUnion::Value(value)),
        Operand::Lease(lease) => {
            (CompareTarget::Lease, TargetUnion::Lease(lease.map_or(0, |lease| lease.0)))
        }
    };
    pb::Compare {
        result: result.into(),
        target: target.into(),
        key: compare.key,
        range_end: bytes::Bytes::new(),
        target_union: Some(operand),
    }
}

fn request_op(op: Op) -> pb::RequestOp {
    use pb::request_op::Request;
    let request = match op {
        Op::Get(query) => Request::RequestRange(range_request(&query)),
        Op::Put { key, value, lease } => Request::RequestPut(pb::PutRequest {
            key,
            value,
            lease: lease.map_or(0, |lease| lease.0),
            ..Default::default()
        }),
        Op::Delete(keys) => {
            let (key, range_end) = keys.to_wire();
            Request::RequestDeleteRange(pb::DeleteRangeRequest { key, range_end, prev_kv: false })
        }
        Op::Txn(txn) => Request::RequestTxn(txn_request(txn)),
    };
    pb::RequestOp { request: Some(request) }
}

fn reply(response: pb::response_op::Response) -> OpResponse {
    use pb::response_op::Response;
    match response {
        Response::ResponseRange(answer) => OpResponse::Read(page(answer)),
        Response::ResponsePut(_) => OpResponse::Put,
        Response::ResponseDeleteRange(answer) => OpResponse::Deleted(count(answer.deleted)),
        Response::ResponseTxn(answer) => OpResponse::Txn(txn_outcome(answer)),
    }
}

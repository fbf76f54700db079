//! What can be wrong with a request by itself, whatever the store holds.

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message;

use crate::proto::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
    range_request::{SortOrder, SortTarget},
    request_op::Request,
};

use super::{keys::KeyRange, status::Refusal};

/// Most operations, compares or both branches of one transaction, all levels together.
pub(crate) const MAX_TXN_OPS: usize = 128;
/// Most bytes of one request.
pub(crate) const MAX_REQUEST_BYTES: usize = 3 << 19;

/// Checks a request to read.
pub(crate) fn range(request: &RangeRequest) -> Result<(), Refusal> {
    key(&request.key)?;
    let order = SortOrder::try_from(request.sort_order);
    let target = SortTarget::try_from(request.sort_target);
    if order.is_err() || target.is_err() { Err(Refusal::BadSort) } else { Ok(()) }
}

/// Checks a request to write.
pub(crate) fn put(request: &PutRequest) -> Result<(), Refusal> {
    key(&request.key)?;
    if request.ignore_value && !request.value.is_empty() {
        return Err(Refusal::ValueProvided);
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Refusal::LeaseProvided);
    }
    size(request)
}

/// Checks a request to delete.
pub(crate) fn delete(request: &DeleteRangeRequest) -> Result<(), Refusal> {
    key(&request.key)?;
    size(request)
}

/// Checks a transaction.
pub(crate) fn txn(request: &TxnRequest) -> Result<(), Refusal> {
    txn_ops(request, MAX_TXN_OPS)?;
    writes(&request.success)?;
    writes(&request.failure)?;
    size(request)
}

/// Whether neither branch of a transaction can write.
pub(crate) fn is_read_only(request: &TxnRequest) -> bool {
    request.success.iter().chain(&request.failure).all(|op| match &op.request {
        Some(Request::RequestTxn(inner)) => is_read_only(inner),
        Some(Request::RequestRange(_)) => true,
        _ => false,
    })
}

fn key(key: &Bytes) -> Result<(), Refusal> {
    if key.is_empty() { Err(Refusal::EmptyKey) } else { Ok(()) }
}

fn size(request: &impl Message) -> Result<(), Refusal> {
    if request.encoded_len() > MAX_REQUEST_BYTES { Err(Refusal::TooLarge) } else { Ok(()) }
}

fn txn_ops(request: &TxnRequest, max: usize) -> Result<(), Refusal> {
    let most = request.compare.len().max(request.success.len()).max(request.failure.len());
    let Some(left) = max.checked_sub(most) else { return Err(Refusal::TooManyOps) };
    for compare in &request.compare {
        key(&compare.key)?;
    }
    for op in request.success.iter().chain(&request.failure) {
        match &op.request {
            Some(Request::RequestRange(request)) => range(request)?,
            Some(Request::RequestPut(request)) => put(request)?,
            Some(Request::RequestDeleteRange(request)) => delete(request)?,
            Some(Request::RequestTxn(request)) => txn_ops(request, left)?,
            None => return Err(Refusal::KeyNotFound),
        }
    }
    Ok(())
}

/// The keys that a list of operations may write.
#[derive(Default)]
struct Writes {
    puts: BTreeSet<Bytes>,
    deletes: Vec<KeyRange>,
}

impl Writes {
    fn put(&mut self, key: &Bytes) -> Result<(), Refusal> {
        if self.deletes.iter().any(|deleted| deleted.contains(key)) || self.puts.contains(key) {
            return Err(Refusal::DuplicateKey);
        }
        self.puts.insert(key.clone());
        Ok(())
    }
}

/// Collects what a list of operations may write; one key may be written once. The two branches of
/// an inner transaction may write the same key, as only one of them runs.
fn writes(ops: &[RequestOp]) -> Result<Writes, Refusal> {
    let mut all = Writes::default();
    for op in ops {
        if let Some(Request::RequestDeleteRange(delete)) = &op.request {
            all.deletes.push(KeyRange::new(&delete.key, &delete.range_end));
        }
    }
    for op in ops {
        if let Some(Request::RequestTxn(txn)) = &op.request {
            let then = writes(&txn.success)?;
            let otherwise = writes(&txn.failure)?;
            for key in &then.puts {
                all.put(key)?;
            }
            for key in &otherwise.puts {
                if then.puts.contains(key) {
                    continue;
                }
                all.put(key)?;
            }
            all.deletes.extend(then.deletes);
            all.deletes.extend(otherwise.deletes);
        }
    }
    for op in ops {
        if let Some(Request::RequestPut(put)) = &op.request {
            all.put(&put.key)?;
        }
    }
    Ok(all)
}

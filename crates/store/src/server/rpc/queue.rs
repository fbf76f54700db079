//! Waiting in line with a key on a lease: what locks and elections have in common.
//!
//! Whoever has the oldest key under a prefix is first. A caller that stops waiting takes its key
//! away again; one that dies leaves that to its lease.

use bytes::Bytes;

use crate::proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RequestOp,
        TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        range_request::{SortOrder, SortTarget},
        request_op::Request as Op,
        response_op::Response as Answer,
    },
    mvccpb::KeyValue,
};

use super::{
    super::{auth::Caller, query, status::Refusal},
    SMALL, Service,
};

/// Seconds that the lease of a caller without one lives.
const TTL: i64 = 60;

/// A place in the line.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: Bytes,
    /// Revision that created the key.
    pub(super) revision: i64,
    pub(super) lease: i64,
}

/// The keys of all who wait, and of who is first: `name/` and the lease in hexadecimal.
pub(super) fn prefix(name: &Bytes) -> (Bytes, Bytes) {
    let end: &[u8] = b"0";
    ([&name[..], b"/"].concat().into(), [&name[..], end].concat().into())
}

/// Takes a place away unless it was reached.
struct Guard {
    service: Service,
    caller: Caller,
    place: Option<Place>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let (service, caller) = (self.service.clone(), self.caller.clone());
            // What cannot be deleted now ends with its lease.
            drop(tokio::spawn(async move { service.leave(&caller, &place).await }));
        }
    }
}

impl Service {
    /// Gets in line and waits until first.
    pub(super) async fn wait_in_line(
        &self,
        caller: &Caller,
        (name, value): (&Bytes, Bytes),
        lease: i64,
    ) -> Result<Place, Refusal> {
        let lease = if lease == 0 { self.own_lease(caller).await? } else { lease };
        let key: Bytes = [&name[..], format!("/{lease:x}").as_bytes()].concat().into();
        let place = self.join(caller, (key, value), lease).await?;
        let (service, caller) = (self.clone(), caller.clone());
        let mut guard = Guard { service, caller, place: Some(place.clone()) };
        let mut published = self.shared.subscribe();
        loop {
            published.borrow_and_update();
            let mine = self.first(&single(&place.key))?;
            if mine.is_none_or(|kv| kv.create_revision != place.revision) {
                guard.place = None;
                return Err(Refusal::SessionExpired);
            }
            if self.first(&prefix(name))?.is_some_and(|kv| kv.key == place.key) {
                guard.place = None;
                return Ok(place);
            }
            tokio::select! {
                changed = published.changed() => changed.map_err(|_| Refusal::Stopped)?,
                () = self.stop.cancelled() => return Err(Refusal::Stopped),
            }
        }
    }

    /// The oldest key of a range.
    pub(super) fn first(
        &self,
        (key, range_end): &(Bytes, Bytes),
    ) -> Result<Option<KeyValue>, Refusal> {
        let request = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: 1,
            sort_order: SortOrder::Ascend.into(),
            sort_target: SortTarget::Create.into(),
            ..RangeRequest::default()
        };
        Ok(query::range_in_pieces(&self.shared, &request)?.kvs.into_iter().next())
    }

    /// Writes a value into a place that is still there.
    pub(super) async fn write(
        &self,
        caller: &Caller,
        place: &Place,
        value: Bytes,
    ) -> Result<i64, Refusal> {
        let (key, lease) = (place.key.clone(), place.lease);
        let put = PutRequest { key, value, lease, ..PutRequest::default() };
        self.in_place(caller, place, Op::RequestPut(put)).await
    }

    /// Takes a place away if it is still there.
    pub(super) async fn leave(&self, caller: &Caller, place: &Place) -> Result<i64, Refusal> {
        let key = place.key.clone();
        let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        self.in_place(caller, place, Op::RequestDeleteRange(delete)).await
    }

    async fn own_lease(&self, caller: &Caller) -> Result<i64, Refusal> {
        let caller = caller.clone();
        let call = self.writer.call(SMALL, move |machine, index, now| {
            machine.auth().permit_any(&caller)?;
            machine.lease_grant(index, &LeaseGrantRequest { ttl: TTL, id: 0 }, now)
        });
        Ok(call.await?.id)
    }

    /// Makes the key, or finds the one that an earlier call of the same lease made.
    async fn join(
        &self,
        caller: &Caller,
        (key, value): (Bytes, Bytes),
        lease: i64,
    ) -> Result<Place, Refusal> {
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        let request = TxnRequest {
            compare: vec![created(&key, 0)],
            success: vec![RequestOp { request: Some(Op::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(Op::RequestRange(get)) }],
        };
        let size = SMALL + key.len();
        let caller = caller.clone();
        let call = self.writer.call(size, move |machine, index, _| {
            machine.auth().permit_txn(&caller, &request)?;
            machine.txn(index, &request)
        });
        let done = call.await?;
        let revision = match done.responses.first().and_then(|op| op.response.as_ref()) {
            Some(Answer::ResponseRange(found)) => {
                found.kvs.first().map_or(0, |kv| kv.create_revision)
            }
            _ => done.header.map_or(0, |header| header.revision),
        };
        Ok(Place { key, revision, lease })
    }

    async fn in_place(&self, caller: &Caller, place: &Place, op: Op) -> Result<i64, Refusal> {
        let request = TxnRequest {
            compare: vec![created(&place.key, place.revision)],
            success: vec![RequestOp { request: Some(op) }],
            failure: Vec::new(),
        };
        let caller = caller.clone();
        let call = self.writer.call(SMALL + place.key.len(), move |machine, index, _| {
            machine.auth().permit_txn(&caller, &request)?;
            machine.txn(index, &request)
        });
        let done = call.await?;
        let revision = done.header.map_or(0, |header| header.revision);
        if done.succeeded { Ok(revision) } else { Err(Refusal::NotLeader) }
    }
}

pub(super) fn single(key: &Bytes) -> (Bytes, Bytes) {
    (key.clone(), Bytes::new())
}

fn created(key: &Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key: key.clone(),
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

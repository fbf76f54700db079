//! Health, size and copies.

use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    HashKvRequest, HashKvResponse, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse, maintenance_server::Maintenance,
};

use super::{
    super::{
        disk::{Head, write_checkpoint},
        entry::Entry,
        journal::Journal,
        keys::KeyRange,
        query, random,
        server_state::ServerState,
    },
    Service,
};

/// The version of etcd whose protocol this is.
const VERSION: &str = "3.5.13";
/// Bytes of one piece of a copy.
const PIECE: usize = 64 << 10;
/// Clients take a file for a copy with a checksum when 32 bytes are left over after this unit.
const COPY_UNIT: u64 = 512;
/// Pieces of a copy that wait for a client to take them.
const PIECES: usize = 4;

#[async_trait]
impl Maintenance for Service {
    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn alarm(&self, _: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        // The only alarm is a disk that cannot be written, and only a restart clears it.
        let alarm = |_| AlarmMember {
            member_id: self.shared.identity().member,
            alarm: AlarmType::Nospace.into(),
        };
        Ok(Response::new(AlarmResponse {
            header: Some(self.shared.header(self.shared.published())),
            alarms: self.shared.failure().map(alarm).into_iter().collect(),
        }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let revision = self.shared.published();
        let header = self.shared.header(revision);
        let index = u64::try_from(revision).unwrap_or(0);
        let in_use = query::length(self.shared.index().bytes());
        Ok(Response::new(StatusResponse {
            version: VERSION.to_owned(),
            db_size: i64::try_from(self.shared.disk_bytes()).unwrap_or(i64::MAX),
            db_size_in_use: in_use,
            leader: header.member_id,
            raft_index: index,
            raft_term: header.raft_term,
            raft_applied_index: index,
            errors: self.shared.failure().map(str::to_owned).into_iter().collect(),
            is_learner: false,
            header: Some(header),
        }))
    }

    async fn defragment(
        &self,
        _: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        let revision = self.writer.rewrite().await?;
        Ok(Response::new(DefragmentResponse { header: Some(self.shared.header(revision)) }))
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        let index = self.shared.index();
        let current = self.shared.published();
        let at = query::readable(&index, request.into_inner().revision, current)?;
        let everything = KeyRange::new(&Bytes::from_static(&[0]), &Bytes::from_static(&[0]));
        let mut bytes = Vec::new();
        let mut hash = 0;
        for record in index.range(&everything, at) {
            bytes.clear();
            Entry::Changed(Arc::clone(record)).encode(&mut bytes);
            hash = crc32c::crc32c_append(hash, &bytes);
        }
        Ok(Response::new(HashKvResponse {
            header: Some(self.shared.header(current)),
            hash,
            compact_revision: index.compacted(),
        }))
    }

    async fn snapshot(
        &self,
        _: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let room = self.take_stream()?;
        let head = self.writer.head().await?;
        let (pieces, stream) = mpsc::channel(PIECES);
        let (shared, place) = (Arc::clone(&self.shared), Arc::clone(&self.place));
        tokio::task::spawn_blocking(move || {
            if let Err(error) = copy(&shared, &place.dir, &head, &pieces) {
                let why = format!("cannot copy the store in {}: {error}", place.dir.display());
                // The client may have gone.
                let _ = pieces.blocking_send(Err(Status::unavailable(why)));
            }
            drop(room);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Writes a copy into a file without a name and sends it in pieces, then its checksum.
fn copy(
    shared: &ServerState,
    dir: &Path,
    head: &Head,
    pieces: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) -> io::Result<()> {
    let file = nameless(dir)?;
    let journal = Journal::create_copy(Box::new(file), head.identity, random())?;
    let mut journal = write_checkpoint(journal, head, shared.lock())?;
    let length = journal.pad(COPY_UNIT)?;
    let mut sum = Sha256::new();
    let mut at = 0;
    while at < length {
        let size = usize::try_from(length - at).unwrap_or(PIECE).min(PIECE);
        let mut blob = vec![0; size];
        journal.read_at(at, &mut blob)?;
        sum.update(&blob);
        at += u64::try_from(size).unwrap_or(length);
        let header = Some(shared.header(head.revision));
        let remaining_bytes = length - at;
        let piece = SnapshotResponse { header, remaining_bytes, blob: blob.into() };
        if pieces.blocking_send(Ok(piece)).is_err() {
            return Ok(());
        }
    }
    let blob = Bytes::copy_from_slice(&sum.finalize());
    let header = Some(shared.header(head.revision));
    let _ = pieces.blocking_send(Ok(SnapshotResponse { header, remaining_bytes: 0, blob }));
    Ok(())
}

/// A file that vanishes when it is closed.
fn nameless(dir: &Path) -> io::Result<File> {
    let path = dir.join(format!("copy-{:016x}.tmp", random()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

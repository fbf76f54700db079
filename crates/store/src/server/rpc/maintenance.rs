//! Health, size and copies.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse, alarm_request::AlarmAction, downgrade_request::DowngradeAction,
    maintenance_server::Maintenance,
};

use super::{
    super::{
        disk::{Head, write_copy},
        entry::Entry,
        journal::Journal,
        keys::KeyRange,
        query, random,
        server_state::ServerState,
        settings::{AlarmCause, Setting},
        status::Refusal,
        storage::MODE,
    },
    SMALL, Service,
};

/// The version of etcd whose protocol this is.
pub(crate) const VERSION: &str = "3.5.13";
/// Bytes of one piece of a copy.
const PIECE: usize = 64 << 10;
/// Clients take a file for a copy with a checksum when 32 bytes are left over after this unit.
const COPY_UNIT: u64 = 512;
/// Pieces of a copy that wait for a client to take them.
const PIECES: usize = 4;

#[async_trait]
impl Maintenance for Service {
    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn alarm(
        &self,
        request: Request<AlarmRequest>,
    ) -> Result<Response<AlarmResponse>, Status> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let changed = match request.action() {
            AlarmAction::Get => self.alarms(request.alarm, |_| true),
            action => {
                self.shared.settings().auth.permit_root(&caller)?;
                self.change_alarm(&request, action == AlarmAction::Activate).await?
            }
        };
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(AlarmResponse { header, alarms: changed }))
    }

    async fn status(&self, _: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let revision = self.shared.published();
        let header = self.shared.header(revision);
        let index = u64::try_from(revision).unwrap_or(0);
        let db_size = i64::try_from(self.shared.disk_bytes()).unwrap_or(i64::MAX);
        // Memory has more to keep for a record than the disk.
        let db_size_in_use = query::length(self.shared.index().bytes()).min(db_size);
        Ok(Response::new(StatusResponse {
            version: VERSION.to_owned(),
            db_size,
            db_size_in_use,
            leader: header.member_id,
            raft_index: index,
            raft_term: header.raft_term,
            raft_applied_index: index,
            errors: self.errors(),
            is_learner: false,
            header: Some(header),
        }))
    }

    async fn defragment(
        &self,
        request: Request<DefragmentRequest>,
    ) -> Result<Response<DefragmentResponse>, Status> {
        self.permit_root(&request)?;
        let revision = self.writer.rewrite().await?;
        Ok(Response::new(DefragmentResponse { header: Some(self.shared.header(revision)) }))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Result<Response<HashResponse>, Status> {
        self.permit_root(&request)?;
        let (current, hash, _) = self.hash_at(0)?;
        Ok(Response::new(HashResponse { header: Some(self.shared.header(current)), hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<HashKvRequest>,
    ) -> Result<Response<HashKvResponse>, Status> {
        self.permit_root(&request)?;
        let (current, hash, compact_revision) = self.hash_at(request.into_inner().revision)?;
        let header = Some(self.shared.header(current));
        Ok(Response::new(HashKvResponse { header, hash, compact_revision }))
    }

    async fn move_leader(
        &self,
        request: Request<MoveLeaderRequest>,
    ) -> Result<Response<MoveLeaderResponse>, Status> {
        self.permit_root(&request)?;
        if request.into_inner().target_id != self.shared.identity().member {
            return Err(Refusal::BadTransferee.into());
        }
        let header = Some(self.shared.header(self.shared.published()));
        Ok(Response::new(MoveLeaderResponse { header }))
    }

    async fn downgrade(
        &self,
        request: Request<DowngradeRequest>,
    ) -> Result<Response<DowngradeResponse>, Status> {
        self.permit_root(&request)?;
        let request = request.into_inner();
        // There is no older version of this server whose files it could write.
        let refusal = match request.action() {
            DowngradeAction::Cancel => Refusal::NoDowngrade,
            _ if is_version(&request.version) => Refusal::BadDowngrade,
            _ => Refusal::BadVersionFormat,
        };
        Err(refusal.into())
    }

    async fn snapshot(
        &self,
        request: Request<SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let caller = self.caller(&request)?;
        self.shared.settings().auth.permit_root(&caller)?;
        let room = self.take_stream(&caller)?;
        let mut first = Some(self.writer.head().await?);
        let (pieces, stream) = mpsc::channel(PIECES);
        let (shared, place) = (Arc::clone(&self.shared), Arc::clone(&self.place));
        let (writer, runtime) = (self.writer.clone(), Handle::current());
        tokio::task::spawn_blocking(move || {
            let head = || match first.take() {
                Some(head) => Ok(head),
                None => runtime.block_on(writer.head()).map_err(io::Error::other),
            };
            if let Err(error) = copy(&shared, &place.dir, head, &pieces) {
                let why = format!("cannot copy the store in {}: {error}", place.dir.display());
                // The client may have gone.
                let _ = pieces.blocking_send(Err(Status::unavailable(why)));
            }
            drop(room);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

impl Service {
    /// What is wrong, in words.
    fn errors(&self) -> Vec<String> {
        let member = self.shared.identity().member;
        let alarm = |kind: &i32| {
            let kind = AlarmType::try_from(*kind).unwrap_or_default().as_str_name();
            format!("memberID:{member} alarm:{kind} ")
        };
        let failure = self.shared.failure().map(str::to_owned);
        failure.into_iter().chain(self.shared.settings().alarms.keys().map(alarm)).collect()
    }

    fn permit_root<T>(&self, request: &Request<T>) -> Result<(), Refusal> {
        self.shared.settings().auth.permit_root(&self.caller(request)?)
    }

    /// The alarms of a kind, or all, that are of interest. A disk that cannot be written is one
    /// too; only a restart clears that.
    fn alarms(&self, kind: i32, of_interest: impl Fn(i32) -> bool) -> Vec<AlarmMember> {
        let mut up = self.shared.settings().alarms.clone();
        if self.shared.failure().is_some() {
            up.insert(AlarmType::Nospace.into(), AlarmCause::Quota);
        }
        let wanted = |alarm: &i32| (kind == 0 || kind == *alarm) && of_interest(*alarm);
        let member_id = self.shared.identity().member;
        up.into_keys().filter(wanted).map(|alarm| AlarmMember { member_id, alarm }).collect()
    }

    /// Raises or clears alarms; which ones changed.
    async fn change_alarm(
        &self,
        request: &AlarmRequest,
        raise: bool,
    ) -> Result<Vec<AlarmMember>, Refusal> {
        let member_id = self.shared.identity().member;
        if request.member_id != 0 && request.member_id != member_id {
            return Ok(Vec::new());
        }
        let kind = request.alarm;
        let call = self.writer.call(SMALL, move |machine, _, _| {
            let up = machine.settings().alarms.keys().copied();
            let changed: Vec<i32> = match raise {
                true if kind == 0 => Vec::new(),
                true => vec![kind],
                false => up.filter(|alarm| kind == 0 || kind == *alarm).collect(),
            };
            let raised = raise.then_some(AlarmCause::Client);
            for kind in &changed {
                machine.set(Setting::Alarm { kind: *kind, raised });
            }
            Ok(changed)
        });
        let member = |alarm| AlarmMember { member_id, alarm };
        Ok(call.await?.into_iter().map(member).collect())
    }

    /// The newest revision, the hash of all keys at a revision, and the last compaction.
    fn hash_at(&self, revision: i64) -> Result<(i64, u32, i64), Refusal> {
        let current = self.shared.published();
        let (at, compacted) = {
            let index = self.shared.index();
            (query::readable(&index, revision, current)?, index.compacted())
        };
        let everything = KeyRange::new(&Bytes::from_static(&[0]), &Bytes::from_static(&[0]));
        let (mut bytes, mut hash) = (Vec::new(), 0);
        query::scan(&self.shared, (&everything, at), |record| {
            bytes.clear();
            Entry::Changed(Arc::clone(record)).encode(&mut bytes);
            hash = crc32c::crc32c_append(hash, &bytes);
        })?;
        Ok((current, hash, compacted))
    }
}

/// Whether it reads like `3.5` or `3.5.0`.
fn is_version(text: &str) -> bool {
    let parts: Vec<&str> = text.split('.').collect();
    matches!(parts.len(), 2 | 3) && parts.iter().all(|part| part.parse::<u16>().is_ok())
}

/// Writes a copy into a file without a name and sends it in pieces, then its checksum.
fn copy(
    shared: &ServerState,
    dir: &Path,
    mut head: impl FnMut() -> io::Result<Head>,
    pieces: &mpsc::Sender<Result<SnapshotResponse, Status>>,
) -> io::Result<()> {
    let begin = || {
        let head = head()?;
        let file = Box::new(nameless(dir)?);
        let journal = Journal::create_copy(file, head.identity, random())?;
        Ok((head, journal))
    };
    let (head, mut journal) = write_copy(begin, shared.lock())?;
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
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(MODE);
    let file = options.open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

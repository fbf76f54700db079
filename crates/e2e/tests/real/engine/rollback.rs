//! Time that went back or stood still: a store restored from a backup, an owner that was stopped.

use std::sync::mpsc;
use std::thread::JoinHandle;

use api::node::Node as _;
use block::Completion;
use e2e::fleet::{Fleet, Plan, told};
use e2e::store::Kind as StoreKind;
use engine::device::Data;
use model::*;
use rustix::process::Signal;

use super::host::Host;
use super::rig::{Disk, HOST, id};
use super::targets::close_and_compare;

fn first() -> TargetId {
    id(40)
}

fn second() -> TargetId {
    id(41)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_went_back_is_not_believed_embedded() {
    a_store_that_went_back_is_not_believed(StoreKind::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_went_back_is_not_believed_etcd() {
    a_store_that_went_back_is_not_believed(StoreKind::Etcd).await;
}

/// A backup of the record with all copies in sync; one copy fails, the others are written; the
/// backup is restored, and the one that failed is back.
async fn a_store_that_went_back_is_not_believed(store: StoreKind) {
    let mut fleet = Fleet::start(Plan::default_for(store, HOST)).await.unwrap();
    fleet.open(first(), 0).await.unwrap();
    fleet.until_open(first(), 0).await.unwrap();
    let mut host = Host::of(&fleet, 0);
    host.round();
    let backup = fleet.record().await.unwrap();
    fleet.machines[2].kill().unwrap();
    host.round();
    fleet.until_lost((first(), 0), 2).await.unwrap();
    host.round();
    host.flush();
    let newest = fleet.record().await.unwrap();
    fleet.machines[0].kill().unwrap();
    fleet.restore(&backup).await.unwrap();
    fleet.restart(0).await.unwrap();
    fleet.restart(2).await.unwrap();
    let mut events = fleet.remote(2).unwrap().events(None).await.unwrap();
    fleet.open(second(), 2).await.unwrap();
    let conflict = TargetState::Shutdown { cause: StopCause::LabelConflict };
    fleet.until(second(), 2, |status| status.state == conflict).await.unwrap();
    let found = fleet.remote(2).unwrap().target(second()).await.unwrap();
    let conflicts = &found.status.conflicts;
    assert!(!conflicts.is_empty(), "the copies are named");
    let newer = [fleet.machines[0].replica, fleet.machines[1].replica];
    assert!(conflicts.iter().all(|one| newer.contains(&one.replica)), "{conflicts:?}");
    let is_meant = |event: &Event| event.name == EventName::LabelConflict;
    let event = told(&mut events, is_meant).await.unwrap();
    assert!(event.message.contains("holdfast recover"), "{}", event.message);
    assert!(event.message.contains(&fleet.volume.to_string()), "{}", event.message);
    // Somebody says that the newest label is right: nothing is lost.
    let third = id(42);
    let epoch = fleet.record().await.unwrap().epoch().next();
    let set = newest.set().clone();
    let size = Size::mib(1);
    let label = ReplicaLabel { volume: fleet.volume, replica: newer[0], size, epoch, set };
    let node = fleet.machines[1].name.clone();
    fleet.restore(&TargetRecord::recovered(&label, id(43), node)).await.unwrap();
    fleet.open(third, 1).await.unwrap();
    fleet.until_open(third, 1).await.unwrap();
    host.moves_to(fleet.machines[1].listen());
    host.check_all();
    close_and_compare(&mut fleet, 1, third, host).await;
}

/// A host that is connected, reads a block when it is told, and says what was answered.
struct Reader {
    go: mpsc::Sender<()>,
    thread: JoinHandle<(Completion, Option<u8>)>,
}

impl Reader {
    fn attach(fleet: &Fleet) -> Reader {
        let (at, volume) = (fleet.machines[0].listen(), fleet.volume);
        let (go, goes) = mpsc::channel();
        let (attached, until_attached) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut disk = Disk::attach(at, volume).unwrap();
            attached.send(()).unwrap();
            goes.recv().unwrap();
            disk.begin_read(9).unwrap();
            match disk.end() {
                Ok((_, Ok(()), Data::Fill(bytes))) => (Ok(()), bytes.first().copied()),
                Ok((_, result, _)) => (result, None),
                Err(_) => (Err(block::IoError::Unreachable), None),
            }
        });
        until_attached.recv().unwrap();
        Reader { go, thread }
    }

    fn answered(self) -> (Completion, Option<u8>) {
        self.thread.join().unwrap()
    }
}

/// Its node has a copy, and all that a read needs is there: nobody told it that time has passed.
#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_was_stopped_answers_no_old_read() {
    let mut fleet = Fleet::start(Plan::default_for(StoreKind::Embedded, HOST)).await.unwrap();
    fleet.open(first(), 0).await.unwrap();
    fleet.until_open(first(), 0).await.unwrap();
    let mut before = Disk::attach(fleet.machines[0].listen(), fleet.volume).unwrap();
    before.write(9, 1);
    before.flush();
    assert_eq!(before.read(9), 1);
    let (early, late) = (Reader::attach(&fleet), Reader::attach(&fleet));
    fleet.machines[0].engine().unwrap().program.pause().unwrap();
    early.go.send(()).unwrap();
    fleet.open(second(), 1).await.unwrap();
    let serves = |status: &TargetStatus| status.state.serves();
    fleet.until(second(), 1, serves).await.unwrap();
    let mut after = Disk::attach(fleet.machines[1].listen(), fleet.volume).unwrap();
    after.write(9, 2);
    late.go.send(()).unwrap();
    fleet.machines[0].engine().unwrap().program.signal(Signal::CONT).unwrap();
    for read in [early, late] {
        let answered = read.answered();
        assert!(answered.1 != Some(1), "an old value was answered: {answered:?}");
    }
    let fenced = TargetState::Shutdown { cause: StopCause::Fenced };
    fleet.until(first(), 0, |status| status.state == fenced).await.unwrap();
    assert_eq!(after.read(9), 2);
}

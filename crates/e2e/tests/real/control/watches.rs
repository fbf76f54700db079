//! An address is called for everything that happens, also when whoever calls is killed.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use api::rest::{Control as _, WatchCall};
use e2e::store::{KINDS, Kind, StoreServer};
use model::*;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::rig::{World, until};

/// Somebody who is called, and may leave callers without an answer for a while.
struct Pager {
    address: SocketAddr,
    silent: watch::Sender<bool>,
    taken: Arc<Mutex<Vec<WatchCall>>>,
    refused: Arc<Mutex<BTreeSet<u64>>>,
    answering: JoinHandle<()>,
}

impl Drop for Pager {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a request carries; nothing if its caller went away.
async fn carried(stream: &mut TcpStream) -> Option<WatchCall> {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await.ok()?;
    serde_json::from_slice(&body).ok()
}

impl Pager {
    async fn start() -> Pager {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (silent, mut is_silent) = watch::channel(false);
        let (taken, refused) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<Mutex<_>>::default());
        let (takes, refuses) = (Arc::clone(&taken), Arc::clone(&refused));
        let answering = tokio::spawn(async move {
            // A watch calls one at a time.
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(call) = carried(&mut stream).await else { continue };
                if *is_silent.borrow_and_update() {
                    lock::<BTreeSet<u64>>(&refuses).insert(call.event.number);
                    let _ = is_silent.wait_for(|silent| !silent).await;
                    continue;
                }
                lock(&takes).push(call);
                let answer = b"HTTP/1.1 204 X\r\nconnection: close\r\n\r\n";
                // Who did not hear it calls again.
                let _ = stream.write_all(answer).await;
            }
        });
        Pager { address, silent, taken, refused, answering }
    }

    fn taken(&self) -> Vec<WatchCall> {
        lock(&self.taken).clone()
    }

    /// The volumes of whose making it heard.
    fn made(&self) -> BTreeSet<VolumeId> {
        let made = |call: WatchCall| match call.event.subject {
            Subject::Volume(volume) if call.event.name == EventName::Created => Some(volume),
            _ => None,
        };
        self.taken().into_iter().filter_map(made).collect()
    }
}

/// The one that leads is killed twice, each time while somebody whom it called does not answer and
/// more happens.
async fn every_event_is_told(kind: Kind) {
    let store = StoreServer::start(kind).unwrap();
    let client = store.client().await.unwrap();
    let mut world = World::start(&[store.endpoint()], client, (3, 1)).await;
    let pager = Pager::start().await;
    let name: WatchName = "pager".parse().unwrap();
    let url = format!("http://{}/", pager.address).parse().unwrap();
    let spec = WatchSpec { url, about: None, severity: None };
    world.leader().await.put_watch(name.clone(), spec).await.unwrap();
    world.begin_creating(2, 1);
    for _ in 0..2 {
        world.until_more(5).await;
        let before = lock(&pager.refused).len();
        pager.silent.send_replace(true);
        until("it is called in vain", async || lock(&pager.refused).len() > before).await;
        world.until_more(5).await;
        let mut leads = None;
        for (nth, control) in world.controls.iter().enumerate() {
            if control.leads().await {
                leads = Some(nth);
            }
        }
        let mut killed = world.controls.remove(leads.unwrap());
        killed.program.kill().unwrap();
        pager.silent.send_replace(false);
        world.leader().await;
    }
    world.until_more(5).await;
    let acknowledged = world.acknowledged();
    until("it has heard of all", async || acknowledged.is_subset(&pager.made())).await;
    let remote = world.leader().await;
    let status = remote.watch(name).await.unwrap().status.unwrap();
    assert_eq!((status.missed, status.failure), (0, None));
    // Some are told twice, after those before them were told.
    let (mut seen, mut last) = (BTreeSet::new(), 0);
    for WatchCall { event, .. } in pager.taken() {
        if seen.insert(event.number) {
            assert!(event.number > last, "event {} after {last}", event.number);
            last = event.number;
        }
    }
    let refused = lock(&pager.refused).clone();
    assert!(refused.len() >= 2 && refused.is_subset(&seen), "{refused:?} are not all told");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_watches_hears_of_everything_whoever_is_killed() {
    for kind in KINDS {
        every_event_is_told(kind).await;
    }
}

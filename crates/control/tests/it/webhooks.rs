//! Webhooks: addresses are called when something happens, again if they do not take it, and by the
//! next control plane too, which goes on where the former ended.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::Effect;
use api::rest::{Control as _, WebhookCall};
use model::{
    EventName, ProblemKind, Subject, Webhook, WebhookChange, WebhookName, WebhookSpec,
    WebhookStatus, envelope, keys,
};
use store::contract::{StoreExt as _, SystemClock};
use store::testing::MemoryStore;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::leader::{Running, start, until_it_leads};

/// A port that is free.
const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Somebody who is called: answers the first calls with these statuses, all others with 200.
struct Pager {
    listener: TcpListener,
    statuses: Vec<u16>,
}

impl Pager {
    async fn with(statuses: &[u16]) -> Pager {
        Pager { statuses: statuses.iter().rev().copied().collect(), ..Pager::at(ANY).await }
    }

    async fn at(address: SocketAddr) -> Pager {
        Pager { listener: TcpListener::bind(address).await.unwrap(), statuses: Vec::new() }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// The next call that is not of an event that was posted before.
    async fn next_after(&mut self, number: u64) -> WebhookCall {
        loop {
            let (_, call) = self.next().await;
            if call.event.number > number {
                return call;
            }
        }
    }

    /// The next call: its first line and what it carries.
    async fn next(&mut self) -> (String, WebhookCall) {
        let called = tokio::time::timeout(Duration::from_mins(1), self.listener.accept()).await;
        let (mut stream, _) = called.expect("nobody calls").unwrap();
        let mut reader = BufReader::new(&mut stream);
        let (mut first, mut length) = (String::new(), 0);
        reader.read_line(&mut first).await.unwrap();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).await.unwrap();
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).await.unwrap();
        let status = self.statuses.pop().unwrap_or(200);
        let answer = format!(
            "HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\
             connection: close\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        (first.trim().to_owned(), serde_json::from_slice(&body).unwrap())
    }
}

fn name(text: &str) -> WebhookName {
    text.parse().unwrap()
}

/// Hears of one webhook, which is all that happens here.
fn about(other: &str, address: SocketAddr) -> WebhookSpec {
    let url = format!("http://{address}/hook?x=1").parse().unwrap();
    WebhookSpec { url, about: Some(Subject::Webhook(name(other))), severity: None }
}

async fn leader(store: &MemoryStore) -> Running {
    let running = start(store).await;
    until_it_leads(&running).await;
    running
}

async fn until_webhook(running: &Running, what: &str, is_so: impl Fn(&Webhook) -> bool) {
    for _ in 0..500 {
        if is_so(&running.remote.webhook(name("pager")).await.unwrap()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("waited in vain until {what}");
}

#[tokio::test]
async fn an_address_is_called_by_whoever_leads_until_the_watch_is_gone() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let mut pager = Pager::with(&[]).await;
    let first = leader(&store).await;
    let spec = about("other", pager.address());
    let put = async |running: &Running, name: WebhookName, spec: &WebhookSpec| {
        running.remote.put_webhook(name, spec.clone()).await
    };
    assert_eq!(put(&first, name("pager"), &spec).await.unwrap().effect, Effect::Created);
    assert_eq!(put(&first, name("pager"), &spec).await.unwrap().effect, Effect::Unchanged);
    let elsewhere = about("another", pager.address());
    let refused = put(&first, name("pager"), &elsewhere).await.unwrap_err();
    assert_eq!(refused.kind, ProblemKind::AlreadyExists);

    put(&first, name("other"), &about("nothing", pager.address())).await.unwrap();
    let (line, call) = pager.next().await;
    assert_eq!(line, "POST /hook?x=1 HTTP/1.1");
    assert_eq!((call.webhook, call.missed), (name("pager"), 0));
    assert_eq!(call.event.subject, Subject::Webhook(name("other")));
    until_webhook(&first, "it is counted", |webhook| {
        let status = webhook.status.as_ref().unwrap();
        status.delivered == 1 && status.failure.is_none() && status.delivered_at.is_some()
    })
    .await;

    // The next control plane knows of it.
    first.end().await;
    let second = leader(&store).await;
    let change = WebhookChange::Modify { spec: elsewhere };
    second.remote.change_webhook(name("other"), change, None).await.unwrap();
    let call = pager.next_after(call.event.number).await;
    assert_eq!(call.event.name, EventName::Changed);

    // What is gone is not called: the next call is of another.
    assert!(second.remote.delete_webhook(name("pager"), None).await.unwrap().existed);
    assert!(!second.remote.delete_webhook(name("pager"), None).await.unwrap().existed);
    put(&second, name("last"), &about("other", pager.address())).await.unwrap();
    second.remote.delete_webhook(name("other"), None).await.unwrap();
    let call = pager.next_after(call.event.number).await;
    assert_eq!((call.webhook, call.event.name), (name("last"), EventName::Deleted));
}

/// How far the store says that the calls of the webhook went.
async fn noted(store: &MemoryStore) -> WebhookStatus {
    let found = store.get(keys::of::<Webhook>(name("pager"))).await.unwrap().unwrap();
    envelope::decode::<Webhook>(&found.value).unwrap().status.unwrap()
}

#[tokio::test]
async fn what_a_leader_left_undone_the_next_one_posts_and_not_what_is_done() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let address = Pager::at("127.0.0.77:0".parse().unwrap()).await.address();
    let silent = about("nothing", address);
    // Nobody takes what the first one posts, and what it did not come to posting.
    let deaf = Pager::at(address).await;
    let first = leader(&store).await;
    first.remote.put_webhook(name("pager"), about("other", address)).await.unwrap();
    first.remote.put_webhook(name("other"), silent.clone()).await.unwrap();
    first.remote.delete_webhook(name("other"), None).await.unwrap();
    first.end().await;
    drop(deaf);

    let mut pager = Pager::at(address).await;
    let second = leader(&store).await;
    let (_, made) = pager.next().await;
    assert_eq!((made.event.name, made.missed), (EventName::Created, 0));
    let gone = pager.next_after(made.event.number).await;
    assert_eq!(gone.event.name, EventName::Deleted);
    for _ in 0..500 {
        if noted(&store).await.after >= gone.event.number {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let status = noted(&store).await;
    assert_eq!((status.delivered, status.missed, status.after), (2, 0, gone.event.number));
    second.end().await;

    let third = leader(&store).await;
    third.remote.put_webhook(name("other"), silent).await.unwrap();
    let (_, call) = pager.next().await;
    assert!(call.event.number > gone.event.number, "{call:?}");
    until_webhook(&third, "it is counted on", |webhook| {
        webhook.status.as_ref().unwrap().delivered == 3
    })
    .await;
}

/// Events that nobody waits for are done with, too: what is kept does not outrun a quiet webhook.
#[tokio::test]
async fn a_watch_that_waits_for_little_is_not_left_behind() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let pager = Pager::with(&[]).await;
    let running = leader(&store).await;
    running.remote.put_webhook(name("pager"), about("nothing", pager.address())).await.unwrap();
    let begun = noted(&store).await.after;
    for nth in 0..150 {
        let other = name(&format!("w{nth}"));
        let spec = about("nothing", pager.address());
        running.remote.put_webhook(other.clone(), spec).await.unwrap();
        running.remote.delete_webhook(other, None).await.unwrap();
    }
    for _ in 0..500 {
        if noted(&store).await.after >= begun + 250 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("still at {}", noted(&store).await.after);
}

#[tokio::test]
async fn a_call_that_is_not_taken_is_made_again_and_given_up_in_the_end() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    // A redirect is not followed; the second event is not taken at all.
    let mut pager = Pager::with(&[503, 302, 200, 500, 500, 500, 500, 500]).await;
    let running = leader(&store).await;
    let spec = about("other", pager.address());
    running.remote.put_webhook(name("pager"), spec).await.unwrap();
    let silent = about("nothing", pager.address());
    running.remote.put_webhook(name("other"), silent.clone()).await.unwrap();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        numbers.push(pager.next().await.1.event.number);
    }
    until_webhook(&running, "the reason is told", |webhook| {
        let failure = webhook.status.as_ref().unwrap().failure.clone();
        failure.is_some_and(|why| why.contains("302") && why.contains("not followed"))
    })
    .await;
    numbers.push(pager.next().await.1.event.number);
    assert!(numbers.iter().all(|number| *number == numbers[0]), "{numbers:?}");

    running.remote.delete_webhook(name("other"), None).await.unwrap();
    for _ in 0..5 {
        assert_eq!(pager.next().await.1.event.name, EventName::Deleted);
    }
    until_webhook(&running, "it is given up", |webhook| {
        let status = webhook.status.as_ref().unwrap();
        (status.delivered, status.missed) == (1, 1)
    })
    .await;
    running.remote.put_webhook(name("other"), silent).await.unwrap();
    let (_, call) = pager.next().await;
    assert_eq!((call.event.name, call.missed), (EventName::Created, 1));
}

#[tokio::test]
async fn there_is_a_most_of_them_and_tls_needs_authorities() {
    let store = MemoryStore::new(Arc::new(SystemClock::new()));
    let running = leader(&store).await;
    let spec = about("nothing", "127.0.0.1:9".parse().unwrap());
    let mut all = tokio::task::JoinSet::new();
    for nth in 0..80 {
        let (remote, spec) = (running.remote.clone(), spec.clone());
        all.spawn(async move { remote.put_webhook(name(&format!("w{nth}")), spec).await });
    }
    let (made, refused): (Vec<_>, Vec<_>) =
        all.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), refused.len()), (64, 16));
    for refused in refused {
        assert_eq!(refused.unwrap_err().kind, ProblemKind::CapacityLimit);
    }
    let secure = WebhookSpec { url: "https://pager.example.org/".parse().unwrap(), ..spec };
    let refused = running.remote.put_webhook(name("w0"), secure).await.unwrap_err();
    assert_eq!(refused.field.as_deref(), Some("url"), "{refused:?}");
    assert!(refused.detail.contains("--webhook-ca"), "{refused:?}");
}

//! Clients that do random calls at the same time, and write down what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;

use super::{Action, Call, Outcome};
use crate::contract::{Compare, CompareOp, Op, Store, StoreExt as _, Txn, WriteError};

/// How much to do.
#[derive(Clone, Debug)]
pub struct Workload {
    /// All keys begin so; none may exist.
    pub prefix: String,
    /// How many keys.
    pub keys: u32,
    /// How many calls each client makes.
    pub calls: u32,
    /// Chooses the calls.
    pub seed: u64,
}

/// Lets each store of `clients` be used by one client, all at once; returns what they saw.
pub async fn run(clients: Vec<Arc<dyn Store>>, workload: &Workload) -> Vec<Call> {
    let shared = Arc::new(Shared { clock: AtomicU64::new(0), values: AtomicU64::new(1) });
    let mut tasks = Vec::new();
    for (index, store) in (1..).zip(clients) {
        let client = Client {
            store,
            workload: workload.clone(),
            shared: Arc::clone(&shared),
            dice: Dice(workload.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(index)),
            seen: None,
        };
        tasks.push(tokio::spawn(client.run()));
    }
    // A client that panicked has no history; whoever reads the result must count calls.
    join_all(tasks).await.into_iter().flatten().flatten().collect()
}

struct Shared {
    clock: AtomicU64,
    values: AtomicU64,
}

impl Shared {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
}

struct Client {
    store: Arc<dyn Store>,
    workload: Workload,
    shared: Arc<Shared>,
    dice: Dice,
    /// The value seen last, to be expected by the next swap.
    seen: Option<u64>,
}

impl Client {
    async fn run(mut self) -> Vec<Call> {
        let mut history = Vec::new();
        for _ in 0..self.workload.calls {
            let key = u32::try_from(self.dice.below(self.workload.keys.into())).unwrap_or(0);
            let action = match self.dice.below(4) {
                0 => Action::Read,
                1 => Action::Write(self.fresh()),
                _ => Action::Swap { expect: self.seen, to: self.fresh() },
            };
            let made = self.shared.now();
            let outcome = self.act(&format!("{}{key}", self.workload.prefix), action).await;
            let answered = self.shared.now();
            if let Some(outcome) = outcome {
                history.push(Call { key, action, outcome, made, answered });
            }
        }
        history
    }

    fn fresh(&self) -> u64 {
        self.shared.values.fetch_add(1, Ordering::SeqCst)
    }

    /// Makes one call; `None` if it surely had no effect and told nothing.
    async fn act(&mut self, key: &str, action: Action) -> Option<Outcome> {
        let key = key.to_owned();
        match action {
            Action::Read => {
                let read = self.store.get(key).await.ok()?;
                self.seen = read.and_then(|kv| number(&kv.value));
                Some(Outcome::Read(self.seen))
            }
            Action::Write(value) => match self.store.put(key, value.to_string()).await {
                Ok(_) => Some(Outcome::Written),
                Err(WriteError::Unknown { .. }) => Some(Outcome::Unknown),
                Err(_) => None,
            },
            Action::Swap { expect, to } => {
                let condition = match expect {
                    Some(value) => Compare::value(key.clone(), CompareOp::Equal, value.to_string()),
                    None => Compare::absent(key.clone()),
                };
                let swap = Txn::new()
                    .when(condition)
                    .then(Op::put(key.clone(), to.to_string()))
                    .otherwise(Op::get(key));
                match self.store.txn(swap).await {
                    Ok(outcome) => {
                        let there = outcome.first_read().and_then(|kv| number(&kv.value));
                        self.seen = if outcome.succeeded { Some(to) } else { there };
                        Some(Outcome::Swapped(outcome.succeeded))
                    }
                    Err(WriteError::Unknown { .. }) => Some(Outcome::Unknown),
                    Err(_) => None,
                }
            }
        }
    }
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Small, quick, and the same for the same seed (xorshift).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(bound).unwrap_or(0)
    }
}

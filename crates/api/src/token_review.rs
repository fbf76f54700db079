//! Tokens that somebody else issues, such as those of service accounts of Kubernetes.
//!
//! Invariants:
//! - The issuer is asked again after [`FRESH`]: a token that it revokes is accepted for that long.
//! - At most [`AT_ONCE`] questions are open and [`MOST_KNOWN`] answers are kept, whoever calls.
//!   A stranger whose tokens are nonsense does not make an engine wait that was known already.
//! - While the issuer does not answer, whom it knew for the last [`KEPT`] is still known: engines
//!   go on when the API server is down. Whom it never knew is told to try again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use model::{NodeName, Problem, ProblemKind};
use tokio::sync::Semaphore;

/// How long an answer counts.
const FRESH: Duration = Duration::from_mins(5);
/// How long one counts that cannot be asked for again: as long as tokens last, and more.
const KEPT: Duration = Duration::from_hours(2);
/// How many questions are open at once.
const AT_ONCE: usize = 4;
/// How many answers are kept; as many nodes can register without being asked about all the time.
const MOST_KNOWN: usize = 4096;

/// Who issues tokens, and knows whose they are.
pub trait TokenReviewer: Send + Sync + 'static {
    /// The node whose engine holds this token; absent: it is nobody's.
    fn review<'a>(&'a self, token: &'a str)
    -> BoxFuture<'a, Result<Option<NodeName>, ReviewError>>;
}

/// Why nobody could say whose a token is.
#[derive(Debug, thiserror::Error)]
#[error("cannot ask whose token this is: {reason}")]
pub struct ReviewError {
    /// What happened.
    pub reason: String,
}

/// The digest of a token, by which it is remembered.
pub(crate) type Fingerprint = [u8; 32];

/// Tokens as their issuer last described them.
pub(crate) struct ReviewedTokens {
    reviewer: Arc<dyn TokenReviewer>,
    known: Mutex<BTreeMap<Fingerprint, (NodeName, Instant)>>,
    open: Semaphore,
}

impl fmt::Debug for ReviewedTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReviewedTokens({} of them)", self.known().len())
    }
}

impl ReviewedTokens {
    pub(crate) fn new(reviewer: Arc<dyn TokenReviewer>) -> ReviewedTokens {
        ReviewedTokens { reviewer, known: Mutex::default(), open: Semaphore::new(AT_ONCE) }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Fingerprint, (NodeName, Instant)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node that holds a token; absent: the issuer does not know it.
    pub(crate) async fn node(
        &self,
        token: &str,
        fingerprint: Fingerprint,
    ) -> Result<Option<NodeName>, Problem> {
        let last = self.known().get(&fingerprint).cloned();
        if let Some((node, asked)) = &last
            && asked.elapsed() < FRESH
        {
            return Ok(Some(node.clone()));
        }
        match (self.ask(token).await, last) {
            (Ok(node), _) => {
                self.remember(fingerprint, node.as_ref());
                Ok(node)
            }
            (Err(problem), Some((node, asked))) if asked.elapsed() < KEPT => {
                tracing::warn!(%node, "its token is believed as before: {}", problem.detail);
                Ok(Some(node))
            }
            (Err(problem), _) => Err(problem),
        }
    }

    async fn ask(&self, token: &str) -> Result<Option<NodeName>, Problem> {
        let Ok(_open) = self.open.try_acquire() else {
            let detail = "too many callers show tokens that are not known yet; ask again";
            return Err(Problem::new(ProblemKind::Overloaded, detail));
        };
        self.reviewer.review(token).await.map_err(|error| {
            tracing::warn!(%error, "a token could not be reviewed");
            Problem::new(ProblemKind::Unavailable, format!("{error}; ask again"))
        })
    }

    fn remember(&self, fingerprint: Fingerprint, node: Option<&NodeName>) {
        let mut known = self.known();
        known.remove(&fingerprint);
        known.retain(|_, (_, asked)| asked.elapsed() < KEPT);
        if let Some(node) = node
            && known.len() < MOST_KNOWN
        {
            known.insert(fingerprint, (node.clone(), Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knows `node-1`, and counts how often it is asked.
    #[derive(Default)]
    struct Issuer {
        asked: Mutex<u32>,
        is_away: Mutex<bool>,
    }

    impl TokenReviewer for Issuer {
        fn review<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<Option<NodeName>, ReviewError>> {
            *self.asked.lock().unwrap() += 1;
            let known = token == "of node 1";
            let answer = if *self.is_away.lock().unwrap() {
                Err(ReviewError { reason: "nobody answers".to_owned() })
            } else {
                Ok(known.then(|| "node-1".parse().unwrap()))
            };
            Box::pin(std::future::ready(answer))
        }
    }

    #[tokio::test]
    async fn an_answer_is_kept_and_a_stranger_never_is() {
        let issuer = Arc::new(Issuer::default());
        let tokens = ReviewedTokens::new(Arc::<Issuer>::clone(&issuer));
        for _ in 0..3 {
            let node = tokens.node("of node 1", [1; 32]).await.unwrap();
            assert_eq!(node.unwrap().to_string(), "node-1");
        }
        assert_eq!(*issuer.asked.lock().unwrap(), 1);
        for _ in 0..3 {
            assert_eq!(tokens.node("of nobody", [2; 32]).await.unwrap(), None);
        }
        assert_eq!((*issuer.asked.lock().unwrap(), tokens.known().len()), (4, 1));
        *issuer.is_away.lock().unwrap() = true;
        assert!(tokens.node("of node 1", [1; 32]).await.unwrap().is_some());
        let problem = tokens.node("of nobody", [2; 32]).await.unwrap_err();
        assert_eq!(problem.kind, ProblemKind::Unavailable);
    }

    #[tokio::test]
    async fn engines_go_on_while_the_issuer_is_away() {
        let issuer = Arc::new(Issuer::default());
        let tokens = ReviewedTokens::new(Arc::<Issuer>::clone(&issuer));
        tokens.node("of node 1", [1; 32]).await.unwrap();
        let age = |age: Duration| {
            let mut known = tokens.known();
            let asked = &mut known.get_mut(&[1; 32]).unwrap().1;
            *asked = asked.checked_sub(age).unwrap();
        };
        *issuer.is_away.lock().unwrap() = true;
        age(FRESH);
        assert!(tokens.node("of node 1", [1; 32]).await.unwrap().is_some());
        assert_eq!(*issuer.asked.lock().unwrap(), 2, "it was asked again");
        age(KEPT);
        let problem = tokens.node("of node 1", [1; 32]).await.unwrap_err();
        assert_eq!(problem.kind, ProblemKind::Unavailable);
        *issuer.is_away.lock().unwrap() = false;
        assert!(tokens.node("of node 1", [1; 32]).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_revoked_token_is_forgotten() {
        let issuer = Arc::new(Issuer::default());
        let tokens = ReviewedTokens::new(issuer);
        tokens.node("of node 1", [1; 32]).await.unwrap();
        tokens.known().get_mut(&[1; 32]).unwrap().1 -= FRESH;
        // The issuer knows it no longer.
        assert_eq!(tokens.node("revoked", [1; 32]).await.unwrap(), None);
        assert_eq!(tokens.known().len(), 0);
    }

    #[tokio::test]
    async fn strangers_do_not_keep_out_who_is_known() {
        let issuer = Arc::new(Issuer::default());
        let tokens = ReviewedTokens::new(issuer);
        tokens.node("of node 1", [1; 32]).await.unwrap();
        let _all = tokens.open.acquire_many(u32::try_from(AT_ONCE).unwrap()).await.unwrap();
        let problem = tokens.node("of nobody", [2; 32]).await.unwrap_err();
        assert_eq!(problem.kind, ProblemKind::Overloaded);
        assert!(tokens.node("of node 1", [1; 32]).await.unwrap().is_some());
    }
}

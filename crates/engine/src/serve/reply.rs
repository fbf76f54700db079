//! One answer, from a core to whoever gave it an order.
//!
//! [`Pending`] can be waited for by a thread and awaited by a task of any runtime: the engine has
//! none of its own, and those who give orders have.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use super::handle::{AdminError, AdminResponse};

type ReplyResult = Result<AdminResponse, AdminError>;

/// The answer to an order, when it comes. The order is carried out also if nobody waits.
#[must_use = "the order is under way; its answer says whether it succeeded"]
pub struct Pending {
    shared: Arc<Shared>,
}

/// Must be kept once; a core that ends without that leaves [`AdminError::Stopped`].
pub(super) struct Promise {
    to: To,
}

/// Who is answered.
enum To {
    Pending(Arc<Shared>),
    Call(Option<Call>),
}

/// What is called with an answer, on the thread of a core: it must not wait.
pub(super) type Call = Box<dyn FnOnce(ReplyResult) + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    answer: Option<ReplyResult>,
    waker: Option<Waker>,
}

/// An answer to come, and how to give it.
pub(super) fn promise() -> (Promise, Pending) {
    let shared = Arc::new(Shared::default());
    (Promise { to: To::Pending(Arc::clone(&shared)) }, Pending { shared })
}

impl Promise {
    /// To be kept by calling this.
    pub(super) fn calling(call: Call) -> Promise {
        Promise { to: To::Call(Some(call)) }
    }

    /// Answers.
    pub(super) fn keep(mut self, answer: ReplyResult) {
        self.to.answer(answer);
    }
}

impl To {
    /// The first answer counts.
    fn answer(&mut self, answer: ReplyResult) {
        match self {
            To::Pending(shared) => shared.answer(answer),
            To::Call(call) => {
                if let Some(call) = call.take() {
                    call(answer);
                }
            }
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.to.answer(Err(AdminError::Stopped));
    }
}

impl Shared {
    /// The first answer counts.
    fn answer(&self, answer: ReplyResult) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.answer.is_none() {
            state.answer = Some(answer);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
            self.arrived.notify_all();
        }
    }
}

impl Pending {
    /// Blocks this thread until the answer is there.
    pub fn wait(self) -> Result<AdminResponse, AdminError> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = state.answer.take() {
                return answer;
            }
            state = self.shared.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for Pending {
    type Output = Result<AdminResponse, AdminError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ReplyResult> {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_is_woken_once_by_the_answer() {
        let (promise, mut pending) = promise();
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut pending).poll(&mut context).is_pending());
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        promise.keep(Ok(AdminResponse::Changed));
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
        let answer = Pin::new(&mut pending).poll(&mut context);
        assert!(matches!(answer, Poll::Ready(Ok(AdminResponse::Changed))));
    }

    #[test]
    fn a_thread_waits_for_an_answer_from_another() {
        let (promise, pending) = promise();
        let other = std::thread::spawn(move || promise.keep(Ok(AdminResponse::Unchanged)));
        assert!(matches!(pending.wait(), Ok(AdminResponse::Unchanged)));
        other.join().unwrap();
    }

    #[test]
    fn a_promise_that_is_forgotten_says_so() {
        let (promise, pending) = promise();
        drop(promise);
        assert!(matches!(pending.wait(), Err(AdminError::Stopped)));
    }
}

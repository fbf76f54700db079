//! Messages from any thread to a reactor, and the bell that wakes it.
//!
//! Bounded: a full mailbox hands the message back. Ringing costs a system call only when the
//! reactor sleeps. An eventfd rather than a ring-to-ring message, because threads without a ring
//! (signals, the node API) post too.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use rustix::event::{EventfdFlags, eventfd};

/// The sending end of a reactor's mailbox.
#[derive(Debug)]
pub struct Mailbox<M> {
    sender: SyncSender<M>,
    bell: Arc<Bell>,
}

/// Why a message was handed back.
#[derive(Debug, PartialEq, Eq)]
pub enum Undelivered<M> {
    /// The reactor has not read its earlier messages yet.
    Full(M),
    /// The reactor has stopped.
    Closed(M),
}

impl<M> Undelivered<M> {
    /// The message.
    pub fn into_message(self) -> M {
        match self {
            Undelivered::Full(message) | Undelivered::Closed(message) => message,
        }
    }
}

impl<M> Mailbox<M> {
    /// Leaves a message and wakes the reactor if it sleeps.
    pub fn post(&self, message: M) -> Result<(), Undelivered<M>> {
        match self.sender.try_send(message) {
            Ok(()) => {
                self.bell.ring();
                Ok(())
            }
            Err(TrySendError::Full(message)) => Err(Undelivered::Full(message)),
            Err(TrySendError::Disconnected(message)) => Err(Undelivered::Closed(message)),
        }
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Mailbox<M> {
        Mailbox { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Inbox<M> {
    receiver: Receiver<M>,
    bell: Arc<Bell>,
}

impl<M> Inbox<M> {
    pub(crate) fn take(&self) -> Option<M> {
        self.receiver.try_recv().ok()
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }
}

/// A mailbox for `limit` messages.
pub(crate) fn mailbox<M>(limit: usize) -> std::io::Result<(Mailbox<M>, Inbox<M>)> {
    let (sender, receiver) = sync_channel(limit);
    let bell = Arc::new(Bell {
        asleep: AtomicBool::new(false),
        eventfd: eventfd(0, EventfdFlags::CLOEXEC)?,
    });
    Ok((Mailbox { sender, bell: Arc::clone(&bell) }, Inbox { receiver, bell }))
}

#[derive(Debug)]
pub(crate) struct Bell {
    asleep: AtomicBool,
    eventfd: OwnedFd,
}

impl Bell {
    pub(crate) fn eventfd(&self) -> &OwnedFd {
        &self.eventfd
    }

    /// To be called before the last look into the mailbox that precedes a sleep.
    pub(crate) fn going_to_sleep(&self) {
        self.asleep.store(true, Ordering::Relaxed);
        // With the fence in `ring`: either the sleeper sees the message, or the sender the sleep.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    fn ring(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            // It fails only when the counter is at its end: then the reactor is awake anyway.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_mailbox_hands_the_message_back_and_a_closed_one_says_so() {
        let (mailbox, inbox) = mailbox(1).unwrap();
        assert_eq!(mailbox.post(1), Ok(()));
        assert_eq!(mailbox.post(2), Err(Undelivered::Full(2)));
        assert_eq!(inbox.take(), Some(1));
        drop(inbox);
        assert_eq!(mailbox.post(3), Err(Undelivered::Closed(3)));
    }

    #[test]
    fn the_bell_rings_only_for_a_sleeper_and_once() {
        let (mailbox, inbox) = mailbox(3).unwrap();
        mailbox.post(1).unwrap();
        inbox.bell().going_to_sleep();
        mailbox.post(2).unwrap();
        mailbox.post(3).unwrap();
        let mut count = [0; 8];
        rustix::io::read(inbox.bell().eventfd(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
    }
}

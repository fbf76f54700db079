//! Works on authentication messages, so that one host's Diffie-Hellman, which takes milliseconds,
//! delays no other host's commands.
//!
//! One thread for all cores: hosts prove themselves when they connect, and rarely again. Its queue
//! is bounded; a host that finds it full is disconnected and comes again.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nvme::target::{AuthDone, AuthWork};
use reactor::{Key, Mailbox};

use super::core::Message;
use super::link::Link;
use super::upkeep::post_patiently;

/// A message, and where to bring what comes of it.
pub(super) struct Task {
    /// Whose it is.
    pub(super) link: Key,
    pub(super) work: AuthWork,
    pub(super) to: Mailbox<Message>,
}

/// What came of it.
pub(super) struct Proved {
    pub(super) link: Key,
    pub(super) done: AuthDone,
}

/// Tasks for the prover's thread.
#[derive(Clone)]
pub(super) struct Prover {
    tasks: SyncSender<Task>,
}

impl Prover {
    /// Starts the thread; it ends when the last clone of this is dropped.
    pub(super) fn start() -> io::Result<Prover> {
        const TASKS: usize = 1024;
        let (tasks, inbox) = sync_channel(TASKS);
        std::thread::Builder::new().name("prover".into()).spawn(move || work(&inbox))?;
        Ok(Prover { tasks })
    }

    /// Whether there was room for the task.
    pub(super) fn prove(&self, task: Task) -> bool {
        self.tasks.try_send(task).is_ok()
    }
}

/// Lets a link's message be worked on. A link for which that is impossible ends.
pub(super) fn begin(link: &mut Link, key: Key, by: Option<(&Prover, &Mailbox<Message>)>) {
    let entropy = match crate::entropy::fresh() {
        Ok(entropy) => entropy,
        Err(error) => {
            tracing::error!(%error, "no random numbers: the host is not let in");
            return link.end();
        }
    };
    let Some(work) = link.machine.begin_authentication(entropy) else { return };
    let room =
        by.is_some_and(|(prover, to)| prover.prove(Task { link: key, work, to: to.clone() }));
    if !room {
        tracing::warn!(peer = %link.peer, "too many hosts authenticate at once; disconnected");
        link.end();
    }
}

fn work(inbox: &Receiver<Task>) {
    for Task { link, work, to } in inbox {
        let done = work.run();
        post_patiently(&to, Message::Proved(Box::new(Proved { link, done })));
    }
}

//! Works on authentication messages, so that one host's Diffie-Hellman, which takes milliseconds,
//! delays no other host's commands.
//!
//! One thread for all cores: hosts prove themselves when they connect, and rarely again. Its queue
//! is bounded; a host that finds it full is disconnected and comes again.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nvme::target::{AuthDone, AuthWork};
use reactor::{Key, Mailbox};

use super::host_connection::HostConnection;
use super::shard::Message;
use super::timers::post_patiently;

/// A message, and where to bring what comes of it.
pub(super) struct AuthTask {
    /// Whose it is.
    pub(super) connection: Key,
    pub(super) work: AuthWork,
    pub(super) to: Mailbox<Message>,
}

/// What came of it.
pub(super) struct AuthResult {
    pub(super) connection: Key,
    pub(super) done: AuthDone,
}

/// Tasks for the prover's thread.
#[derive(Clone)]
pub(super) struct AuthWorker {
    tasks: SyncSender<AuthTask>,
}

impl AuthWorker {
    /// Starts the thread; it ends when the last clone of this is dropped.
    pub(super) fn start() -> io::Result<AuthWorker> {
        let (auth_worker, inbox) = AuthWorker::new();
        std::thread::Builder::new().name("prover".into()).spawn(move || work(&inbox))?;
        Ok(auth_worker)
    }

    /// Tasks, and where somebody must work on them.
    fn new() -> (AuthWorker, Receiver<AuthTask>) {
        const TASKS: usize = 1024;
        let (tasks, inbox) = sync_channel(TASKS);
        (AuthWorker { tasks }, inbox)
    }

    /// Whether there was room for the task.
    pub(super) fn prove(&self, task: AuthTask) -> bool {
        self.tasks.try_send(task).is_ok()
    }
}

/// Lets a link's message be worked on, here if that is `cheap`: then no other host can make it
/// wait. A link for which that is impossible ends.
pub(super) fn begin(
    (connection, key): (&mut HostConnection, Key),
    cheap: bool,
    by: Option<(&AuthWorker, &Mailbox<Message>)>,
) {
    let entropy = match crate::entropy::fresh() {
        Ok(entropy) => entropy,
        Err(error) => {
            tracing::error!(%error, "no entropy for authentication; host disconnected");
            return connection.end();
        }
    };
    if cheap {
        return connection.machine.authenticate(entropy);
    }
    let Some(work) = connection.machine.begin_authentication(entropy) else { return };
    let room = by.is_some_and(|(auth_worker, to)| {
        auth_worker.prove(AuthTask { connection: key, work, to: to.clone() })
    });
    if !room {
        tracing::warn!(peer = %connection.peer, "too many authentications at once; disconnected");
        connection.end();
    }
}

fn work(inbox: &Receiver<AuthTask>) {
    inbox.iter().for_each(finish);
}

fn finish(task: AuthTask) {
    let AuthTask { connection, work, to } = task;
    let done = work.run();
    post_patiently(&to, Message::Authenticated(Box::new(AuthResult { connection, done })));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use block::{BlockSize, Blocks, Bytes, Geometry};
    use nvme::auth::{Accepted, Keys, Secret};
    use nvme::initiator::{Association, Options};
    use nvme::pdu::Digests;
    use nvme::target::NamespaceIds;
    use nvme::wire::{AnaState, Nqn};

    use super::*;
    use crate::client::Session;
    use crate::client::perf::{Load, Pattern, run};
    use crate::replication::Replication;
    use crate::serve::{Backing, Config, EngineLimits, Host, Namespace, Server, Subsystem};

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.io.holdfast:{name}")).unwrap()
    }

    /// One core serves a subsystem that is open to anybody and one that wants proof.
    fn config(keys: Keys) -> Config {
        let geometry = Geometry::of_bytes(BlockSize::B4096, Bytes::mib(8)).unwrap();
        let subsystem = |number, hosts| {
            let ids = NamespaceIds { uuid: [number; 16], ..NamespaceIds::default() };
            let backing = Backing::Memory(geometry);
            let namespace = Namespace { backing, ids, ana: AnaState::Optimized };
            Subsystem { namespaces: [(1, namespace)].into(), hosts, cntlids: None }
        };
        let hosts = [(nqn("host"), Host { keys: Some(keys), ..Host::default() })].into();
        Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            cores: vec![0],
            pools: Vec::new(),
            subsystems: [
                (nqn("open"), subsystem(1, [].into())),
                (nqn("closed"), subsystem(2, hosts)),
            ]
            .into(),
            digests: Digests::default(),
            limits: EngineLimits::default(),
            replication: Replication::default(),
        }
    }

    #[test]
    fn others_do_their_work_while_a_host_proves_itself() {
        let keys = Keys { host: Secret::new(&[1; 32], None).unwrap(), controller: None };
        let (auth_worker, tasks) = AuthWorker::new();
        let server = Server::start_with(config(keys.clone()), &auth_worker).unwrap();
        let at = server.addresses()[0];
        let connect = move |name: &str, keys| {
            let host = nvme::initiator::Host { nqn: nqn("host"), id: [7; 16] };
            let (accepted, options) = (Accepted::default(), Options::default());
            let association = Association { host, subsystem: nqn(name), keys, accepted, options };
            Session::connect(at, association).unwrap()
        };
        let slow = std::thread::spawn(move || connect("closed", Some(keys)).close());
        // Its computation is in our hands from here on.
        let held = tasks.recv().unwrap();

        let mut session = connect("open", None);
        let load = Load {
            nsid: 1,
            pattern: Pattern::RandomMix { reads: 30 },
            blocks: Blocks(1),
            depth: 8,
            time: Duration::from_hours(1),
            commands: 500,
            verify: true,
            seed: 1,
        };
        let measured = run(&mut session, load).unwrap();
        assert!(measured.commands >= 500);
        assert_eq!((measured.failed, measured.wrong), (0, 0));
        session.close().unwrap();

        assert!(!slow.is_finished());
        finish(held);
        std::thread::spawn(move || work(&tasks));
        slow.join().unwrap().unwrap();
        server.stop().unwrap();
    }
}

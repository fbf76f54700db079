//! A namespace somewhere else, by as many paths as lead there.
//!
//! Requests are sent by the best path. When a path is lost, what was at work on it is sent again
//! by another, and the path is connected again, both as [`Multipath`] decides; this module only has
//! the connections and the data.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use block::{Command, IoError};
use nvme::initiator::{
    Association, Effect, Ended, Multipath, Namespace, PathEvent, PathId, PathState, Policy,
    RequestId,
};
use nvme::time::Instant;
use nvme::wire::AnaState;
use reactor::{Io, Outcome, Token};

use super::{Controller, ControllerEvent, Request};
use crate::clock::instant;
use crate::device::{Data, Finished};

/// No path has this id: its owner counts from zero.
const NO_PATH: PathId = PathId(u16::MAX);

/// A namespace by several paths. `O` is what the owner of a request knows it by.
pub struct Remote<O> {
    nsid: u32,
    multipath: Multipath,
    paths: BTreeMap<PathId, Path>,
    /// Controllers of removed paths into whose buffers the kernel still receives.
    leaving: Vec<Controller>,
    requests: Vec<Option<Waiting<O>>>,
    free: Vec<u32>,
    finished: VecDeque<Finished<O>>,
    /// The next controller's number; those of one remote are all different.
    next_controller: u64,
}

struct Path {
    address: SocketAddr,
    association: Association,
    controller: Option<Controller>,
    /// Whether the multipath machine knows that it is lost. It must before the ends of requests.
    told_lost: bool,
    /// Whether it was ready since it was last lost: that it still cannot be connected is no news.
    was_ready: bool,
}

impl Path {
    fn new(address: SocketAddr, association: Association) -> Path {
        Path { address, association, controller: None, told_lost: true, was_ready: true }
    }
}

/// A request, and its data while no path has them.
struct Waiting<O> {
    owner: O,
    data: Option<Data>,
}

impl<O> Remote<O> {
    /// Namespace `nsid`, with paths to come. Controllers get the numbers after `first_controller`,
    /// which nobody else on this reactor may use.
    pub fn new(nsid: u32, policy: Policy, first_controller: u64) -> Remote<O> {
        Remote {
            nsid,
            multipath: Multipath::new(policy),
            paths: BTreeMap::new(),
            leaving: Vec::new(),
            requests: (0..policy.requests).map(|_| None).collect(),
            free: (0..policy.requests).rev().collect(),
            finished: VecDeque::new(),
            next_controller: first_controller,
        }
    }

    /// Adds a path, and begins to connect it.
    pub fn add(
        &mut self,
        id: PathId,
        address: SocketAddr,
        association: Association,
        near: bool,
        io: &mut impl Io,
    ) {
        self.paths.insert(id, Path::new(address, association));
        self.multipath.add(instant(io), id, near);
        self.act(io);
    }

    /// Removes a path; what is at work on it goes by another.
    pub fn remove(&mut self, id: PathId, io: &mut impl Io) {
        if let Some(Path { controller: Some(mut controller), .. }) = self.paths.remove(&id) {
            controller.give_up("the path was removed", io);
            while let Some(happened) = controller.poll(io) {
                self.heard(id, happened, io);
            }
            if !controller.is_over() {
                self.leaving.push(controller);
            }
        }
        self.multipath.remove(instant(io), id);
        self.act(io);
    }

    /// Whether a command could be sent now.
    pub fn is_usable(&self, io: &impl Io) -> bool {
        self.multipath.is_usable(instant(io))
    }

    /// Every path: where it leads, and how it is.
    pub fn paths(&self) -> impl Iterator<Item = (PathId, SocketAddr, PathState)> {
        self.paths.iter().filter_map(|(id, path)| {
            self.multipath.path(*id).map(|state| (*id, path.address, state))
        })
    }

    /// The namespace as a path shows it, if one that is up has it.
    pub fn namespace(&self) -> Option<&Namespace> {
        let controllers = self.paths.values().filter_map(|path| path.controller.as_ref());
        controllers.flat_map(Controller::namespaces).find(|namespace| namespace.nsid == self.nsid)
    }

    /// When [`Remote::handle_timeout`] is to be called, at the latest.
    pub fn poll_timeout(&self, io: &impl Io) -> Option<Instant> {
        let controllers = self.paths.values().filter_map(|path| path.controller.as_ref());
        let controllers = controllers.filter_map(Controller::poll_timeout);
        controllers.chain(self.multipath.poll_timeout(instant(io))).min()
    }

    /// Sends a request by some path, now or when there is one; hands the data back if there are too
    /// many requests, or no path will ever come.
    pub fn submit(
        &mut self,
        owner: O,
        command: Command,
        data: Data,
        io: &mut impl Io,
    ) -> Result<(), (IoError, Data)> {
        let Some(id) = self.free.pop() else { return Err((IoError::Busy, data)) };
        if self.multipath.submit(instant(io), RequestId(id), command).is_err() {
            self.free.push(id);
            return Err((IoError::Unreachable, data));
        }
        if let Some(place) = self.place(RequestId(id)) {
            *place = Some(Waiting { owner, data: Some(data) });
        }
        self.act(io);
        Ok(())
    }

    /// Takes a finished request out.
    pub fn poll(&mut self) -> Option<Finished<O>> {
        self.finished.pop_front()
    }

    /// An event with a token of a controller; `false` if it is of none of ours.
    pub fn on(&mut self, token: Token, outcome: Outcome, io: &mut impl Io) -> bool {
        let number = Controller::id_of(token);
        let ours = self.paths.iter_mut().find_map(|(id, path)| {
            path.controller.as_mut().filter(|found| found.id() == number).map(|found| (*id, found))
        });
        let Some((id, controller)) = ours else { return self.on_leaving(token, outcome, io) };
        controller.on(token, outcome, io);
        self.listen(id, io);
        self.act(io);
        true
    }

    /// The rest of what a removed path had comes home, and is sent by another.
    fn on_leaving(&mut self, token: Token, outcome: Outcome, io: &mut impl Io) -> bool {
        let number = Controller::id_of(token);
        let Some(at) = self.leaving.iter().position(|it| it.id() == number) else { return false };
        let mut controller = self.leaving.swap_remove(at);
        controller.on(token, outcome, io);
        while let Some(happened) = controller.poll(io) {
            // Of a path that nobody knows any more only requests are of interest.
            if let ControllerEvent::Done { .. } = happened {
                self.heard(NO_PATH, happened, io);
            }
        }
        if !controller.is_over() {
            self.leaving.push(controller);
        }
        self.act(io);
        true
    }

    /// A batch of events is over: sends what they left to send.
    pub fn settle(&mut self, io: &mut impl Io) {
        for path in self.paths.values_mut() {
            if let Some(controller) = &mut path.controller {
                controller.settle(io);
            }
        }
    }

    /// Time has passed; to be called a few times a second.
    pub fn handle_timeout(&mut self, io: &mut impl Io) {
        let ids: Vec<PathId> = self.paths.keys().copied().collect();
        for id in ids {
            if let Some(Path { controller: Some(controller), .. }) = self.paths.get_mut(&id) {
                controller.handle_timeout(io);
            }
            self.listen(id, io);
        }
        self.multipath.handle_timeout(instant(io));
        self.act(io);
    }

    /// Hears everything that happened to a path.
    fn listen(&mut self, id: PathId, io: &mut impl Io) {
        while let Some(Path { controller: Some(controller), .. }) = self.paths.get_mut(&id)
            && let Some(happened) = controller.poll(io)
        {
            self.heard(id, happened, io);
        }
    }

    fn heard(&mut self, id: PathId, happened: ControllerEvent, io: &mut impl Io) {
        let now = instant(io);
        if let Some(path) = self.paths.get_mut(&id)
            && path.controller.as_ref().is_some_and(Controller::is_over)
            && !path.told_lost
        {
            path.told_lost = true;
            self.multipath.on(now, id, PathEvent::Lost);
        }
        match happened {
            ControllerEvent::Ready => {
                if let Some(path) = self.paths.get_mut(&id) {
                    path.was_ready = true;
                }
                let slots = self.controller(id).map_or(0, Controller::slots);
                let ana = self.ana(id);
                self.multipath.on(now, id, PathEvent::Live { slots, ana });
            }
            ControllerEvent::Ana | ControllerEvent::Namespaces => {
                let ana = self.ana(id);
                self.multipath.on(now, id, PathEvent::Ana(ana));
            }
            ControllerEvent::Done { tag, result, data } => {
                let request = RequestId(u32::try_from(tag).unwrap_or(u32::MAX));
                if let Some(Some(waiting)) = self.place(request) {
                    waiting.data = Some(data);
                }
                self.multipath.ended(now, Ended { request, result });
            }
            ControllerEvent::Lost { why } => {
                let Some(path) = self.paths.get_mut(&id) else { return };
                path.controller = None;
                if core::mem::take(&mut path.was_ready) {
                    tracing::info!(path = id.0, at = %path.address, %why, "path lost");
                } else {
                    tracing::debug!(path = id.0, at = %path.address, %why, "path still lost");
                }
            }
            ControllerEvent::Discovery
            | ControllerEvent::Notice(_)
            | ControllerEvent::Answered(..)
            | ControllerEvent::Reported { .. }
            | ControllerEvent::Replied { .. } => {}
        }
    }

    /// Does what the multipath machine decided.
    fn act(&mut self, io: &mut impl Io) {
        while let Some(effect) = self.multipath.poll_effect() {
            match effect {
                Effect::Connect(id) => {
                    self.next_controller += 1;
                    let number = self.next_controller;
                    if let Some(path) = self.paths.get_mut(&id) {
                        let association = path.association.clone();
                        let controller = Controller::connect(number, path.address, association, io);
                        path.controller = Some(controller);
                        path.told_lost = false;
                    }
                    self.listen(id, io);
                }
                Effect::Send { path, request, command } => self.send(path, request, command, io),
                // A path answered that it is not usable, and no event has said so: it may be on its
                // way, or the host may have missed it.
                Effect::Refresh(id) => {
                    if let Some(Path { controller: Some(controller), .. }) = self.paths.get_mut(&id)
                    {
                        controller.refresh(io);
                    }
                }
                Effect::Complete { request, result } => {
                    let Some(waiting) = self.place(request).and_then(Option::take) else {
                        continue;
                    };
                    self.free.push(request.0);
                    let data = waiting.data.unwrap_or(Data::None);
                    self.finished.push_back(Finished {
                        owner: waiting.owner,
                        completion: result,
                        data,
                    });
                }
                Effect::Abandon(id) => {
                    tracing::warn!(path = id.0, "path given up");
                    self.paths.remove(&id);
                }
            }
        }
    }

    fn send(&mut self, path: PathId, request: RequestId, command: Command, io: &mut impl Io) {
        let now = instant(io);
        let nsid = self.nsid;
        let Some(data) = self.place(request).and_then(Option::as_mut).and_then(|w| w.data.take())
        else {
            self.multipath.ended(now, Ended { request, result: Err(IoError::Internal) });
            return;
        };
        let asked = Request { tag: u64::from(request.0), nsid, command, data };
        let controller = self.paths.get_mut(&path).and_then(|path| path.controller.as_mut());
        let (fault, data) = match controller {
            Some(controller) => match controller.submit(asked, io) {
                Ok(()) => return,
                Err(rejected) => (rejected.fault, rejected.request.data),
            },
            None => (IoError::Unreachable, asked.data),
        };
        if let Some(Some(waiting)) = self.place(request) {
            waiting.data = Some(data);
        }
        self.multipath.ended(now, Ended { request, result: Err(fault) });
    }

    fn controller(&self, id: PathId) -> Option<&Controller> {
        self.paths.get(&id)?.controller.as_ref()
    }

    /// How good a path is; without the namespace it is none.
    fn ana(&self, id: PathId) -> AnaState {
        let Some(controller) = self.controller(id) else { return AnaState::Inaccessible };
        let found = controller.namespaces().iter().find(|found| found.nsid == self.nsid);
        match (found, controller.ana()) {
            (Some(namespace), Some(log)) => log.state(namespace.ana_group),
            (Some(_), None) => AnaState::Optimized,
            (None, _) => AnaState::Inaccessible,
        }
    }

    fn place(&mut self, id: RequestId) -> Option<&mut Option<Waiting<O>>> {
        self.requests.get_mut(usize::try_from(id.0).ok()?)
    }
}

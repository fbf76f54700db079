//! One namespace by two nodes: paths come and go, and no request notices.

use std::collections::BTreeMap;
use std::time::Duration;

use block::{Command, IoError};
use nvme::initiator::{
    AdminEvent, Association, ControllerInfo, Effect, Ended, IoEvent, Multipath, Namespace,
    PathEvent, PathId, Policy, RequestId,
};
use nvme::wire::AnaState;

use super::model::Model;
use super::net::{BLOCK, Dice, Net, Told, host, seeds};
use super::{BLOCKS, node};

/// What the driver keeps of one path.
#[derive(Default)]
struct Path {
    admin: Option<usize>,
    io: Option<usize>,
    controller: Option<ControllerInfo>,
    ana: Option<AnaState>,
    live: bool,
}

struct World {
    net: Net,
    association: Association,
    paths: Vec<Path>,
    multi: Multipath,
    namespace: Option<Namespace>,
    /// Commands sent: link and slot to request.
    sent: BTreeMap<(usize, u16), RequestId>,
    /// Data of the requests.
    data: Vec<Vec<u8>>,
    ended: Vec<(RequestId, Result<(), IoError>)>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut net = Net::new(seed);
        for number in [1, 2] {
            node(&mut net, number);
        }
        net.shared = Some(vec![0; BLOCKS * BLOCK]);
        let policy = Policy { requests: 8, seed, ..Policy::default() };
        World {
            net,
            association: host(1),
            paths: vec![Path::default(), Path::default()],
            multi: Multipath::new(policy),
            namespace: None,
            sent: BTreeMap::new(),
            data: vec![vec![0; 64 * BLOCK]; 8],
            ended: Vec::new(),
        }
    }

    fn step(&mut self) -> bool {
        self.carry_out();
        let moved = self.net.step();
        let idle = moved.is_none();
        for (link, told) in moved.unwrap_or_default() {
            self.on_told(link, told);
        }
        self.carry_out();
        !idle
    }

    fn path_of(&self, link: usize) -> Option<usize> {
        self.paths.iter().position(|path| path.admin == Some(link) || path.io == Some(link))
    }

    fn on_told(&mut self, link: usize, told: Told) {
        if let Told::Io(IoEvent::Done { slot, result }) = told {
            let request = self.sent.remove(&(link, slot)).expect("ended twice");
            if result.is_ok() {
                let at = usize::try_from(request.0).unwrap();
                let buffer = &self.net.links[link].buffers[usize::from(slot)];
                self.data[at].copy_from_slice(&buffer[..64 * BLOCK]);
            }
            let now = self.net.now;
            self.multi.ended(now, Ended { request, result });
            return;
        }
        let Some(at) = self.path_of(link) else { return };
        let id = PathId(u16::try_from(at).unwrap());
        let now = self.net.now;
        match told {
            Told::Admin(AdminEvent::Ready { controller, namespaces, ana }) => {
                let found = namespaces.first().cloned();
                self.namespace = self.namespace.take().or(found);
                let io = self.net.connect_io(at, &self.association, &controller, 1);
                let path = &mut self.paths[at];
                path.ana = ana.map(|log| log.state(1));
                path.controller = Some(controller);
                path.io = Some(io);
            }
            Told::Admin(AdminEvent::Ana(log)) => {
                self.paths[at].ana = Some(log.state(1));
                self.multi.on(now, id, PathEvent::Ana(log.state(1)));
            }
            Told::Io(IoEvent::Ready) => {
                self.paths[at].live = true;
                let ana = self.paths[at].ana.unwrap_or(AnaState::Optimized);
                let slots = self.net.io(link).slots().into();
                self.multi.on(now, id, PathEvent::Live { slots, ana });
            }
            Told::Admin(AdminEvent::Lost(_) | AdminEvent::Refused(_))
            | Told::Io(IoEvent::Lost(_) | IoEvent::Refused(_)) => self.lose(at),
            Told::Admin(AdminEvent::Namespaces(_)) => {}
            other => panic!("{other:?}"),
        }
    }

    /// One connection of a path is gone: so is the path.
    fn lose(&mut self, at: usize) {
        let id = PathId(u16::try_from(at).unwrap());
        self.multi.on(self.net.now, id, PathEvent::Lost);
        let path = std::mem::take(&mut self.paths[at]);
        for link in [path.admin, path.io].into_iter().flatten() {
            self.net.cut(link);
        }
    }

    fn carry_out(&mut self) {
        while let Some(effect) = self.multi.poll_effect() {
            match effect {
                Effect::Connect(id) => {
                    let at = usize::from(id.0);
                    let admin = self.net.connect_admin(at, &self.association);
                    self.paths[at] = Path { admin: Some(admin), ..Path::default() };
                }
                Effect::Send { path, request, command } => self.send(path, request, command),
                Effect::Complete { request, result } => self.ended.push((request, result)),
                Effect::Refresh(id) => {
                    let now = self.net.now;
                    if let Some(admin) = self.paths[usize::from(id.0)].admin {
                        self.net.admin(admin).refresh(now);
                    }
                }
                Effect::Abandon(id) => panic!("{id:?} was given up"),
            }
        }
    }

    fn send(&mut self, path: PathId, request: RequestId, command: Command) {
        let now = self.net.now;
        let namespace = self.namespace.clone().unwrap();
        let failed = Ended { request, result: Err(IoError::Unreachable) };
        let Some(link) = self.paths[usize::from(path.0)].io else {
            return self.multi.ended(now, failed);
        };
        let slots = self.net.io(link).slots();
        let slot = (0..slots).find(|slot| !self.sent.contains_key(&(link, *slot))).unwrap();
        let data = &self.data[usize::try_from(request.0).unwrap()];
        self.net.links[link].buffers[usize::from(slot)][..data.len()].copy_from_slice(data);
        match self.net.io(link).submit(now, slot, &namespace, command) {
            Ok(()) => {
                self.sent.insert((link, slot), request);
            }
            // Lost, and not yet told.
            Err(IoError::Busy) => self.multi.ended(now, failed),
            Err(fault) => panic!("{command:?}: {fault}"),
        }
    }

    /// Time goes on to whatever is due next.
    fn wait(&mut self) {
        let now = self.net.now;
        let due = self.multi.poll_timeout(now).unwrap_or(now.after(Duration::from_millis(10)));
        let by = due.since(now).clamp(Duration::from_millis(1), Duration::from_secs(1));
        self.net.advance(by);
        self.multi.handle_timeout(self.net.now);
    }

    /// Something goes wrong.
    fn disturb(&mut self, dice: &mut Dice) {
        let at = dice.index(2);
        match dice.below(4) {
            0 | 1 => {
                let links = [self.paths[at].admin, self.paths[at].io];
                if let Some(link) = links[dice.index(2)] {
                    self.net.cut(link);
                }
            }
            2 => {
                let state = match dice.below(3) {
                    0 => AnaState::Optimized,
                    1 => AnaState::NonOptimized,
                    _ => AnaState::Inaccessible,
                };
                self.net.at(at, |node| {
                    node.subsystem.set_ana(1, state).unwrap();
                    node.effects();
                });
            }
            _ => {
                self.net.at(at, |node| {
                    node.subsystem.close();
                    node.effects();
                });
            }
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let mut dice = Dice::new(seed ^ 0x77);
    let mut model = Model::new(BLOCKS);
    for at in 0..2 {
        world.multi.add(world.net.now, PathId(at), at == 0);
    }
    let mut at_work: Vec<(RequestId, Command, u64)> = Vec::new();
    let (mut left, mut disturbances) = (120, 12);
    while left > 0 || !at_work.is_empty() {
        let commands: Vec<Command> = at_work.iter().map(|work| work.1).collect();
        let free = (0..8).map(RequestId).find(|id| at_work.iter().all(|work| work.0 != *id));
        if left > 0
            && world.namespace.is_some()
            && dice.one_in(3)
            && let Some(id) = free
            && let Some((command, tag)) = model.choose(&mut dice, &commands)
        {
            left -= 1;
            model.fill(command, tag, &mut world.data[usize::try_from(id.0).unwrap()]);
            world.multi.submit(world.net.now, id, command).unwrap();
            at_work.push((id, command, tag));
        }
        if disturbances > 0 && dice.one_in(120) {
            disturbances -= 1;
            world.disturb(&mut dice);
        }
        if !world.step() {
            // Nothing can move without a path that works: the owner repairs one.
            if !world.multi.is_usable(world.net.now) && dice.one_in(10) {
                for at in 0..2 {
                    world.net.at(at, |node| {
                        node.subsystem.set_ana(1, AnaState::Optimized).unwrap();
                        node.effects();
                    });
                }
            }
            world.wait();
        }
        for (id, result) in std::mem::take(&mut world.ended) {
            let at = at_work.iter().position(|work| work.0 == id).expect("completed twice");
            let (_, command, tag) = at_work.remove(at);
            assert_eq!(result, Ok(()), "seed {seed}: {command:?}");
            model.done(command, tag, &world.data[usize::try_from(id.0).unwrap()]);
        }
    }
    model.done(Command::Read { span: model.span() }, 0, world.net.shared.as_ref().unwrap());
}

#[test]
fn no_request_fails_while_one_path_remains() {
    for seed in seeds(6) {
        run(seed);
    }
}

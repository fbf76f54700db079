//! How a core carries out orders.

use reactor::{Io, Key};

use super::core::{Core, Message};
use super::orders::{Answer, Order, OrderError, What};
use super::reply::Promise;
use super::routes::Claim;
use super::served::Served;

/// A subsystem that ends as soon as its last connection has.
pub(super) struct Departure {
    subsystem: Key,
    /// Who waits for that; the first of them asked for it.
    asked: Vec<(Claim, Promise)>,
}

/// Most who wait for the same end.
const MOST_WAITING: usize = 64;

impl Core {
    pub(super) fn obey(&mut self, order: Order, io: &mut impl Io<Message = Message>) {
        let Order { claim, what, promise } = order;
        if self.stopping.is_some() {
            promise.keep(Err(OrderError::Stopped));
            return;
        }
        let answer = match what {
            What::Remove => return self.begin_removal(claim, promise),
            What::Add(wanted) => self.add(&claim, &wanted, io),
            What::Ana { nsid, state } => {
                self.change(&claim, |served, _| served.set_ana(nsid, state))
            }
            What::Hosts(hosts) => self.change(&claim, |served, claim| {
                let answer = served.set_hosts(hosts);
                claim.tell(Some(served.hosts()));
                Ok(answer)
            }),
            What::Grow { nsid, size } => match self.find(&claim) {
                Ok(key) => match self.subsystems.get_mut(key) {
                    Some(served) => served.grow(nsid, size, &mut self.devices, io),
                    None => Err(no_subsystem(&claim)),
                },
                Err(error) => Err(error),
            },
        };
        if let Ok(key) = self.find(&claim) {
            self.effects(key);
        }
        self.spread_discovery();
        match &answer {
            Ok(Answer::Changed) => tracing::info!(subsystem = %claim.nqn(), "changed by order"),
            Ok(Answer::Unchanged) => {}
            Err(error) => tracing::warn!(subsystem = %claim.nqn(), %error, "order refused"),
        }
        // The name is free again before anybody hears of it.
        drop(claim);
        promise.keep(answer);
    }

    pub(super) fn add(
        &mut self,
        claim: &Claim,
        wanted: &super::config::Subsystem,
        io: &mut impl Io,
    ) -> Result<Answer, OrderError> {
        let nqn = claim.nqn();
        match self.find(claim) {
            Ok(key) => {
                let is_same = self.subsystems.get(key).is_some_and(|one| one.is_like(wanted));
                let conflict = || OrderError::Conflict { nqn: nqn.clone() };
                return if is_same { Ok(Answer::Unchanged) } else { Err(conflict()) };
            }
            Err(OrderError::NoSubsystem { .. }) => {}
            Err(error) => return Err(error),
        }
        let hosts = wanted.hosts();
        let served = Served::open(nqn, wanted, self.limits, &mut self.devices, io)?;
        if let Err(mut served) = self.subsystems.insert(served) {
            served.close(&mut self.devices, io);
            return Err(OrderError::Full);
        }
        claim.tell(Some(hosts));
        Ok(Answer::Changed)
    }

    fn change(
        &mut self,
        claim: &Claim,
        change: impl FnOnce(&mut Served, &Claim) -> Result<Answer, OrderError>,
    ) -> Result<Answer, OrderError> {
        let key = self.find(claim)?;
        let served = self.subsystems.get_mut(key).ok_or_else(|| no_subsystem(claim))?;
        change(served, claim)
    }

    pub(super) fn begin_removal(&mut self, claim: Claim, promise: Promise) {
        let nqn = claim.nqn();
        let leaving = |departure: &&mut Departure| {
            self.subsystems.get(departure.subsystem).is_some_and(|one| one.subsystem.nqn() == nqn)
        };
        if let Some(departure) = self.leaving.iter_mut().find(leaving) {
            if departure.asked.len() < MOST_WAITING {
                departure.asked.push((claim, promise));
            } else {
                promise.keep(Err(OrderError::Busy { nqn: nqn.clone() }));
            }
            return;
        }
        let Ok(key) = self.find(&claim) else {
            promise.keep(Ok(Answer::Unchanged));
            return;
        };
        claim.tell(None);
        self.spread_discovery();
        if let Some(served) = self.subsystems.get_mut(key) {
            served.is_leaving = true;
            served.subsystem.close();
        }
        self.effects(key);
        self.leaving.push(Departure { subsystem: key, asked: vec![(claim, promise)] });
    }

    /// Ends the subsystems that nobody is connected to any more. Connections with commands on a
    /// device stay until those are done, so nothing uses the devices then.
    pub(super) fn bury(&mut self, io: &mut impl Io) {
        let mut waiting = Vec::new();
        for departure in core::mem::take(&mut self.leaving) {
            let key = departure.subsystem;
            if self.links.iter().any(|(_, link)| link.subsystem == Some(key)) {
                waiting.push(departure);
                continue;
            }
            if let Some(mut served) = self.subsystems.remove(key) {
                served.close(&mut self.devices, io);
                tracing::info!(subsystem = %served.subsystem.nqn(), "removed by order");
            }
            let mut answer = Answer::Changed;
            for (claim, promise) in departure.asked {
                drop(claim);
                promise.keep(Ok(answer));
                answer = Answer::Unchanged;
            }
        }
        self.leaving = waiting;
    }

    /// Where the subsystem of an order is.
    fn find(&self, claim: &Claim) -> Result<Key, OrderError> {
        let mut all = self.subsystems.iter();
        match all.find(|(_, served)| served.subsystem.nqn() == claim.nqn()) {
            Some((_, served)) if served.is_leaving => {
                Err(OrderError::Leaving { nqn: claim.nqn().clone() })
            }
            Some((key, _)) => Ok(key),
            None => Err(no_subsystem(claim)),
        }
    }

    /// Lets all cores look whether discovery has something new to tell. A core that is too busy to
    /// take the message looks at its next tick.
    pub(super) fn spread_discovery(&mut self) {
        if self.routes.version() != self.told {
            self.tell_discovery();
            for (core, mailbox) in self.mailboxes.iter().enumerate() {
                if core != self.me {
                    let _ = mailbox.post(Message::Discovery);
                }
            }
        }
    }

    /// Tells hosts that listen for it what discovery has to tell now.
    pub(super) fn tell_discovery(&mut self) {
        let version = self.routes.version();
        if version == self.told {
            return;
        }
        self.told = version;
        let records = self.routes.records(&self.addresses);
        let keys: Vec<Key> = self.subsystems.keys().collect();
        for key in keys {
            if let Some(served) = self.subsystems.get_mut(key) {
                served.subsystem.set_discovery(records.clone());
            }
            self.effects(key);
        }
    }
}

fn no_subsystem(claim: &Claim) -> OrderError {
    OrderError::NoSubsystem { nqn: claim.nqn().clone() }
}

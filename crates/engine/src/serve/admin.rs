//! How a core carries out orders.

use reactor::{Io, Key};

use super::directory::Pin;
use super::exported_subsystem::ExportedSubsystem;
use super::handle::{AdminCommand, AdminError, AdminMessage, AdminResponse};
use super::reply::Promise;
use super::shard::{Message, Shard};

/// A subsystem that ends as soon as its last connection has.
pub(super) struct PendingRemoval {
    subsystem: Key,
    /// Who waits for that; the first of them asked for it.
    asked: Vec<(Pin, Promise)>,
}

/// Most who wait for the same end.
const MOST_WAITING: usize = 64;

impl Shard {
    pub(super) fn apply(&mut self, order: AdminMessage, io: &mut impl Io<Message = Message>) {
        let AdminMessage { pin, what, promise } = order;
        if self.stopping.is_some() {
            promise.keep(Err(AdminError::Stopped));
            return;
        }
        let answer = match what {
            AdminCommand::Remove => return self.begin_removal(pin, promise),
            AdminCommand::Add(wanted) => self.add(&pin, &wanted, io),
            AdminCommand::Ana { nsid, state } => {
                self.change(&pin, |exported, _| exported.set_ana(nsid, state))
            }
            AdminCommand::Hosts(hosts) => self.change(&pin, |exported, pin| {
                let answer = exported.set_hosts(hosts);
                pin.tell(Some(exported.hosts()));
                Ok(answer)
            }),
            AdminCommand::Grow { nsid, size } => match self.find(&pin) {
                Ok(key) => match self.subsystems.get_mut(key) {
                    Some(exported) => exported.grow(nsid, size, &mut self.devices, io),
                    None => Err(no_subsystem(&pin)),
                },
                Err(error) => Err(error),
            },
        };
        if let Ok(key) = self.find(&pin) {
            self.effects(key);
        }
        self.spread_discovery();
        match &answer {
            Ok(AdminResponse::Changed) => {
                tracing::info!(subsystem = %pin.nqn(), "changed on request");
            }
            Ok(AdminResponse::Unchanged) => {}
            Err(error) => tracing::warn!(subsystem = %pin.nqn(), %error, "admin request refused"),
        }
        // The name is free again before anybody hears of it.
        drop(pin);
        promise.keep(answer);
    }

    pub(super) fn add(
        &mut self,
        pin: &Pin,
        wanted: &super::config::Subsystem,
        io: &mut impl Io,
    ) -> Result<AdminResponse, AdminError> {
        let nqn = pin.nqn();
        match self.find(pin) {
            Ok(key) => {
                let is_same = self.subsystems.get(key).is_some_and(|one| one.is_like(wanted));
                let conflict = || AdminError::Conflict { nqn: nqn.clone() };
                return if is_same { Ok(AdminResponse::Unchanged) } else { Err(conflict()) };
            }
            Err(AdminError::NoSubsystem { .. }) => {}
            Err(error) => return Err(error),
        }
        let hosts = wanted.hosts();
        let exported = ExportedSubsystem::open(nqn, wanted, self.limits, &mut self.devices, io)?;
        if let Err(mut exported) = self.subsystems.insert(exported) {
            exported.close(&mut self.devices, io);
            return Err(AdminError::Full);
        }
        pin.tell(Some(hosts));
        Ok(AdminResponse::Changed)
    }

    fn change(
        &mut self,
        pin: &Pin,
        change: impl FnOnce(&mut ExportedSubsystem, &Pin) -> Result<AdminResponse, AdminError>,
    ) -> Result<AdminResponse, AdminError> {
        let key = self.find(pin)?;
        let exported = self.subsystems.get_mut(key).ok_or_else(|| no_subsystem(pin))?;
        change(exported, pin)
    }

    pub(super) fn begin_removal(&mut self, pin: Pin, promise: Promise) {
        let nqn = pin.nqn();
        let leaving = |departure: &&mut PendingRemoval| {
            self.subsystems.get(departure.subsystem).is_some_and(|one| one.subsystem.nqn() == nqn)
        };
        if let Some(departure) = self.leaving.iter_mut().find(leaving) {
            if departure.asked.len() < MOST_WAITING {
                departure.asked.push((pin, promise));
            } else {
                promise.keep(Err(AdminError::Busy { nqn: nqn.clone() }));
            }
            return;
        }
        let Ok(key) = self.find(&pin) else {
            promise.keep(Ok(AdminResponse::Unchanged));
            return;
        };
        pin.tell(None);
        self.spread_discovery();
        if let Some(exported) = self.subsystems.get_mut(key) {
            exported.is_leaving = true;
            exported.subsystem.close();
        }
        self.effects(key);
        self.leaving.push(PendingRemoval { subsystem: key, asked: vec![(pin, promise)] });
    }

    /// Ends the subsystems that nobody is connected to any more. Connections with commands on a
    /// device stay until those are done, so nothing uses the devices then.
    pub(super) fn reap(&mut self, io: &mut impl Io) {
        let mut waiting = Vec::new();
        for departure in core::mem::take(&mut self.leaving) {
            let key = departure.subsystem;
            if self.connections.iter().any(|(_, connection)| connection.subsystem == Some(key)) {
                waiting.push(departure);
                continue;
            }
            if let Some(mut exported) = self.subsystems.remove(key) {
                exported.close(&mut self.devices, io);
                tracing::info!(subsystem = %exported.subsystem.nqn(), "removed on request");
            }
            let mut answer = AdminResponse::Changed;
            for (pin, promise) in departure.asked {
                drop(pin);
                promise.keep(Ok(answer));
                answer = AdminResponse::Unchanged;
            }
        }
        self.leaving = waiting;
    }

    /// Where the subsystem of an order is.
    fn find(&self, pin: &Pin) -> Result<Key, AdminError> {
        let mut all = self.subsystems.iter();
        match all.find(|(_, exported)| exported.subsystem.nqn() == pin.nqn()) {
            Some((_, exported)) if exported.is_leaving => {
                Err(AdminError::Leaving { nqn: pin.nqn().clone() })
            }
            Some((key, _)) => Ok(key),
            None => Err(no_subsystem(pin)),
        }
    }

    /// Lets all cores look whether discovery has something new to tell. A core that is too busy to
    /// take the message looks at its next tick.
    pub(super) fn spread_discovery(&mut self) {
        if self.directory.version() != self.told {
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
        let version = self.directory.version();
        if version == self.told {
            return;
        }
        self.told = version;
        let records = self.directory.records(&self.addresses);
        let keys: Vec<Key> = self.subsystems.keys().collect();
        for key in keys {
            if let Some(exported) = self.subsystems.get_mut(key) {
                exported.subsystem.set_discovery(records.clone());
            }
            self.effects(key);
        }
    }
}

fn no_subsystem(pin: &Pin) -> AdminError {
    AdminError::NoSubsystem { nqn: pin.nqn().clone() }
}

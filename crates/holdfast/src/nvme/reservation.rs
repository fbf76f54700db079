//! `holdfast nvme reservation`: who may write to a namespace.

use std::io::Write;

use ::nvme::initiator::{Key, Report, Reservation};
use ::nvme::wire::{AcquireAction, RegisterAction, ReleaseAction, ReservationType};
use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::{ConnectArgs, hex};

/// Commands on the reservation of a namespace.
#[derive(Subcommand)]
pub(crate) enum ReservationCommand {
    /// Make our key known, or replace it
    Register {
        #[command(flatten)]
        on: On,
        /// Our key from now on
        #[arg(long, value_name = "KEY", value_parser = key)]
        key: Key,
        /// Our key so far, to be replaced
        #[arg(long, value_name = "KEY", value_parser = key)]
        replace: Option<Key>,
        /// Whatever key we had
        #[arg(long)]
        force: bool,
    },
    /// Withdraw our key, and with it the reservation if we hold it
    Unregister(Keyed),
    /// Take a reservation that is free
    Acquire {
        #[command(flatten)]
        keyed: Keyed,
        /// What others may still do
        #[arg(long = "type", value_name = "TYPE")]
        kind: Kind,
    },
    /// Take the reservation from the holder of a key, and withdraw that key
    Preempt {
        #[command(flatten)]
        keyed: Keyed,
        /// Whose key to withdraw
        #[arg(long, value_name = "KEY", value_parser = key)]
        from: Key,
        /// What others may still do
        #[arg(long = "type", value_name = "TYPE")]
        kind: Kind,
        /// And abort its commands: none of them is at work any more when this ends
        #[arg(long)]
        abort: bool,
    },
    /// Give the reservation up, and stay registered
    Release {
        #[command(flatten)]
        keyed: Keyed,
        /// The type it was taken with
        #[arg(long = "type", value_name = "TYPE")]
        kind: Kind,
    },
    /// Withdraw the reservation and everybody's key
    Clear(Keyed),
    /// Show who is registered, and who holds the reservation
    Report(On),
}

/// Which namespace, and how to reach it.
#[derive(Args)]
pub(crate) struct On {
    #[command(flatten)]
    reach: ConnectArgs,
    /// The subsystem
    #[arg(long, value_name = "NQN")]
    nqn: String,
    /// Which namespace
    #[arg(long, value_name = "N", default_value_t = 1)]
    nsid: u32,
}

/// The same, by a host with a key.
#[derive(Args)]
pub(crate) struct Keyed {
    #[command(flatten)]
    on: On,
    /// Our key
    #[arg(long, value_name = "KEY", value_parser = key)]
    key: Key,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Only the holder writes
    WriteExclusive,
    /// Only the holder reads and writes
    ExclusiveAccess,
    /// Only those registered write
    WriteExclusiveRegistrants,
    /// Only those registered read and write
    ExclusiveAccessRegistrants,
    /// Only those registered write, and all of them hold it
    WriteExclusiveAll,
    /// Only those registered read and write, and all of them hold it
    ExclusiveAccessAll,
}

impl Kind {
    const ALL: [(Kind, ReservationType); 6] = [
        (Kind::WriteExclusive, ReservationType::WriteExclusive),
        (Kind::ExclusiveAccess, ReservationType::ExclusiveAccess),
        (Kind::WriteExclusiveRegistrants, ReservationType::WriteExclusiveRegistrants),
        (Kind::ExclusiveAccessRegistrants, ReservationType::ExclusiveAccessRegistrants),
        (Kind::WriteExclusiveAll, ReservationType::WriteExclusiveAll),
        (Kind::ExclusiveAccessAll, ReservationType::ExclusiveAccessAll),
    ];

    fn meant(self) -> ReservationType {
        let found = Kind::ALL.iter().find(|(typed, _)| *typed == self);
        found.map_or(ReservationType::WriteExclusive, |(_, meant)| *meant)
    }

    /// As it would be typed.
    fn name_of(kind: ReservationType) -> String {
        let found = Kind::ALL.iter().find(|(_, meant)| *meant == kind);
        let typed = found.and_then(|(typed, _)| typed.to_possible_value());
        typed.map_or_else(|| format!("{kind:?}"), |typed| typed.get_name().to_owned())
    }
}

/// `17` or `0x11`.
fn key(text: &str) -> Result<Key, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map(Key).map_err(|_| format!("{text:?} is not a key, such as 17 or 0x11"))
}

impl ReservationCommand {
    pub(crate) fn run(self) -> Result<()> {
        let (on, reservation) = self.meant();
        let mut session = on.reach.connect(&on.nqn, 1, 32)?;
        let report = session
            .reserve(on.nsid, reservation)
            .with_context(|| format!("namespace {} of {}", on.nsid, on.nqn))?;
        session.close()?;
        match report {
            Some(report) => on.reach.print(&as_json(&report), |out| print(out, &report)),
            None => on.reach.print(&json!({ "ok": true }), |out| writeln!(out, "ok")),
        }
    }

    fn meant(self) -> (On, Reservation) {
        let acquire = |action, kind: Kind, current, preempt| Reservation::Acquire {
            action,
            kind: kind.meant(),
            current,
            preempt,
        };
        match self {
            ReservationCommand::Register { on, key, replace, force } => {
                let action = match replace {
                    Some(_) => RegisterAction::Replace,
                    None => RegisterAction::Register,
                };
                let current = replace.unwrap_or_default();
                (on, Reservation::Register { action, current, new: key, force })
            }
            ReservationCommand::Unregister(Keyed { on, key }) => {
                let action = RegisterAction::Unregister;
                let new = Key::default();
                (on, Reservation::Register { action, current: key, new, force: false })
            }
            ReservationCommand::Acquire { keyed: Keyed { on, key }, kind } => {
                (on, acquire(AcquireAction::Acquire, kind, key, Key::default()))
            }
            ReservationCommand::Preempt { keyed: Keyed { on, key }, from, kind, abort } => {
                let action =
                    if abort { AcquireAction::PreemptAndAbort } else { AcquireAction::Preempt };
                (on, acquire(action, kind, key, from))
            }
            ReservationCommand::Release { keyed: Keyed { on, key }, kind } => {
                let action = ReleaseAction::Release;
                (on, Reservation::Release { action, kind: kind.meant(), current: key })
            }
            ReservationCommand::Clear(Keyed { on, key }) => {
                let (action, kind) = (ReleaseAction::Clear, ReservationType::WriteExclusive);
                (on, Reservation::Release { action, kind, current: key })
            }
            ReservationCommand::Report(on) => (on, Reservation::Report),
        }
    }
}

fn as_json(report: &Report) -> Value {
    let registrants: Vec<Value> = report
        .registrants
        .iter()
        .map(|one| {
            let key = format!("{:#x}", one.key.0);
            json!({ "host": hex(one.host), "key": key, "holds": one.holds })
        })
        .collect();
    json!({
        "generation": report.generation,
        "type": report.kind.map(Kind::name_of),
        "persistent": report.persistent,
        "registrants": registrants,
    })
}

fn print(out: &mut dyn Write, report: &Report) -> std::io::Result<()> {
    let kind = report.kind.map_or_else(|| "not reserved".to_owned(), Kind::name_of);
    let lasting = if report.persistent { ", outlives a restart" } else { "" };
    writeln!(out, "{kind}, generation {}{lasting}", report.generation)?;
    for one in &report.registrants {
        let holds = if one.holds { "  holds it" } else { "" };
        writeln!(out, "host {}  key {:#x}{holds}", hex(one.host), one.key.0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_they_are_typed() {
        for (text, right) in
            [("17", Some(17)), ("0x11", Some(17)), ("0xffffffffffffffff", Some(u64::MAX))]
        {
            assert_eq!(key(text).ok().map(|key| key.0), right, "{text}");
        }
        for text in ["", "0x", "x", "-1", "0x10000000000000000"] {
            assert!(key(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_type_is_printed_as_it_is_typed() {
        for typed in Kind::value_variants() {
            let name = Kind::name_of(typed.meant());
            assert_eq!(Kind::from_str(&name, false).map(Kind::meant), Ok(typed.meant()), "{name}");
        }
    }
}

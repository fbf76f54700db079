//! Reservations: who may write to a namespace.

use alloc::boxed::Box;
use alloc::vec::Vec;

use zerocopy::{FromBytes, IntoBytes};

use super::transfer::Data;
use crate::wire::{
    AcquireAction, AcquireData, IoOpcode, RegisterAction, RegisterData, RegistrantExtended,
    ReleaseAction, ReleaseData, ReportHeaderExtended, ReservationArgs, ReservationType, Sqe, U32,
    U64,
};

/// A key by which a host is known in reservations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(pub u64);

/// A reservation command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// Make a key known, withdraw or change it.
    Register {
        /// Which of the three.
        action: RegisterAction,
        /// The key known so far; not looked at with `force`.
        current: Key,
        /// The key from now on.
        new: Key,
        /// Whatever key is known so far.
        force: bool,
    },
    /// Take the reservation, by force if need be.
    Acquire {
        /// How.
        action: AcquireAction,
        /// What others may still do.
        kind: ReservationType,
        /// Our key.
        current: Key,
        /// Whose registration and reservation to take.
        preempt: Key,
    },
    /// Give the reservation up, or everybody's registration.
    Release {
        /// Which.
        action: ReleaseAction,
        /// The kind it was taken with.
        kind: ReservationType,
        /// Our key.
        current: Key,
    },
    /// Who is registered, and who holds it.
    Report,
}

/// Answer to [`Reservation::Report`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Changes with every registration, preemption and clearing.
    pub generation: u32,
    /// What kind of reservation is held.
    pub kind: Option<ReservationType>,
    /// Whether it outlives a restart of the controller.
    pub persistent: bool,
    /// Who is registered, as far as the answer had room.
    pub registrants: Vec<Holder>,
}

/// One registered host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Identifier of the host.
    pub host: [u8; 16],
    /// Its key.
    pub key: Key,
    /// Whether it holds the reservation.
    pub holds: bool,
    /// Controller it was registered through; `0xFFFF` for a dynamic one.
    pub cntlid: u16,
}

/// Room for the answer to a report: a head and 63 registrants.
const REPORT_LEN: u32 = 4096;
/// Change persistence (CPTPL): reservations outlive a restart, as Linux asks for too.
const PERSIST: u8 = 3;

impl Reservation {
    pub(super) fn encode(self, nsid: u32) -> (Sqe, Data) {
        let bare = ReservationArgs { action: 0, iekey: false, rtype: 0, cptpl: 0 };
        let (opcode, args, data) = match self {
            Reservation::Register { action, current, new, force } => (
                IoOpcode::ReservationRegister,
                ReservationArgs {
                    action: action.code(),
                    iekey: force,
                    cptpl: if action == RegisterAction::Unregister { 0 } else { PERSIST },
                    ..bare
                },
                owned(&RegisterData { crkey: U64::new(current.0), nrkey: U64::new(new.0) }),
            ),
            Reservation::Acquire { action, kind, current, preempt } => (
                IoOpcode::ReservationAcquire,
                ReservationArgs { action: action.code(), rtype: kind.code(), ..bare },
                owned(&AcquireData { crkey: U64::new(current.0), prkey: U64::new(preempt.0) }),
            ),
            Reservation::Release { action, kind, current } => (
                IoOpcode::ReservationRelease,
                ReservationArgs { action: action.code(), rtype: kind.code(), ..bare },
                owned(&ReleaseData { crkey: U64::new(current.0) }),
            ),
            Reservation::Report => {
                (IoOpcode::ReservationReport, bare, Data::InOwned { len: REPORT_LEN })
            }
        };
        let mut sqe = Sqe::new(opcode.code(), 0);
        sqe.nsid = U32::new(nsid);
        sqe.cdw10 = U32::new(args.cdw10());
        if self == Reservation::Report {
            // Dwords minus one; and extended, so that host identifiers have 128 bits.
            sqe.cdw10 = U32::new(REPORT_LEN / 4 - 1);
            sqe.cdw11 = U32::new(1);
        }
        (sqe, data)
    }
}

fn owned<T: IntoBytes + zerocopy::Immutable>(data: &T) -> Data {
    Data::OutOwned { bytes: Box::from(data.as_bytes()) }
}

impl Report {
    /// Reads an extended report; nothing if it is too short or names an unknown kind.
    pub fn parse(bytes: &[u8]) -> Option<Report> {
        let (head, rest) = ReportHeaderExtended::ref_from_prefix(bytes).ok()?;
        let kind = match head.header.rtype {
            0 => None,
            code => Some(ReservationType::from_code(code)?),
        };
        let count = usize::from(head.header.regctl.get());
        let entries = rest.chunks_exact(size_of::<RegistrantExtended>()).take(count);
        let registrants = entries
            .filter_map(|entry| RegistrantExtended::ref_from_bytes(entry).ok())
            .map(|entry| Holder {
                host: entry.hostid,
                key: Key(entry.rkey.get()),
                holds: entry.rcsts & 1 != 0,
                cntlid: entry.cntlid.get(),
            })
            .collect();
        Some(Report {
            generation: head.header.generation.get(),
            kind,
            persistent: head.header.ptpls & 1 != 0,
            registrants,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn dwords(command: Reservation) -> (u8, u32, u32) {
        let (sqe, _) = command.encode(3);
        assert_eq!(sqe.nsid.get(), 3);
        (sqe.opcode, sqe.cdw10.get(), sqe.cdw11.get())
    }

    #[test]
    fn commands_as_the_specification_lays_them_out() {
        let (current, new) = (Key(1), Key(2));
        let register = |action, force| Reservation::Register { action, current, new, force };
        assert_eq!(dwords(register(RegisterAction::Register, false)), (0x0D, 0xC000_0000, 0));
        assert_eq!(dwords(register(RegisterAction::Unregister, true)), (0x0D, 9, 0));
        assert_eq!(dwords(register(RegisterAction::Replace, true)), (0x0D, 0xC000_000A, 0));
        let (_, Data::OutOwned { bytes }) = register(RegisterAction::Register, false).encode(1)
        else {
            panic!()
        };
        assert_eq!(*bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        let kind = ReservationType::WriteExclusiveRegistrants;
        let action = AcquireAction::PreemptAndAbort;
        let acquire = Reservation::Acquire { action, kind, current, preempt: Key(9) };
        assert_eq!(dwords(acquire), (0x11, 0x302, 0));
        let action = ReleaseAction::Clear;
        assert_eq!(dwords(Reservation::Release { action, kind, current }), (0x15, 0x301, 0));
        assert_eq!(dwords(Reservation::Report), (0x0E, 1023, 1));
    }

    #[test]
    fn a_report_is_read() {
        let mut bytes = vec![0; 64 + 128];
        bytes[..10].copy_from_slice(&[5, 0, 0, 0, 3, 2, 0, 0, 0, 1]);
        bytes[64..67].copy_from_slice(&[0xFF, 0xFF, 1]);
        bytes[72] = 0x11;
        bytes[80..96].copy_from_slice(&[0xAB; 16]);
        bytes[128..131].copy_from_slice(&[7, 0, 0]);
        let report = Report::parse(&bytes).unwrap();
        assert_eq!(report.generation, 5);
        assert_eq!(report.kind, Some(ReservationType::WriteExclusiveRegistrants));
        assert!(report.persistent);
        let holder = Holder { host: [0xAB; 16], key: Key(0x11), holds: true, cntlid: 0xFFFF };
        let other = Holder { host: [0; 16], key: Key(0), holds: false, cntlid: 7 };
        assert_eq!(report.registrants, [holder, other]);
        assert_eq!(Report::parse(&bytes[..63]), None);
        bytes[4] = 7;
        assert_eq!(Report::parse(&bytes), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(report) = Report::parse(&bytes) {
                prop_assert!(report.registrants.len() <= bytes.len() / 64);
            }
        }
    }
}

//! Reservation commands and their data.

use super::command::codes;
use super::{Sqe, U16, U32, U64, layout};

codes! {
    /// Kinds of reservation.
    pub enum ReservationType {
        /// Only the holder writes; all read.
        WriteExclusive = 0x01,
        /// Only the holder reads and writes.
        ExclusiveAccess = 0x02,
        /// Only registrants write; all read; one holder.
        WriteExclusiveRegistrants = 0x03,
        /// Only registrants read and write; one holder.
        ExclusiveAccessRegistrants = 0x04,
        /// Only registrants write; all read; every registrant is a holder.
        WriteExclusiveAll = 0x05,
        /// Only registrants read and write; every registrant is a holder.
        ExclusiveAccessAll = 0x06,
    }
}

impl ReservationType {
    /// Whether every registrant is a holder.
    pub fn held_by_all(self) -> bool {
        matches!(self, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
    }

    /// Whether registrants have the holder's access.
    pub fn registrants_only(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// Whether hosts without access may still read.
    pub fn all_read(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrants
                | ReservationType::WriteExclusiveAll
        )
    }
}

codes! {
    /// What a Reservation Register does.
    pub enum RegisterAction {
        /// Register a key.
        Register = 0x00,
        /// Give the key up.
        Unregister = 0x01,
        /// Change the key.
        Replace = 0x02,
    }
}

codes! {
    /// What a Reservation Acquire does.
    pub enum AcquireAction {
        /// Take a reservation that is free.
        Acquire = 0x00,
        /// Remove registrants, and take the reservation from them.
        Preempt = 0x01,
        /// The same, and abort their commands first.
        PreemptAndAbort = 0x02,
    }
}

codes! {
    /// What a Reservation Release does.
    pub enum ReleaseAction {
        /// Release the reservation.
        Release = 0x00,
        /// Remove reservation and all registrants.
        Clear = 0x01,
    }
}

/// Dword 10 of Register, Acquire and Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationArgs {
    /// Action, one of the enumerations above.
    pub action: u8,
    /// Ignore the existing key.
    pub iekey: bool,
    /// Reservation type (acquire, release).
    pub rtype: u8,
    /// Change persist-through-power-loss (register): 0 no, 2 off, 3 on.
    pub cptpl: u8,
}

impl ReservationArgs {
    /// Reads the arguments.
    pub fn from_sqe(sqe: &Sqe) -> ReservationArgs {
        let [low, rtype, _, high] = sqe.cdw10.get().to_le_bytes();
        ReservationArgs { action: low & 7, iekey: low & 8 != 0, rtype, cptpl: high >> 6 }
    }

    /// Dword 10 with these arguments.
    pub fn cdw10(self) -> u32 {
        let low = self.action & 7 | if self.iekey { 8 } else { 0 };
        u32::from_le_bytes([low, self.rtype, 0, self.cptpl << 6])
    }
}

layout! {
    /// Data of Reservation Register.
    pub struct RegisterData: 16 {
        /// Current key.
        0: pub crkey: U64,
        /// New key.
        8: pub nrkey: U64,
    }
}

layout! {
    /// Data of Reservation Acquire.
    pub struct AcquireData: 16 {
        /// Current key.
        0: pub crkey: U64,
        /// Key to preempt.
        8: pub prkey: U64,
    }
}

layout! {
    /// Data of Reservation Release.
    pub struct ReleaseData: 8 {
        /// Current key.
        0: pub crkey: U64,
    }
}

layout! {
    /// Head of a Reservation Report.
    pub struct ReportHeader: 24 {
        /// Generation: changes with every register, preempt and clear.
        0: pub generation: U32,
        /// Type of the reservation, zero for none.
        4: pub rtype: u8,
        /// Number of registrants that follow.
        5: pub regctl: U16,
        7: _reserved1: [u8; 2],
        /// Persist through power loss.
        9: pub ptpls: u8,
        10: _reserved2: [u8; 14],
    }
}

layout! {
    /// Head of an extended Reservation Report.
    pub struct ReportHeaderExtended: 64 {
        /// The common part.
        0: pub header: ReportHeader,
        24: _reserved: [u8; 40],
    }
}

layout! {
    /// One registrant, with a 64-bit host identifier.
    pub struct Registrant: 24 {
        /// Controller, or FFFFh if dynamic.
        0: pub cntlid: U16,
        /// Bit 0: holds the reservation.
        2: pub rcsts: u8,
        3: _reserved: [u8; 5],
        /// Low half of the host identifier.
        8: pub hostid: U64,
        /// Its key.
        16: pub rkey: U64,
    }
}

layout! {
    /// One registrant, with a 128-bit host identifier.
    pub struct RegistrantExtended: 64 {
        /// Controller, or FFFFh if dynamic.
        0: pub cntlid: U16,
        /// Bit 0: holds the reservation.
        2: pub rcsts: u8,
        3: _reserved1: [u8; 5],
        /// Its key.
        8: pub rkey: U64,
        /// The host identifier.
        16: pub hostid: [u8; 16],
        32: _reserved2: [u8; 32],
    }
}

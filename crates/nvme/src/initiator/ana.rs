//! Which paths to which namespaces are good: asymmetric namespace access.

use alloc::vec::Vec;

use zerocopy::FromBytes;

use crate::wire::{AnaGroupHeader, AnaLogHeader, AnaState};

/// The ANA log of one controller.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaLog {
    /// Number of changes so far.
    pub changes: u64,
    /// Groups and their states, as the controller ordered them.
    pub groups: Vec<AnaGroup>,
}

/// State of one group on this path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// The group.
    pub id: u32,
    /// Its state.
    pub state: AnaState,
}

impl AnaLog {
    /// Reads a log with or without lists of namespaces; nothing if it is cut or makes no sense.
    pub fn parse(bytes: &[u8]) -> Option<AnaLog> {
        let (head, mut rest) = AnaLogHeader::ref_from_prefix(bytes).ok()?;
        let mut groups = Vec::new();
        for _ in 0..head.ngrps.get() {
            let (group, after) = AnaGroupHeader::ref_from_prefix(rest).ok()?;
            let names = usize::try_from(group.nnsids.get()).ok()?.checked_mul(4)?;
            rest = after.get(names..)?;
            // Bits above the state are reserved.
            let state = AnaState::from_code(group.state & 0xF)?;
            groups.push(AnaGroup { id: group.grpid.get(), state });
        }
        Some(AnaLog { changes: head.chgcnt.get(), groups })
    }

    /// State of a group; one that is not listed cannot be used.
    pub fn state(&self, group: u32) -> AnaState {
        let found = self.groups.iter().find(|known| known.id == group);
        found.map_or(AnaState::Inaccessible, |known| known.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn log() -> Vec<u8> {
        let mut bytes = vec![0; 16 + 32 + 8 + 32];
        bytes[0] = 9;
        bytes[8] = 2;
        // Group 1: two namespaces, optimized.
        bytes[16] = 1;
        bytes[20] = 2;
        bytes[32] = 1;
        // Group 7: none listed, in transition.
        bytes[56] = 7;
        bytes[72] = 0x0F;
        bytes
    }

    #[test]
    fn a_log_is_read() {
        let read = AnaLog::parse(&log()).unwrap();
        assert_eq!(read.changes, 9);
        assert_eq!(read.state(1), AnaState::Optimized);
        assert_eq!(read.state(7), AnaState::Change);
        assert_eq!(read.state(2), AnaState::Inaccessible);
    }

    #[test]
    fn a_bad_log_is_refused() {
        let bytes = log();
        for len in 0..bytes.len() {
            assert_eq!(AnaLog::parse(&bytes[..len]), None, "{len} bytes");
        }
        let mut unknown = log();
        unknown[32] = 5;
        assert_eq!(AnaLog::parse(&unknown), None);
        let mut endless = log();
        endless[20..24].fill(0xFF);
        assert_eq!(AnaLog::parse(&endless), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(log) = AnaLog::parse(&bytes) {
                prop_assert!(log.groups.len() <= bytes.len() / 32);
            }
        }
    }
}

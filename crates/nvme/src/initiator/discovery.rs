//! Reading the discovery log: what is served, and where.
//!
//! The log may change between two reads of its parts. It is read head first, then the entries, then
//! the head again; if the generation differs, all over.

use alloc::vec::Vec;
use core::net::IpAddr;

use zerocopy::FromBytes;

use super::admin::AdminRequest;
use super::info::text;
use crate::wire::{DiscoveryEntry, DiscoveryHeader, LogId, Nqn};

/// Most entries that are read.
const MAX_ENTRIES: u64 = 4096;
/// Entries asked for at once.
const BATCH: u64 = 16;
/// How often a log that keeps changing is begun anew.
const MAX_ATTEMPTS: u8 = 10;
const TCP: u8 = 3;

/// One place where one subsystem is served over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The subsystem.
    pub subsystem: Nqn,
    /// Address.
    pub address: IpAddr,
    /// Port.
    pub port: u16,
    /// Whether it is a discovery service, this one or another.
    pub is_discovery: bool,
    /// Whether the connection must be secured with TLS.
    pub needs_tls: bool,
    /// Number of the port in its subsystem.
    pub port_id: u16,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    /// Send this request and give its bytes to [`DiscoveryReader::on`].
    Ask(AdminRequest),
    /// All entries for TCP; others are left out.
    Done(Vec<Entry>),
    /// The log cannot be read.
    Failed(&'static str),
}

/// Reads the log with requests to an [`super::Admin`].
#[derive(Clone, Debug)]
pub struct DiscoveryReader {
    state: State,
    entries: Vec<Entry>,
    attempts: u8,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Head,
    Entries { generation: u64, next: u64, count: u64 },
    Check { generation: u64 },
}

impl DiscoveryReader {
    /// A reader, and the first request.
    pub fn begin() -> (DiscoveryReader, AdminRequest) {
        let reader = DiscoveryReader { state: State::Head, entries: Vec::new(), attempts: 0 };
        (reader, head())
    }

    /// The answer to the last request.
    pub fn on(&mut self, bytes: &[u8]) -> ReadStep {
        match self.state {
            State::Head => match DiscoveryHeader::ref_from_prefix(bytes) {
                Ok((head, _)) if head.recfmt.get() == 0 => self.on_head(head),
                Ok(_) => ReadStep::Failed("the discovery log has an unknown format"),
                Err(_) => ReadStep::Failed("the discovery log is cut"),
            },
            State::Entries { generation, next, count } => {
                let asked = BATCH.min(count - next);
                let found = bytes.chunks_exact(size_of::<DiscoveryEntry>());
                if u64::try_from(found.len()).unwrap_or_default() < asked {
                    return ReadStep::Failed("the discovery log is cut");
                }
                let asked_len = usize::try_from(asked).unwrap_or_default();
                self.entries.extend(found.take(asked_len).filter_map(entry));
                self.go_on(generation, next + asked, count)
            }
            State::Check { generation } => match DiscoveryHeader::ref_from_prefix(bytes) {
                Ok((head, _)) if head.genctr.get() == generation => {
                    ReadStep::Done(core::mem::take(&mut self.entries))
                }
                Ok((head, _)) => self.on_head(head),
                Err(_) => ReadStep::Failed("the discovery log is cut"),
            },
        }
    }

    fn on_head(&mut self, head: &DiscoveryHeader) -> ReadStep {
        self.entries.clear();
        self.attempts += 1;
        let count = head.numrec.get();
        if count > MAX_ENTRIES {
            return ReadStep::Failed("the discovery log has too many entries");
        }
        if self.attempts > MAX_ATTEMPTS {
            return ReadStep::Failed("the discovery log does not stop changing");
        }
        self.go_on(head.genctr.get(), 0, count)
    }

    fn go_on(&mut self, generation: u64, next: u64, count: u64) -> ReadStep {
        if next >= count {
            self.state = State::Check { generation };
            return ReadStep::Ask(head());
        }
        self.state = State::Entries { generation, next, count };
        // At most 16 entries of a kilobyte each.
        let len = u32::try_from(BATCH.min(count - next) * 1024).unwrap_or_default();
        let offset = 1024 + next * 1024;
        // Only the last read of the head acknowledges a change.
        ReadStep::Ask(AdminRequest::Log { id: LogId::Discovery, offset, len, keep_event: true })
    }
}

fn head() -> AdminRequest {
    AdminRequest::Log { id: LogId::Discovery, offset: 0, len: 1024, keep_event: false }
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let entry = DiscoveryEntry::ref_from_bytes(bytes).ok()?;
    if entry.trtype != TCP {
        return None;
    }
    Some(Entry {
        subsystem: Nqn::from_field(&entry.subnqn).ok()?,
        address: text(&entry.traddr).parse().ok()?,
        port: text(&entry.trsvcid).parse().ok()?,
        is_discovery: entry.subtype != 2,
        needs_tls: entry.treq & 3 == 1,
        port_id: entry.portid.get(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec;
    use proptest::prelude::*;

    fn log(generation: u8, names: &[&str]) -> Vec<u8> {
        let mut bytes = vec![0; 1024 * (1 + names.len())];
        bytes[0] = generation;
        bytes[8..10].copy_from_slice(&u16::try_from(names.len()).unwrap().to_le_bytes());
        for (entry, name) in bytes.chunks_mut(1024).skip(1).zip(names) {
            entry[..3].copy_from_slice(&[3, 2, 2]);
            entry[32..64].fill(b' ');
            entry[32..36].copy_from_slice(b"4420");
            entry[256..256 + name.len()].copy_from_slice(name.as_bytes());
            entry[512..768].fill(b' ');
            entry[512..519].copy_from_slice(b"fd00::1");
        }
        bytes
    }

    fn read(reader: &mut DiscoveryReader, request: AdminRequest, log: &[u8]) -> ReadStep {
        let AdminRequest::Log { offset, len, .. } = request else { panic!() };
        let at = usize::try_from(offset).unwrap();
        let end = (at + usize::try_from(len).unwrap()).min(log.len());
        reader.on(&log[at.min(end)..end])
    }

    #[test]
    fn a_log_is_read_in_parts() {
        let names: Vec<_> = (0..40).map(|n| format!("nqn.2026-01.io.holdfast:v{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let log = log(1, &names);
        let (mut reader, mut request) = DiscoveryReader::begin();
        let mut asked = 0;
        let entries = loop {
            asked += 1;
            match read(&mut reader, request, &log) {
                ReadStep::Ask(next) => request = next,
                ReadStep::Done(entries) => break entries,
                ReadStep::Failed(why) => panic!("{why}"),
            }
        };
        // Head, three parts, head again.
        assert_eq!(asked, 5);
        assert_eq!(entries.len(), 40);
        assert_eq!(entries[39].subsystem.as_str(), names[39]);
        assert_eq!(entries[0].address, "fd00::1".parse::<IpAddr>().unwrap());
        assert_eq!((entries[0].port, entries[0].is_discovery), (4420, false));
    }

    #[test]
    fn a_log_that_changes_is_read_again() {
        let one = log(1, &["nqn.2026-01.io.holdfast:a"]);
        let two = log(2, &["nqn.2026-01.io.holdfast:b", "nqn.2026-01.io.holdfast:c"]);
        let (mut reader, request) = DiscoveryReader::begin();
        let ReadStep::Ask(entries) = read(&mut reader, request, &one) else { panic!() };
        let ReadStep::Ask(check) = read(&mut reader, entries, &one) else { panic!() };
        let ReadStep::Ask(entries) = read(&mut reader, check, &two) else { panic!() };
        let ReadStep::Ask(check) = read(&mut reader, entries, &two) else { panic!() };
        let ReadStep::Done(found) = read(&mut reader, check, &two) else { panic!() };
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_log_that_never_rests_is_given_up() {
        let (mut reader, mut request) = DiscoveryReader::begin();
        for generation in 0..=MAX_ATTEMPTS + 1 {
            match read(&mut reader, request, &log(generation, &[])) {
                ReadStep::Ask(next) => request = next,
                step => return assert!(matches!(step, ReadStep::Failed(_))),
            }
        }
        panic!("read for ever");
    }

    #[test]
    fn other_transports_and_bad_entries_are_left_out() {
        let good = log(1, &["nqn.2026-01.io.holdfast:a"]);
        let entry_of = |change: fn(&mut [u8])| {
            let mut bytes = good[1024..].to_vec();
            change(&mut bytes);
            entry(&bytes)
        };
        assert!(entry_of(|_| ()).is_some());
        assert!(entry_of(|bytes| bytes[0] = 1).is_none());
        assert!(entry_of(|bytes| bytes[512] = b'x').is_none());
        assert!(entry_of(|bytes| bytes[36] = b'x').is_none());
        assert!(entry_of(|bytes| bytes[256] = 0xFF).is_none());
    }

    proptest! {
        #[test]
        fn any_answers_are_survived(
            answers in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..64), 0usize..3000), 0..20
            )
        ) {
            let (mut reader, _) = DiscoveryReader::begin();
            for (mut bytes, len) in answers {
                bytes.resize(len, 0);
                if !matches!(reader.on(&bytes), ReadStep::Ask(_)) {
                    break;
                }
            }
        }
    }
}

//! Keeps reservations through restarts, in a small file beside each namespace.
//!
//! The file is replaced as a whole: written under another name, synced, renamed, and the directory
//! synced, so that after any crash it holds the old state or the new one. It is text, one fact a
//! line, and ends with a sum of everything before it; a file that does not match its sum is
//! refused, since forgetting a reservation could let a fenced writer in.
//!
//! A thread of its own does the writing: reactors never wait for a disk.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use nvme::target::{Holder, Registration, Reservation, Reservations};
use nvme::wire::ReservationType;

/// What is to be kept.
pub(super) struct StoreRequest {
    pub(super) path: PathBuf,
    pub(super) reservations: Reservations,
    /// Called with whether it is durable.
    pub(super) done: Box<dyn FnOnce(bool) + Send>,
}

/// Orders to the keeper's thread.
#[derive(Clone, Debug)]
pub(super) struct ReservationStore {
    orders: SyncSender<StoreRequest>,
}

impl ReservationStore {
    /// Starts the thread; it ends when the last clone of this is dropped.
    pub(super) fn start() -> io::Result<ReservationStore> {
        const ORDERS: usize = 256;
        let (orders, inbox) = sync_channel(ORDERS);
        std::thread::Builder::new().name("keeper".into()).spawn(move || work(&inbox))?;
        Ok(ReservationStore { orders })
    }

    /// Hands the order back if too many are waiting.
    pub(super) fn keep(&self, order: StoreRequest) -> Result<(), StoreRequest> {
        self.orders.try_send(order).map_err(|back| match back {
            TrySendError::Full(order) | TrySendError::Disconnected(order) => order,
        })
    }
}

fn work(inbox: &Receiver<StoreRequest>) {
    for StoreRequest { path, reservations, done } in inbox {
        let kept = write(&path, &reservations);
        if let Err(error) = &kept {
            let path = path.display();
            tracing::error!(%path, %error, "cannot keep reservations; hosts are told so");
        }
        done(kept.is_ok());
    }
}

/// Where the reservations of a namespace in a file or block device are kept.
pub(super) fn place_of(device: &Path) -> PathBuf {
    let mut name = device.as_os_str().to_owned();
    name.push(".reservations");
    PathBuf::from(name)
}

/// Why kept reservations could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system refused.
    #[error("cannot read {path}")]
    Read {
        /// Which file.
        path: String,
        /// What it said.
        source: io::Error,
    },
    /// It is not what was written.
    #[error("{path} is damaged; if no host relies on its reservations, remove it and start again")]
    Damaged {
        /// Which file.
        path: String,
    },
}

/// Reads what was kept; nothing if there is no file.
pub(super) fn read(path: &Path) -> Result<Reservations, ReadError> {
    let name = || path.display().to_string();
    match std::fs::read_to_string(path) {
        Ok(text) => parse(&text).ok_or_else(|| ReadError::Damaged { path: name() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Reservations::default()),
        Err(source) => Err(ReadError::Read { path: name(), source }),
    }
}

/// What [`encode`] made; nothing of nothing.
pub(super) fn decode(bytes: &[u8]) -> Option<Reservations> {
    if bytes.is_empty() {
        return Some(Reservations::default());
    }
    parse(std::str::from_utf8(bytes).ok()?)
}

/// The lowest epoch that may still hold a replica, from what is kept with it.
pub(crate) fn least_epoch(bytes: &[u8]) -> Option<u64> {
    decode(bytes)?.least_key
}

/// Reservations as they are kept with a replica; nothing if they shall not persist. The highest
/// epoch that held it always does.
pub(super) fn encode(reservations: &Reservations) -> Vec<u8> {
    match reservations {
        kept @ Reservations { persist: true, .. } => text_of(kept).into_bytes(),
        Reservations { least_key: least_key @ Some(_), generation, .. } => {
            let (generation, least_key) = (*generation, *least_key);
            let epoch = Reservations { generation, least_key, ..Reservations::default() };
            text_of(&epoch).into_bytes()
        }
        _ => Vec::new(),
    }
}

/// The highest epoch that held a replica, of what is kept with it: 0 if none did, nothing if it
/// cannot be read.
pub(crate) fn fence_of(kept: &[u8]) -> Option<u64> {
    Some(decode(kept)?.least_key.unwrap_or(0))
}

/// What is kept with a replica that this epoch held last.
pub(crate) fn kept_fence(epoch: u64) -> Vec<u8> {
    encode(&Reservations { least_key: Some(epoch), ..Reservations::default() })
}

fn write(path: &Path, reservations: &Reservations) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if reservations.persist {
        let mut new = path.as_os_str().to_owned();
        new.push(".new");
        let mut file = std::fs::File::create(&new)?;
        file.write_all(text_of(reservations).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
    } else {
        // Not meant to survive, so nothing older may either.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

const TITLE: &str = "holdfast reservations 1";

fn text_of(reservations: &Reservations) -> String {
    let mut text = format!("{TITLE}\ngeneration {}\n", reservations.generation);
    for Registration { host, key } in &reservations.registrants {
        // Writing into a string does not fail.
        let _ = writeln!(text, "registrant {:032x} {key:016x}", u128::from_be_bytes(*host));
    }
    if let Some(Reservation { kind, holder }) = &reservations.reservation {
        let holder = match holder {
            Holder::One(host) => format!("{:032x}", u128::from_be_bytes(*host)),
            Holder::All => "all".to_owned(),
        };
        let _ = writeln!(text, "held {} {holder}", kind.code());
    }
    if let Some(key) = reservations.least_key {
        let _ = writeln!(text, "least {key:016x}");
    }
    let sum = nvme::pdu::digest(0, text.as_bytes());
    let _ = writeln!(text, "sum {sum:08x}");
    text
}

fn parse(text: &str) -> Option<Reservations> {
    let (body, sum) = text.split_at_checked(text.rfind("sum ")?)?;
    let sum = u32::from_str_radix(sum.strip_prefix("sum ")?.trim_end(), 16).ok()?;
    if sum != nvme::pdu::digest(0, body.as_bytes()) {
        return None;
    }
    let host = |text: &str| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes);
    let mut lines = body.lines();
    if lines.next()? != TITLE {
        return None;
    }
    let generation = lines.next()?.strip_prefix("generation ")?.parse().ok()?;
    let mut found = Reservations { generation, persist: true, ..Reservations::default() };
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["registrant", who, key] => {
                let key = u64::from_str_radix(key, 16).ok()?;
                found.registrants.push(Registration { host: host(who)?, key });
            }
            ["least", key] => found.least_key = Some(u64::from_str_radix(key, 16).ok()?),
            ["held", kind, who] => {
                let kind = ReservationType::from_code(kind.parse().ok()?)?;
                let holder = if *who == "all" { Holder::All } else { Holder::One(host(who)?) };
                found.reservation = Some(Reservation { kind, holder });
            }
            _ => return None,
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Reservations {
        Reservations {
            generation: 7,
            persist: true,
            registrants: vec![
                Registration { host: [1; 16], key: 0xAB },
                Registration { host: [2; 16], key: u64::MAX },
            ],
            reservation: Some(Reservation {
                kind: ReservationType::WriteExclusive,
                holder: Holder::One([2; 16]),
            }),
            least_key: Some(0xAB),
        }
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = place_of(&dir.path().join("disk"));
        assert_eq!(read(&path).unwrap(), Reservations::default());
        write(&path, &some()).unwrap();
        assert_eq!(read(&path).unwrap(), some());
        let all = Reservations {
            reservation: Some(Reservation {
                kind: ReservationType::ExclusiveAccessAll,
                holder: Holder::All,
            }),
            least_key: None,
            ..some()
        };
        write(&path, &all).unwrap();
        assert_eq!(read(&path).unwrap(), all);
    }

    #[test]
    fn what_shall_not_persist_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reservations");
        write(&path, &some()).unwrap();
        write(&path, &Reservations { persist: false, ..some() }).unwrap();
        assert_eq!(read(&path).unwrap(), Reservations::default());
    }

    #[test]
    fn the_highest_epoch_is_kept_also_if_nothing_else_is() {
        let guarded = Reservations { persist: false, ..some() };
        let found = decode(&encode(&guarded)).unwrap();
        assert_eq!(
            (found.least_key, found.registrants, found.reservation),
            (some().least_key, vec![], None)
        );
        let ordinary = Reservations { persist: false, least_key: None, ..some() };
        assert_eq!(decode(&encode(&ordinary)), Some(Reservations::default()));
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let text = text_of(&some());
        assert_eq!(parse(&text), Some(some()));
        for place in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[place] ^= 1;
            if let Ok(other) = String::from_utf8(bytes)
                && other.trim_end() != text.trim_end()
            {
                assert_ne!(parse(&other), Some(some()), "byte {place}");
            }
        }
        assert_eq!(parse(""), None);
    }

    #[test]
    fn the_keeper_says_whether_it_kept() {
        let dir = tempfile::tempdir().unwrap();
        let reservation_store = ReservationStore::start().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        for (path, expected) in [(dir.path().join("r"), true), (dir.path().join("none/r"), false)] {
            let tell = tell.clone();
            let done = Box::new(move |kept| tell.send(kept).unwrap());
            assert!(
                reservation_store.keep(StoreRequest { path, reservations: some(), done }).is_ok()
            );
            assert_eq!(told.recv().unwrap(), expected);
        }
    }
}

//! Get Log Page.

use alloc::vec::Vec;

use zerocopy::{FromZeros, IntoBytes};

use super::super::subsystem::{MAX_GROUPS, MAX_NSID, Subsystem};
use super::{Answer, MAX_TRANSFER, Peer, Request};
use crate::wire::{
    AdminOpcode, AnaGroupHeader, AnaLogHeader, AsyncEvent, CommandEffects, DiscoveryHeader,
    ErrorEntry, FirmwareSlots, IoOpcode, LogId, ReservationNotice, Smart, Sqe, Status, U16, U32,
    U64, U128, effect, padded_ascii,
};

/// Arguments of the command.
#[derive(Clone, Copy, Debug)]
struct Args {
    id: LogId,
    /// Log specific.
    lsp: u8,
    /// Retain the event: reading does not acknowledge it.
    retain: bool,
    length: u32,
    offset: u64,
}

impl Args {
    fn from_sqe(sqe: &Sqe) -> Result<Args, Status> {
        let [lid, specific, l0, l1] = sqe.cdw10.get().to_le_bytes();
        let [l2, l3, _, _] = sqe.cdw11.get().to_le_bytes();
        let dwords = u64::from(u32::from_le_bytes([l0, l1, l2, l3])) + 1;
        let length = u32::try_from(dwords * 4).ok().filter(|length| *length <= MAX_TRANSFER);
        let offset = u64::from(sqe.cdw13.get()) << 32 | u64::from(sqe.cdw12.get());
        // Offsets are in bytes and dword-aligned; an index offset (OT) is not supported.
        let is_index = sqe.cdw14.get() & (1 << 23) != 0;
        if !offset.is_multiple_of(4) || is_index {
            return Err(Status::INVALID_FIELD);
        }
        Ok(Args {
            id: LogId::from_code(lid).ok_or(Status::INVALID_LOG_PAGE)?,
            lsp: specific & 0x7F,
            retain: specific & 0x80 != 0,
            length: length.ok_or(Status::INVALID_FIELD)?,
            offset,
        })
    }
}

pub(super) fn execute(
    subsystem: &mut Subsystem,
    peer: &Peer,
    request: Request<'_>,
) -> Result<Answer, Status> {
    let args = Args::from_sqe(request.sqe)?;
    let is_discovery = subsystem.discovery.is_some();
    let is_known = match args.id {
        LogId::Supported => true,
        LogId::Discovery => is_discovery,
        _ => !is_discovery,
    };
    if !is_known {
        return Err(Status::INVALID_LOG_PAGE);
    }
    if request.room() < args.length {
        return Err(Status::DATA_SGL_LENGTH_INVALID);
    }
    let clears = !args.retain;
    let page = match args.id {
        LogId::Supported => supported(is_discovery),
        LogId::Error => ErrorEntry::new_zeroed().as_bytes().to_vec(),
        LogId::Smart => smart(subsystem, request.sqe.nsid.get())?,
        LogId::FirmwareSlots => firmware(subsystem),
        LogId::ChangedNamespaces => changed_namespaces(subsystem, peer, clears)?,
        LogId::CommandEffects => effects(),
        LogId::Ana => ana(subsystem, args.lsp & 1 != 0),
        LogId::Discovery => discovery(subsystem, peer)?,
        LogId::ReservationNotices => reservation_notice(subsystem, peer, clears)?,
    };
    let event = match args.id {
        LogId::ChangedNamespaces => Some(AsyncEvent::NamespaceChanged),
        LogId::Ana => Some(AsyncEvent::AnaChanged),
        LogId::Discovery => Some(AsyncEvent::DiscoveryChanged),
        LogId::ReservationNotices => Some(AsyncEvent::ReservationNotice),
        _ => None,
    };
    if let (Some(event), true) = (event, clears)
        && let Some(controller) = subsystem.controller(peer.cntlid)
    {
        controller.events.acknowledge(event);
    }
    part(&page, args)
}

/// The part of a page that was asked for, with zeros after its end.
fn part(page: &[u8], args: Args) -> Result<Answer, Status> {
    let offset = usize::try_from(args.offset).map_err(|_| Status::INVALID_FIELD)?;
    let rest = page.get(offset..).ok_or(Status::INVALID_FIELD)?;
    let length = usize::try_from(args.length).map_err(|_| Status::INVALID_FIELD)?;
    let mut data = rest.get(..length.min(rest.len())).unwrap_or_default().to_vec();
    data.resize(length, 0);
    Ok(Answer::data(data))
}

fn supported(is_discovery: bool) -> Vec<u8> {
    let mut page = alloc::vec![0; 1024];
    for id in LogId::ALL {
        let known = *id == LogId::Supported || (*id == LogId::Discovery) == is_discovery;
        if let Some(bits) = page.get_mut(usize::from(id.code()) * 4).filter(|_| known) {
            *bits = 1;
        }
    }
    page
}

/// A data unit of the health log.
const DATA_UNIT: u128 = 512 * 1000;

fn smart(subsystem: &Subsystem, nsid: u32) -> Result<Vec<u8>, Status> {
    // Per-namespace health is not supported: only the whole controller can be asked for.
    if nsid != 0 && nsid != Sqe::ALL_NAMESPACES {
        return Err(Status::INVALID_FIELD);
    }
    let sum = |of: fn(&super::super::subsystem::Traffic) -> u64| {
        let all = subsystem.namespaces.values();
        all.map(|one| u128::from(of(&one.traffic()))).sum::<u128>()
    };
    let mut page = Smart::new_zeroed();
    page.temperature = U16::new(300);
    page.available_spare = 100;
    page.spare_threshold = 10;
    page.data_units_read = U128::new(sum(|one| one.read_bytes).div_ceil(DATA_UNIT));
    page.data_units_written = U128::new(sum(|one| one.written_bytes).div_ceil(DATA_UNIT));
    page.host_reads = U128::new(sum(|one| one.reads));
    page.host_writes = U128::new(sum(|one| one.writes));
    Ok(page.as_bytes().to_vec())
}

fn firmware(subsystem: &Subsystem) -> Vec<u8> {
    let mut page = FirmwareSlots::new_zeroed();
    page.afi = 1;
    if let Some(first) = page.revision.first_mut() {
        *first = padded_ascii(&subsystem.config.firmware);
    }
    page.as_bytes().to_vec()
}

fn changed_namespaces(
    subsystem: &mut Subsystem,
    peer: &Peer,
    clears: bool,
) -> Result<Vec<u8>, Status> {
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let changed = controller.events.changed(clears);
    let mut page: Vec<u8> = match changed {
        Some(list) => list.into_iter().flat_map(u32::to_le_bytes).collect(),
        // More than fit: one entry that says so.
        None => u32::MAX.to_le_bytes().to_vec(),
    };
    page.resize(4096, 0);
    Ok(page)
}

fn effects() -> Vec<u8> {
    let mut page = CommandEffects::new_zeroed();
    for opcode in AdminOpcode::ALL {
        if let Some(entry) = page.admin.get_mut(usize::from(opcode.code())) {
            *entry = U32::new(effect::SUPPORTED);
        }
    }
    for opcode in IoOpcode::ALL {
        let writes =
            matches!(opcode, IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement);
        if let Some(entry) = page.io.get_mut(usize::from(opcode.code())) {
            *entry = U32::new(effect::SUPPORTED | if writes { effect::CONTENT } else { 0 });
        }
    }
    page.as_bytes().to_vec()
}

/// The groups that have namespaces, or were ever given a state.
fn ana(subsystem: &Subsystem, groups_only: bool) -> Vec<u8> {
    let mut in_groups: alloc::collections::BTreeMap<u32, Vec<u32>> =
        alloc::collections::BTreeMap::new();
    for (nsid, namespace) in &subsystem.namespaces {
        in_groups.entry(namespace.config().ana_group).or_default().push(*nsid);
    }
    let mut header = AnaLogHeader::new_zeroed();
    header.chgcnt = U64::new(subsystem.ana.changes());
    header.ngrps = U16::new(u16::try_from(in_groups.len()).unwrap_or(u16::MAX));
    let mut page = header.as_bytes().to_vec();
    for (id, members) in in_groups {
        let members = if groups_only { Vec::new() } else { members };
        let group = subsystem.ana.group(id);
        let mut header = AnaGroupHeader::new_zeroed();
        header.grpid = U32::new(id);
        header.nnsids = U32::new(u32::try_from(members.len()).unwrap_or(u32::MAX));
        header.chgcnt = U64::new(group.changed_at);
        header.state = group.state.code();
        page.extend_from_slice(header.as_bytes());
        page.extend(members.into_iter().flat_map(u32::to_le_bytes));
    }
    // Hosts read the longest page that Identify allows, in pieces: none of them is past its end.
    let longest = 16 + 32 * MAX_GROUPS + 4 * MAX_NSID;
    page.resize(usize::try_from(longest).unwrap_or(page.len()), 0);
    page
}

fn discovery(subsystem: &Subsystem, peer: &Peer) -> Result<Vec<u8>, Status> {
    let log = subsystem.discovery.as_ref().ok_or(Status::INVALID_LOG_PAGE)?;
    let controller = subsystem.controllers.get(&peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let seen = || {
        let allowed = log.records.iter().filter(|one| one.hosts.allows(&controller.host));
        allowed.filter_map(|one| Some((one, one.reached(controller.local)?)))
    };
    let mut header = DiscoveryHeader::new_zeroed();
    header.genctr = U64::new(log.generation);
    header.numrec = U64::new(u64::try_from(seen().count()).unwrap_or(u64::MAX));
    let mut page = header.as_bytes().to_vec();
    for (record, address) in seen() {
        let entry = record.entry(address, subsystem.config.limits.queue_depth);
        page.extend_from_slice(entry.as_bytes());
    }
    Ok(page)
}

fn reservation_notice(
    subsystem: &mut Subsystem,
    peer: &Peer,
    clears: bool,
) -> Result<Vec<u8>, Status> {
    let controller = subsystem.controller(peer.cntlid).ok_or(Status::INTERNAL_ERROR)?;
    let (count, first, behind) = controller.events.notice(clears);
    let mut page = ReservationNotice::new_zeroed();
    if let Some((nsid, notice)) = first {
        page.count = U64::new(count);
        page.kind = notice.code();
        page.available = u8::try_from(behind).unwrap_or(u8::MAX);
        page.nsid = U32::new(nsid);
    }
    Ok(page.as_bytes().to_vec())
}

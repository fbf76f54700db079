//! What controllers and namespaces say about themselves.

use alloc::string::String;
use alloc::vec::Vec;

use block::{BlockSize, Blocks, Geometry};
use zerocopy::FromBytes;

use super::command::Limits;
use super::connect::ConnectRefused;
use crate::wire::{
    Cap, IdController, IdNamespace, Nqn, NsDescriptor, NsDescriptorType, NsList, oncs,
};

/// A controller, as far as a host needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its number.
    pub cntlid: u16,
    /// Whether it only serves discovery.
    pub is_discovery: bool,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Version of the specification it follows.
    pub version: u32,
    /// Most bytes that one command may move.
    pub max_transfer: u32,
    /// Most entries of an I/O queue.
    pub queue_entries: u16,
    /// Bytes of data in the capsule of an I/O command.
    pub capsule_data: u32,
    /// Optional commands (see [`oncs`]).
    pub commands: u16,
    /// Optional events (see `EventConfig`).
    pub events: u32,
    /// Whether there is a cache that a flush empties.
    pub has_cache: bool,
    /// Bytes that its ANA log can have; none if it does not report ANA.
    pub ana_log: Option<u32>,
    /// How long a change of ANA state may last, in seconds.
    pub ana_transition: u8,
    /// I/O queues that it granted.
    pub io_queues: u16,
}

/// Largest ANA log that is read: as many groups and namespaces as fit are enough.
const MAX_ANA_LOG: u32 = 64 * 1024;
/// Without a limit of the controller, one command moves at most this.
const UNLIMITED_TRANSFER: u32 = 1 << 20;

impl ControllerInfo {
    /// From Identify Controller and the capabilities; refuses what we cannot work with.
    pub fn parse(
        bytes: &[u8],
        cap: Cap,
        subsystem: &Nqn,
    ) -> Result<ControllerInfo, ConnectRefused> {
        let id = IdController::ref_from_bytes(bytes)
            .map_err(|_| ConnectRefused::Unusable("Identify Controller is too short"))?;
        let is_discovery = subsystem.is_discovery() || id.cntrltype == 2;
        if !is_discovery {
            check(id, subsystem)?;
        }
        // A power of two of 4 KiB pages; larger ones do not matter to us.
        let max_transfer = match id.mdts {
            0 => UNLIMITED_TRANSFER,
            mdts => 4096u32.saturating_mul(1u32.checked_shl(mdts.into()).unwrap_or(u32::MAX)),
        };
        let maxcmd = match id.maxcmd.get() {
            0 => u32::MAX,
            // Commands at once: a queue holds one less than its entries.
            commands => u32::from(commands) + 1,
        };
        let entries = cap.queue_entries().min(maxcmd);
        let log = id.nanagrpid.get().saturating_mul(32).saturating_add(16);
        Ok(ControllerInfo {
            cntlid: id.cntlid.get(),
            is_discovery,
            serial: text(&id.sn),
            model: text(&id.mn),
            firmware: text(&id.fr),
            version: id.ver.get(),
            max_transfer,
            queue_entries: u16::try_from(entries).unwrap_or(u16::MAX),
            capsule_data: id.ioccsz.get().saturating_mul(16).saturating_sub(64),
            commands: id.oncs.get(),
            events: id.oaes.get(),
            has_cache: id.vwc & 1 != 0,
            ana_log: (id.cmic & 1 << 3 != 0).then_some(log.min(MAX_ANA_LOG)),
            ana_transition: id.anatt,
            io_queues: 0,
        })
    }

    /// Whether it takes an optional command.
    pub fn can(&self, command: u16) -> bool {
        self.commands & command != 0
    }
}

fn check(id: &IdController, subsystem: &Nqn) -> Result<(), ConnectRefused> {
    if Nqn::from_field(&id.subnqn).as_ref() != Ok(subsystem) {
        return Err(ConnectRefused::Unusable("it belongs to another subsystem"));
    }
    let descriptors = id.sgls.get() & 3;
    if descriptors == 0 {
        return Err(ConnectRefused::Unusable("it takes no data descriptors (SGLS)"));
    }
    if id.ioccsz.get() < 4 || id.iorcsz.get() < 1 || id.icdoff.get() != 0 {
        return Err(ConnectRefused::Unusable("its capsules have impossible sizes"));
    }
    Ok(())
}

/// A namespace, as far as a host needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub nsid: u32,
    /// Its size.
    pub geometry: Geometry,
    /// How large one command may be.
    pub limits: Limits,
    /// By which it is known everywhere.
    pub ids: NamespaceIds,
    /// The ANA group it is in; zero without ANA.
    pub ana_group: u32,
    /// Whether it takes no changes.
    pub read_only: bool,
    /// Whether several controllers have it.
    pub shared: bool,
    /// Kinds of reservation it takes, as RESCAP says it.
    pub reservations: u8,
    /// What the controller calls optional (see [`oncs`]).
    pub commands: u16,
}

/// Names of a namespace that are the same on every path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// Globally unique identifier.
    pub nguid: Option<[u8; 16]>,
    /// IEEE extended unique identifier.
    pub eui64: Option<[u8; 8]>,
}

impl NamespaceIds {
    /// Reads a list of descriptors as far as it makes sense; later ones of a kind are ignored.
    pub fn parse(bytes: &[u8]) -> NamespaceIds {
        let mut ids = NamespaceIds::default();
        let mut rest = bytes;
        while let Ok((head, after)) = NsDescriptor::ref_from_prefix(rest) {
            let Some((value, after)) = after.split_at_checked(head.nidl.into()) else { break };
            if head.nidl == 0 {
                break;
            }
            match NsDescriptorType::from_code(head.nidt) {
                Some(NsDescriptorType::Uuid) if ids.uuid.is_none() => {
                    ids.uuid = value.try_into().ok();
                }
                Some(NsDescriptorType::Nguid) if ids.nguid.is_none() => {
                    ids.nguid = value.try_into().ok();
                }
                Some(NsDescriptorType::Eui64) if ids.eui64.is_none() => {
                    ids.eui64 = value.try_into().ok();
                }
                _ => {}
            }
            rest = after;
        }
        ids
    }
}

impl Namespace {
    /// From Identify Namespace; nothing if it is not there, or has metadata or odd blocks.
    pub fn parse(
        nsid: u32,
        bytes: &[u8],
        ids: NamespaceIds,
        controller: &ControllerInfo,
    ) -> Option<Namespace> {
        let id = IdNamespace::ref_from_bytes(bytes).ok()?;
        // Bits 3:0, and 6:5 above them when there are more than sixteen formats.
        let format = usize::from(id.flbas & 0xF | (id.flbas & 0x60) >> 1);
        let format = id.lbaf.get(format)?;
        if format.ms.get() != 0 {
            return None;
        }
        let block_size = BlockSize::new(1u32.checked_shl(format.lbads.into())?).ok()?;
        let geometry = Geometry::new(block_size, Blocks(id.nsze.get())).ok()?;
        let protocol = Limits::of_protocol(block_size);
        let transfer = Blocks(u64::from(controller.max_transfer / block_size.bytes()).max(1));
        Some(Namespace {
            nsid,
            geometry,
            limits: Limits { transfer: transfer.min(protocol.transfer), ..protocol },
            ids,
            ana_group: id.anagrpid.get(),
            read_only: id.nsattr & 1 != 0,
            shared: id.nmic & 1 != 0,
            reservations: id.rescap,
            commands: controller.commands,
        })
    }

    /// Whether the controller takes this command at all.
    pub fn can(&self, kind: block::CommandKind) -> bool {
        let optional = match kind {
            block::CommandKind::Compare => oncs::COMPARE,
            block::CommandKind::Discard => oncs::DSM,
            block::CommandKind::WriteZeroes => oncs::WRITE_ZEROES,
            block::CommandKind::Read | block::CommandKind::Write | block::CommandKind::Flush => {
                return true;
            }
        };
        self.commands & optional != 0
    }
}

/// The namespaces of a list, in its order, without the zeros that end it.
pub(super) fn active(bytes: &[u8]) -> Vec<u32> {
    let list = NsList::ref_from_bytes(bytes).map(|list| &list.nsid[..]).unwrap_or_default();
    list.iter().map(|nsid| nsid.get()).take_while(|nsid| *nsid != 0).collect()
}

/// Text padded with spaces or zeros; anything odd in it becomes a question mark.
pub(super) fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let shown = |byte: &u8| if (0x20..0x7F).contains(byte) { char::from(*byte) } else { '?' };
    let all: String = field.iter().take(end).map(shown).collect();
    String::from(all.trim())
}

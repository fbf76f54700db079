//! Identify.

use alloc::vec::Vec;

use zerocopy::{FromZeros, IntoBytes};

use super::super::subsystem::{KEEP_ALIVE_UNIT, MAX_GROUPS, MAX_NSID, Namespace, Subsystem};
use super::{ABORTS, Answer, EVENT_REQUESTS, MDTS, Peer, Request};
use crate::pdu::ADMIN_CAPSULE_DATA;
use crate::wire::{
    Cns, CommandSets, EventConfig, IdController, IdControllerNvm, IdNamespaceNvm, NsDescriptor,
    NsDescriptorType, NsList, Sqe, Status, U16, U32, U64, VERSION_2_0, oncs, padded_ascii,
};

/// Largest answer.
const LENGTH: usize = 4096;
/// The NVM command set.
const CSI_NVM: u8 = 0;

pub(super) fn execute(
    subsystem: &mut Subsystem,
    peer: &Peer,
    request: Request<'_>,
) -> Result<Answer, Status> {
    let sqe = request.sqe;
    let [cns, _, from0, from1] = sqe.cdw10.get().to_le_bytes();
    let cns = Cns::from_code(cns).ok_or(Status::INVALID_FIELD)?;
    let csi = sqe.cdw11.get().to_le_bytes()[3];
    let is_discovery = subsystem.discovery.is_some();
    if is_discovery && cns != Cns::Controller {
        return Err(Status::INVALID_FIELD);
    }
    let by_set = matches!(
        cns,
        Cns::CommandSetNamespace | Cns::CommandSetController | Cns::CommandSetActiveNamespaces
    );
    if by_set && csi != CSI_NVM {
        return Err(Status::INVALID_FIELD);
    }
    let nsid = sqe.nsid.get();
    let from = u16::from_le_bytes([from0, from1]);
    let data = match cns {
        Cns::Controller => controller(subsystem, peer).as_bytes().to_vec(),
        Cns::Namespace | Cns::AllocatedNamespace => {
            or_zeros(namespace(subsystem, nsid)?.map(|one| one.identify().as_bytes().to_vec()))
        }
        Cns::IndependentNamespace => or_zeros(
            namespace(subsystem, nsid)?.map(|one| one.identify_independent().as_bytes().to_vec()),
        ),
        Cns::CommandSetNamespace => {
            namespace(subsystem, nsid)?;
            IdNamespaceNvm::new_zeroed().as_bytes().to_vec()
        }
        Cns::ActiveNamespaces | Cns::CommandSetActiveNamespaces | Cns::AllocatedNamespaces => {
            active(subsystem, nsid)?.as_bytes().to_vec()
        }
        Cns::NamespaceDescriptors => descriptors(subsystem, nsid)?,
        Cns::CommandSetController => nvm_controller().as_bytes().to_vec(),
        Cns::Controllers => controllers(subsystem, from),
        Cns::NamespaceControllers => {
            namespace(subsystem, nsid)?.ok_or(Status::INVALID_FIELD)?;
            controllers(subsystem, from)
        }
        Cns::CommandSets => command_sets().as_bytes().to_vec(),
    };
    Ok(Answer::data(data))
}

fn controller(subsystem: &Subsystem, peer: &Peer) -> IdController {
    let config = &subsystem.config;
    let mut id = IdController::new_zeroed();
    id.sn = padded_ascii(&config.serial);
    id.mn = padded_ascii(&config.model);
    id.fr = padded_ascii(&config.firmware);
    id.mdts = MDTS;
    id.cntlid = U16::new(peer.cntlid);
    id.ver = U32::new(VERSION_2_0);
    id.ctratt = U32::new(CTRATT_HOSTID_128 | CTRATT_TRAFFIC_KEEP_ALIVE);
    id.acl = ABORTS - 1;
    id.aerl = u8::try_from(EVENT_REQUESTS - 1).unwrap_or(0);
    id.frmw = FRMW_ONE_READ_ONLY_SLOT;
    id.lpa = LPA_EFFECTS | LPA_OFFSETS;
    id.kas = U16::new(u16::try_from(KEEP_ALIVE_UNIT.as_millis() / 100).unwrap_or(1));
    id.sqes = 0x66;
    id.cqes = 0x44;
    id.maxcmd = U16::new(config.limits.queue_depth);
    id.sgls = U32::new(SGLS_SUPPORTED | SGLS_OFFSETS);
    // The name that was asked for, so that a host finds what it connected to.
    id.subnqn = config.nqn.to_field();
    id.ioccsz = U32::new((64 + ADMIN_CAPSULE_DATA) / 16);
    id.iorcsz = U32::new(1);
    id.msdbd = 1;
    id.ofcs = U16::new(OFCS_DISCONNECT);
    if subsystem.discovery.is_some() {
        id.cntrltype = 2;
        id.oaes = U32::new(EventConfig::DISCOVERY);
        return id;
    }
    id.cntrltype = 1;
    id.cmic = CMIC_PORTS | CMIC_CONTROLLERS | CMIC_ANA;
    id.oaes = U32::new(EventConfig::NAMESPACE | EventConfig::ANA);
    id.anatt = ANA_TRANSITION_SECONDS;
    id.anacap = ANACAP_ALL_STATES | ANACAP_FIXED_GROUPS;
    id.anagrpmax = U32::new(MAX_GROUPS);
    id.nanagrpid = U32::new(MAX_GROUPS);
    id.nn = U32::new(MAX_NSID);
    id.mnan = U32::new(MAX_NSID);
    id.oncs = U16::new(
        oncs::COMPARE
            | oncs::DSM
            | oncs::WRITE_ZEROES
            | oncs::RESERVATIONS
            | oncs::TIMESTAMP
            | oncs::VERIFY,
    );
    id.fuses = U16::new(1);
    let cache = if subsystem.has_write_cache() { VWC_PRESENT } else { 0 };
    id.vwc = cache | VWC_NO_BROADCAST;
    id
}

/// 128-bit host identifiers.
const CTRATT_HOSTID_128: u32 = 1;
/// Any command counts as a sign of life.
const CTRATT_TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
const FRMW_ONE_READ_ONLY_SLOT: u8 = 0b011;
const LPA_EFFECTS: u8 = 1 << 1;
const LPA_OFFSETS: u8 = 1 << 2;
const SGLS_SUPPORTED: u32 = 1;
const SGLS_OFFSETS: u32 = 1 << 20;
const OFCS_DISCONNECT: u16 = 1;
const CMIC_PORTS: u8 = 1;
const CMIC_CONTROLLERS: u8 = 1 << 1;
const CMIC_ANA: u8 = 1 << 3;
const ANA_TRANSITION_SECONDS: u8 = 10;
const ANACAP_ALL_STATES: u8 = 0x1F;
const ANACAP_FIXED_GROUPS: u8 = 1 << 6;
const VWC_PRESENT: u8 = 1;
/// A flush names its namespace.
const VWC_NO_BROADCAST: u8 = 2 << 1;

fn nvm_controller() -> IdControllerNvm {
    let mut id = IdControllerNvm::new_zeroed();
    // A verify reads into a buffer like any read.
    id.vsl = MDTS;
    // 32 MiB: 65536 blocks of 512 bytes, the most that a command can name.
    id.wzsl = 13;
    id
}

fn command_sets() -> CommandSets {
    let mut sets = CommandSets::new_zeroed();
    if let Some(first) = sets.combinations.first_mut() {
        *first = U64::new(1 << CSI_NVM);
    }
    sets
}

/// A namespace that exists, nothing for one that could, an error for others.
fn namespace(subsystem: &Subsystem, nsid: u32) -> Result<Option<&Namespace>, Status> {
    if nsid == 0 || nsid > MAX_NSID {
        return Err(Status::INVALID_NAMESPACE);
    }
    Ok(subsystem.namespaces.get(&nsid))
}

fn or_zeros(data: Option<Vec<u8>>) -> Vec<u8> {
    data.unwrap_or_else(|| alloc::vec![0; LENGTH])
}

fn active(subsystem: &Subsystem, above: u32) -> Result<NsList, Status> {
    if above >= Sqe::ALL_NAMESPACES - 1 {
        return Err(Status::INVALID_NAMESPACE);
    }
    let mut list = NsList::new_zeroed();
    let above = subsystem.namespaces.range(above + 1..);
    for (entry, (nsid, _)) in list.nsid.iter_mut().zip(above) {
        *entry = U32::new(*nsid);
    }
    Ok(list)
}

fn descriptors(subsystem: &Subsystem, nsid: u32) -> Result<Vec<u8>, Status> {
    let namespace = namespace(subsystem, nsid)?.ok_or(Status::INVALID_NAMESPACE)?;
    let ids = namespace.config().ids;
    let mut data = Vec::with_capacity(LENGTH);
    let mut push = |kind: NsDescriptorType, id: &[u8]| {
        if kind == NsDescriptorType::Csi || id.iter().any(|&byte| byte != 0) {
            let length = u8::try_from(id.len()).unwrap_or(0);
            data.extend_from_slice(NsDescriptor::new(kind, length).as_bytes());
            data.extend_from_slice(id);
        }
    };
    push(NsDescriptorType::Uuid, &ids.uuid);
    push(NsDescriptorType::Nguid, &ids.nguid);
    push(NsDescriptorType::Eui64, &ids.eui64);
    push(NsDescriptorType::Csi, &[CSI_NVM]);
    data.resize(LENGTH, 0);
    Ok(data)
}

/// Count and ids of controllers from `from` on.
fn controllers(subsystem: &Subsystem, from: u16) -> Vec<u8> {
    let ids: Vec<u16> = subsystem.controllers.range(from..).map(|(id, _)| *id).take(2047).collect();
    let count = u16::try_from(ids.len()).unwrap_or(0);
    let mut data: Vec<u8> = core::iter::once(count).chain(ids).flat_map(u16::to_le_bytes).collect();
    data.resize(LENGTH, 0);
    data
}

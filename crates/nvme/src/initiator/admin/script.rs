//! What is asked of a controller, one command after the other, to bring it up and to look again.
//!
//! ```text
//! bring-up: Cap ─► Enable ─► Status ⟲ ─► Identify ─► Queues ─► Events ─► Ana ─► List ─► (Namespace
//!           ─► Names)* ─► done
//! again:                                       Changed, Notice, Ana, List, …
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use zerocopy::FromBytes;

use super::super::ana::AnaLog;
use super::super::connect::ConnectRefused;
use super::super::info::{ControllerInfo, Namespace, NamespaceIds, active};
use super::super::transfer::Data;
use super::request::{AdminRequest, ana_log};
use crate::time::Instant;
use crate::wire::{
    Cap, Cc, Cns, Csts, EventConfig, FeatureId, LogId, Nqn, Property, ReservationNotice, Sqe,
    Status,
};

/// How often a controller that is not ready is asked again.
const READY_INTERVAL: Duration = Duration::from_millis(20);
/// Events that we understand.
const EVENTS: u32 = EventConfig::NAMESPACE | EventConfig::ANA | EventConfig::DISCOVERY;

/// One step; its command is at work, or due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Cap,
    Enable,
    Status,
    Identify,
    Queues,
    Events,
    Ana,
    Changed,
    Notice,
    List,
    Namespace { left: Vec<u32> },
    Names { left: Vec<u32>, described: Vec<u8> },
}

/// What is known so far.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) subsystem: Nqn,
    pub(super) wanted_queues: u16,
    cap: Cap,
    ready_by: Option<Instant>,
    pub(super) controller: Option<ControllerInfo>,
    pub(super) ana: Option<AnaLog>,
    /// Namespaces found by the look that is under way.
    found: Vec<Namespace>,
}

/// What comes after a step.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Do(Step),
    /// The same step again, later.
    Wait {
        step: Step,
        until: Instant,
    },
    Ana(AnaLog),
    Namespaces(Vec<Namespace>),
    Notice(ReservationNotice),
    /// Nothing came of it, and nothing needs to.
    Nothing,
    Refused(ConnectRefused),
}

impl Known {
    pub(super) fn new(subsystem: Nqn, wanted_queues: u16) -> Known {
        Known {
            subsystem,
            wanted_queues,
            cap: Cap(0),
            ready_by: None,
            controller: None,
            ana: None,
            found: Vec::new(),
        }
    }

    /// The command of a step.
    pub(super) fn command(&self, step: &Step) -> (Sqe, Data) {
        let info = self.controller.as_ref();
        match step {
            Step::Cap => AdminRequest::GetProperty { property: Property::Cap }.encode(),
            Step::Enable => AdminRequest::Configure { cc: Cc::ENABLE_NVM }.encode(),
            Step::Status => AdminRequest::GetProperty { property: Property::Csts }.encode(),
            Step::Identify => AdminRequest::Identify { what: Cns::Controller, nsid: 0 }.encode(),
            Step::Queues => {
                let count = u32::from(self.wanted_queues.max(1) - 1);
                let value = count << 16 | count;
                AdminRequest::SetFeature { id: FeatureId::NumberOfQueues, value }.encode()
            }
            Step::Events => {
                let value = info.map_or(0, |info| info.events) & EVENTS;
                AdminRequest::SetFeature { id: FeatureId::AsyncEventConfig, value }.encode()
            }
            Step::Ana => ana_log(info.and_then(|info| info.ana_log).unwrap_or(16)),
            Step::Changed => log(LogId::ChangedNamespaces, 4096),
            Step::Notice => log(LogId::ReservationNotices, 64),
            Step::List => AdminRequest::Identify { what: Cns::ActiveNamespaces, nsid: 0 }.encode(),
            Step::Namespace { left } => {
                let nsid = left.last().copied().unwrap_or_default();
                AdminRequest::Identify { what: Cns::Namespace, nsid }.encode()
            }
            Step::Names { left, .. } => {
                let nsid = left.last().copied().unwrap_or_default();
                AdminRequest::Identify { what: Cns::NamespaceDescriptors, nsid }.encode()
            }
        }
    }

    /// A step was answered.
    pub(super) fn on(
        &mut self,
        step: Step,
        status: Status,
        answer: (u64, Vec<u8>),
        now: Instant,
    ) -> Next {
        if !status.is_success() {
            return failed(step, status, &mut self.found);
        }
        let (result, bytes) = answer;
        match step {
            Step::Cap => {
                self.cap = Cap(result);
                Next::Do(Step::Enable)
            }
            Step::Enable => {
                let patience = Duration::from_millis(500) * self.cap.ready_halfseconds().into();
                self.ready_by = Some(now.after(patience.max(Duration::from_secs(1))));
                Next::Do(Step::Status)
            }
            Step::Status => self.on_status(Csts(low(result)), now),
            Step::Identify => self.on_identify(&bytes),
            Step::Queues => {
                let granted = low(result);
                let granted = (granted & 0xFFFF).min(granted >> 16) + 1;
                let queues = u32::from(self.wanted_queues.max(1)).min(granted);
                if let Some(info) = &mut self.controller {
                    info.io_queues = u16::try_from(queues).unwrap_or(u16::MAX);
                }
                self.after_queues()
            }
            Step::Events => self.after_events(),
            Step::Ana => self.on_ana(&bytes),
            Step::Changed => Next::Do(Step::List),
            Step::Notice => match ReservationNotice::read_from_bytes(&bytes) {
                Ok(notice) if notice.kind != 0 => Next::Notice(notice),
                _ => Next::Nothing,
            },
            Step::List => {
                self.found.clear();
                let mut left = active(&bytes);
                left.reverse();
                self.next_namespace(left)
            }
            Step::Namespace { left } => Next::Do(Step::Names { left, described: bytes }),
            Step::Names { left, described } => self.on_names(left, &described, &bytes),
        }
    }

    fn on_status(&self, csts: Csts, now: Instant) -> Next {
        if csts.fatal() {
            return Next::Refused(ConnectRefused::Unusable("it has failed (CSTS.CFS)"));
        }
        if csts.ready() {
            return Next::Do(Step::Identify);
        }
        if self.ready_by.is_some_and(|by| by <= now) {
            return Next::Refused(ConnectRefused::Unusable("it did not become ready in time"));
        }
        Next::Wait { step: Step::Status, until: now.after(READY_INTERVAL) }
    }

    fn on_identify(&mut self, bytes: &[u8]) -> Next {
        match ControllerInfo::parse(bytes, self.cap, &self.subsystem) {
            Err(refused) => Next::Refused(refused),
            Ok(info) if info.is_discovery => {
                self.controller = Some(info);
                self.after_queues()
            }
            Ok(info) => {
                self.controller = Some(info);
                Next::Do(Step::Queues)
            }
        }
    }

    fn after_queues(&self) -> Next {
        match &self.controller {
            Some(info) if info.events & EVENTS != 0 => Next::Do(Step::Events),
            _ => self.after_events(),
        }
    }

    fn after_events(&self) -> Next {
        match &self.controller {
            Some(info) if info.is_discovery => Next::Namespaces(Vec::new()),
            Some(info) if info.ana_log.is_some() => Next::Do(Step::Ana),
            _ => Next::Do(Step::List),
        }
    }

    fn on_ana(&mut self, bytes: &[u8]) -> Next {
        match AnaLog::parse(bytes) {
            Some(log) => {
                self.ana = Some(log.clone());
                Next::Ana(log)
            }
            None => Next::Refused(ConnectRefused::Unusable("its ANA log makes no sense")),
        }
    }

    fn next_namespace(&mut self, left: Vec<u32>) -> Next {
        if left.is_empty() {
            Next::Namespaces(core::mem::take(&mut self.found))
        } else {
            Next::Do(Step::Namespace { left })
        }
    }

    fn on_names(&mut self, mut left: Vec<u32>, described: &[u8], names: &[u8]) -> Next {
        if let (Some(nsid), Some(info)) = (left.pop(), &self.controller) {
            let ids = NamespaceIds::parse(names);
            self.found.extend(Namespace::parse(nsid, described, ids, info));
        }
        self.next_namespace(left)
    }
}

/// A namespace may go while we look at it, and events may be unknown to a controller; everything
/// else must work.
fn failed(step: Step, status: Status, found: &mut Vec<Namespace>) -> Next {
    match step {
        Step::Namespace { mut left } | Step::Names { mut left, .. } => {
            left.pop();
            if left.is_empty() {
                Next::Namespaces(core::mem::take(found))
            } else {
                Next::Do(Step::Namespace { left })
            }
        }
        Step::Changed => Next::Do(Step::List),
        Step::Notice => Next::Nothing,
        other => Next::Refused(ConnectRefused::Command { step: other.name(), status }),
    }
}

impl Step {
    fn name(&self) -> &'static str {
        match self {
            Step::Cap => "reading the capabilities",
            Step::Enable => "enabling the controller",
            Step::Status => "reading the status",
            Step::Identify => "identifying the controller",
            Step::Queues => "asking for queues",
            Step::Events => "asking for events",
            Step::Ana => "reading the ANA log",
            Step::Changed => "reading the changed namespaces",
            Step::Notice => "reading reservation notices",
            Step::List => "listing namespaces",
            Step::Namespace { .. } | Step::Names { .. } => "identifying a namespace",
        }
    }
}

fn log(id: LogId, len: u32) -> (Sqe, Data) {
    AdminRequest::Log { id, offset: 0, len, keep_event: false }.encode()
}

fn low(result: u64) -> u32 {
    u32::try_from(result & u64::from(u32::MAX)).unwrap_or_default()
}

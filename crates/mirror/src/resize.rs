//! Growing: the replicas were grown before; the volume follows when all of them are large enough.

use alloc::format;

use block::{BlockSize, Blocks, ErrorClass, Geometry, IoError};
use model::{Problem, ProblemKind, RegionSet, ReplicaId};

use crate::api::{Answer, CommandId, Effect};
use crate::context::{Pending, Purpose};
use crate::mirror::Mirror;
use crate::replicas::{Asked, ChildSet, reason};

/// A growth under way.
#[derive(Debug)]
pub(crate) struct ActiveResize {
    token: CommandId,
    wanted: Geometry,
    outstanding: ChildSet,
    problem: Option<Problem>,
    /// The note whose labels have the new size.
    version: Option<u64>,
}

impl Mirror {
    pub(crate) fn resize(&mut self, token: CommandId, size: Blocks) {
        if size == self.base.cx.geometry().blocks() {
            return self.base.cx.answer(token, Ok(()));
        }
        let refused = |kind, detail: &str| Err(Problem::new(kind, detail));
        if self.resizing.is_some() {
            return self.base.cx.answer(
                token,
                refused(ProblemKind::Busy, "another growth is under way; try again"),
            );
        }
        if size < self.base.cx.geometry().blocks() {
            let detail =
                format!("a volume cannot shrink; it has {}", self.base.cx.geometry().blocks());
            return self.base.cx.answer(token, Err(Problem::new(ProblemKind::OutOfRange, detail)));
        }
        let wanted = match Geometry::new(BlockSize::B4096, size) {
            Ok(wanted)
                if size.0.div_ceil(self.base.cx.config().region.get()) <= RegionSet::MOST =>
            {
                wanted
            }
            _ => {
                let detail = "so much larger it can be after its target was opened anew";
                return self.base.cx.answer(token, refused(ProblemKind::OutOfRange, detail));
            }
        };
        if !self.base.is_settled() {
            let detail = "a copy in sync is away; try again";
            return self.base.cx.answer(token, refused(ProblemKind::Unavailable, detail));
        }
        let mut outstanding = ChildSet::NONE;
        for slot in self.base.replicas.write_targets().iter() {
            let Some(Asked { io, child, session }) = self.base.ask(slot, Purpose::Measure) else {
                continue;
            };
            self.base.cx.emit(Effect::Measure { io, child, session });
            outstanding.insert(slot);
        }
        let resizing = ActiveResize { token, wanted, outstanding, problem: None, version: None };
        self.resizing = Some(resizing);
    }

    pub(crate) fn measured(&mut self, from: Pending, result: &Result<Answer, IoError>) {
        self.base.cx.rescan();
        let Some(child) = self.base.replicas.get(from.slot) else { return };
        let (replica, current) = (child.replica(), child.is_current(from.session));
        let Some(resizing) = &mut self.resizing else { return };
        resizing.outstanding.remove(from.slot);
        match result {
            Ok(Answer::Size(size)) if *size >= resizing.wanted.blocks() => {}
            Ok(_) => {
                resizing.problem.get_or_insert(too_small(replica));
            }
            Err(fault) => {
                let detail = format!("replica {replica} did not tell its size: {fault}; try again");
                resizing.problem.get_or_insert(Problem::new(ProblemKind::Unavailable, detail));
                if fault.class() == ErrorClass::Owner {
                    self.fenced();
                } else if current {
                    self.fail(from.slot, reason(*fault));
                }
            }
        }
    }

    pub(crate) fn pump_resize(&mut self) {
        let durable = self.base.durable_version();
        let Some(resizing) = &self.resizing else { return };
        let wanted = resizing.wanted;
        match (resizing.version, resizing.problem.clone()) {
            (None, _) if !resizing.outstanding.is_empty() => {}
            (None, Some(problem)) => self.end_resize(Err(problem)),
            (None, None) => {
                self.base.cx.grow(wanted);
                let version = self.base.change_note();
                if let Some(resizing) = &mut self.resizing {
                    resizing.version = Some(version);
                }
            }
            (Some(version), _) if version <= durable => self.end_resize(Ok(())),
            (Some(_), _) => {}
        }
    }

    pub(crate) fn end_resize(&mut self, result: Result<(), Problem>) {
        if let Some(resizing) = self.resizing.take() {
            self.base.cx.answer(resizing.token, result);
        }
    }
}

fn too_small(replica: ReplicaId) -> Problem {
    Problem::new(ProblemKind::OutOfRange, format!("replica {replica} is smaller; resize it first"))
}

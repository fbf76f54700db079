//! Questions about many blocks: they walk through maps, which may have to be read. So each has a
//! token, and is answered a window at a time.
//!
//! What is asked of a replica that is written meanwhile is answered as it is when the answer comes
//! to each window.

use alloc::boxed::Box;
use alloc::vec::Vec;

use block::Blocks;

use crate::entity::{Id, LayerId};
use crate::state::{PageKey, Refused};

use super::Pool;
use super::effect::{CommandId, Effect};
use super::op::{Op, Work};
use super::paging::Holder;
use super::range_queue::{OpId, RangeAccess};

/// Runs of blocks (start, end), in order.
pub type Runs = Vec<(u64, u64)>;

/// A question for runs of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockQuery {
    /// What about.
    pub about: QueryKind,
    /// From which block on.
    pub from: Blocks,
    /// Most runs of the answer; ask again from the end of the last.
    pub most: usize,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// Blocks of a replica or snapshot that are written.
    Written(Id),
    /// Blocks whose topmost layer is its own: a scrub that verifies these for all replicas and
    /// snapshots sees every block once.
    Own(Id),
    /// Blocks that differ between two of one family.
    Changed {
        /// The older one.
        older: Id,
        /// The newer one.
        newer: Id,
    },
}

/// A question under way.
#[derive(Clone, Debug)]
pub(super) struct ActiveQuery {
    about: QueryKind,
    /// The first block that was not looked at.
    next: u64,
    most: usize,
    found: Runs,
}

impl Pool {
    /// Takes a question. It ends with [`Effect::Answered`].
    pub fn ask(&mut self, token: CommandId, question: BlockQuery) {
        let BlockQuery { about, from, most } = question;
        self.begin_asking(token, ActiveQuery { about, next: from.0, most, found: Vec::new() });
    }

    fn begin_asking(&mut self, token: CommandId, asking: ActiveQuery) {
        let op = Op::new(token, Id::NONE, Work::Ask(Box::new(asking)), Vec::new());
        if self.ops.len() >= self.limits.commands {
            self.answers.insert(token, Err(Refused::Busy));
            self.effects.push_back(Effect::Answered { token });
        } else {
            self.enter(op, RangeAccess::Free);
        }
        self.run();
    }

    /// The answer of a question that has ended, once.
    pub fn take_answer(&mut self, token: CommandId) -> Result<Runs, Refused> {
        self.answers.remove(&token).unwrap_or(Err(Refused::NotFound))
    }

    /// Ends a question.
    pub(super) fn answered(&mut self, at: OpId, result: Result<Runs, Refused>) {
        if let Some(op) = self.leave(at) {
            self.answers.insert(op.token, result);
            self.effects.push_back(Effect::Answered { token: op.token });
        }
    }

    /// Looks at one window after another, until one is missing.
    pub(super) fn start_ask(&mut self, at: OpId) {
        let taken = self.ops.get_mut(at).map(|op| core::mem::replace(&mut op.work, Work::Merge));
        let Some(Work::Ask(mut asking)) = taken else { return };
        let before = asking.next;
        let result = self.ask_on(&mut asking);
        if asking.next > before {
            // What it looked at it needs no more.
            self.let_go(Holder::Op(at));
        }
        match result {
            Ok(None) => self.answered(at, Ok(asking.found)),
            Err(refused) => self.answered(at, Err(refused)),
            Ok(Some(missing)) => {
                if let Some(op) = self.ops.get_mut(at) {
                    op.work = Work::Ask(asking);
                }
                self.await_pages(Holder::Op(at), missing);
            }
        }
    }

    /// Answers which pages are missing; nothing if it is done.
    fn ask_on(&mut self, asking: &mut ActiveQuery) -> Result<Option<Vec<PageKey>>, Refused> {
        let (layers, end, is_own) = self.asked_of(asking.about)?;
        while asking.next < end && asking.found.len() <= asking.most {
            let here = self.state.window_at(asking.next);
            let windows = layers.iter().filter_map(|layer| self.state.next_window(*layer, here));
            let Some(window) = windows.min() else { break };
            asking.next = asking.next.max(self.state.window_start(window));
            if asking.next >= end {
                break;
            }
            let mut missing = Vec::new();
            for layer in &layers {
                if is_own {
                    self.state.absent_in(*layer, window..=window, &mut missing);
                } else {
                    self.state.absent_below(*layer, window..=window, &mut missing);
                }
            }
            missing.sort_unstable();
            missing.dedup();
            if !missing.is_empty() {
                return Ok(Some(missing));
            }
            let to = end.min(self.state.window_end(window));
            let most = asking.most.saturating_sub(asking.found.len()).saturating_add(1);
            let found = self.look(asking.about, &layers, (asking.next, to), most);
            // It may have ended early.
            asking.next = match found.last() {
                Some((_, last)) if found.len() >= most => *last,
                _ => to,
            };
            for run in found {
                match asking.found.last_mut() {
                    Some(last) if last.1 == run.0 => last.1 = run.1,
                    _ => asking.found.push(run),
                }
            }
        }
        asking.found.truncate(asking.most);
        Ok(None)
    }

    /// The layers that are looked at, the older first, up to which block, and whether those below
    /// them are not.
    fn asked_of(&self, about: QueryKind) -> Result<(Vec<LayerId>, u64, bool), Refused> {
        Ok(match about {
            QueryKind::Written(id) => {
                let (layer, size) = self.layer_of(id)?;
                (alloc::vec![layer], size, false)
            }
            QueryKind::Own(id) => {
                let (layer, size) = self.layer_of(id)?;
                (alloc::vec![layer], size, true)
            }
            QueryKind::Changed { older, newer } => {
                let (old, old_size) = self.layer_of(older)?;
                let (new, new_size) = self.layer_of(newer)?;
                (alloc::vec![old, new], old_size.max(new_size), false)
            }
        })
    }

    /// Answers for blocks of one window.
    fn look(
        &mut self,
        about: QueryKind,
        layers: &[LayerId],
        range: (u64, u64),
        most: usize,
    ) -> Runs {
        let one = |layer: Option<&LayerId>| layer.copied().unwrap_or(LayerId::NONE);
        let layer = one(layers.first());
        match about {
            QueryKind::Written(_) => self.state.written(layer, range, most),
            QueryKind::Own(_) => self.state.own(layer, range, most),
            QueryKind::Changed { .. } => self.state.changed(layer, one(layers.last()), range),
        }
    }

    fn layer_of(&self, id: Id) -> Result<(LayerId, u64), Refused> {
        let entity = self.state.entities.get(&id).ok_or(Refused::NotFound)?;
        if self.state.is_damaged(entity.layer) {
            return Err(Refused::Damaged);
        }
        Ok((entity.layer, entity.size.0))
    }
}

//! What goes to the host.

use super::super::event::{Payload, Slot, Transmit};
use super::{Connection, Out};
use crate::pdu::{Framing, InlineBytes, flags};
use crate::wire::{Cqe, U16};

impl Connection {
    /// The next bytes to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        loop {
            match self.out.pop_front()? {
                Out::Head(head) => return Some(Transmit::head(head)),
                Out::AskForData(slot) => {
                    if let Some(entry) = self.slots.get(slot) {
                        let tags = (entry.cid(), slot.0);
                        return Some(Transmit::head(self.framing.r2t(tags, 0, entry.total)));
                    }
                }
                Out::Answer(slot) => {
                    if let Some(transmit) = self.answer_of(slot) {
                        return Some(transmit);
                    }
                }
            }
        }
    }

    fn answer_of(&mut self, slot: Slot) -> Option<Transmit> {
        let framing = self.framing;
        let no_sq_flow = self.no_sq_flow;
        // One entry of the queue is free again; hosts that do not care get no number.
        self.sqhd = (self.sqhd + 1) % self.queue_depth.max(1);
        let sqhd = if no_sq_flow { u16::MAX } else { self.sqhd };
        let entry = self.slots.get_mut(slot)?;
        let cid = entry.cid();
        let mut cqe = Cqe::new(cid, entry.answer.status);
        cqe.set_result(entry.answer.result);
        cqe.sqhd = U16::new(sqhd);
        let data = core::mem::take(&mut entry.answer.data);
        let (payload, len) = if entry.sends > 0 {
            (Payload::Slot { slot, len: entry.sends }, entry.sends)
        } else if data.is_empty() {
            (Payload::None, 0)
        } else {
            let len = u32::try_from(data.len()).unwrap_or(0);
            (Payload::Bytes(data), len)
        };
        self.slots.release(slot);
        let response = || framing.capsule_resp(&cqe);
        let mut transmit = if len == 0 {
            Transmit::head(response())
        } else {
            // Without flow control a success needs no response capsule.
            let is_implied = no_sq_flow && cqe.status().is_success() && cqe.result() == 0;
            let ends = flags::LAST | if is_implied { flags::SUCCESS } else { 0 };
            let head = framing.c2h_data(cid, 0, len, ends);
            let tail: InlineBytes<{ Framing::MAX_HEAD }> =
                if is_implied { InlineBytes::EMPTY } else { response() };
            Transmit::head(head)
                .with_payload(payload, framing.digests.data)
                .with_tail(tail.as_slice())
        };
        transmit.frees = Some(slot);
        Some(transmit)
    }
}

//! What tests do to replicas that nothing else does.

use core::time::Duration;

use super::Replicas;
use crate::tests::Broken;

impl Replicas {
    pub(crate) fn place(&mut self, slot: usize, latency: Duration, local: bool) {
        if let Some(child) = self.children[slot].as_mut() {
            child.place(latency, local);
        }
    }

    pub(crate) fn is_broken(&self, rule: Broken) -> bool {
        self.broken == rule
    }

    pub(crate) fn break_rule(&mut self, rule: Broken) {
        self.broken = rule;
        self.refresh();
    }
}

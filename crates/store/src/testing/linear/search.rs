//! The search for an order that explains all outcomes (Wing and Gong's, remembering dead ends as
//! Lowe proposed).

use std::collections::HashSet;

use super::{Action, Call, Outcome};

/// Whether the calls of one register, sorted by when they were made, have an order.
pub(super) fn linear(calls: &[Call]) -> bool {
    // A read without an answer saw nothing and changed nothing.
    let useful = |call: &&Call| !(call.action == Action::Read && call.outcome == Outcome::Unknown);
    let calls: Vec<Call> = calls.iter().filter(useful).copied().collect();
    Search::new(&calls).run()
}

/// A place in the list of events still to be explained; the head is place 0.
type Place = usize;

struct Event {
    call: usize,
    /// For the making of a call: the place of its answer.
    answer: Option<Place>,
    before: Place,
    after: Place,
}

struct Search<'a> {
    calls: &'a [Call],
    events: Vec<Event>,
    /// The calls put in order so far, each with the value before it.
    order: Vec<(Place, Option<u64>)>,
    value: Option<u64>,
    done: Vec<u64>,
    dead_ends: HashSet<(Vec<u64>, Option<u64>)>,
}

impl<'a> Search<'a> {
    fn new(calls: &'a [Call]) -> Search<'a> {
        // An answer at the same instant as a call comes after it: then they overlap.
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let answered = match call.outcome {
                Outcome::Unknown => u64::MAX,
                _ => call.answered,
            };
            times.push((call.made, false, index));
            times.push((answered, true, index));
        }
        times.sort_unstable();
        let mut events = vec![Event { call: 0, answer: None, before: 0, after: 0 }];
        let mut made = vec![0; calls.len()];
        for (_, is_answer, call) in times {
            let place = events.len();
            events.push(Event { call, answer: None, before: place - 1, after: 0 });
            events[place - 1].after = place;
            if is_answer {
                events[made[call]].answer = Some(place);
            } else {
                made[call] = place;
            }
        }
        Search {
            calls,
            events,
            order: Vec::new(),
            value: None,
            done: vec![0; calls.len().div_ceil(64)],
            dead_ends: HashSet::new(),
        }
    }

    fn run(mut self) -> bool {
        let mut place = self.events[0].after;
        // The list is empty when its head is followed by itself.
        while self.events[0].after != 0 {
            if self.events[place].answer.is_none() {
                // This call must have happened by now, and nothing before it fits: go back.
                let Some((last, value)) = self.order.pop() else { return false };
                self.put_back(last);
                self.value = value;
                place = self.events[last].after;
                continue;
            }
            place = match self.try_next(place) {
                true => self.events[0].after,
                false => self.events[place].after,
            };
        }
        true
    }

    /// Takes the call made at `place` as the next in order, if it fits and that is new.
    fn try_next(&mut self, place: Place) -> bool {
        let call = self.events[place].call;
        let Some(value) = step(self.value, &self.calls[call]) else { return false };
        self.done[call / 64] ^= 1 << (call % 64);
        if !self.dead_ends.insert((self.done.clone(), value)) {
            self.done[call / 64] ^= 1 << (call % 64);
            return false;
        }
        self.order.push((place, self.value));
        self.value = value;
        self.unlink(place);
        if let Some(answer) = self.events[place].answer {
            self.unlink(answer);
        }
        true
    }

    fn put_back(&mut self, place: Place) {
        let call = self.events[place].call;
        self.done[call / 64] ^= 1 << (call % 64);
        if let Some(answer) = self.events[place].answer {
            self.relink(answer);
        }
        self.relink(place);
    }

    fn unlink(&mut self, place: Place) {
        let Event { before, after, .. } = self.events[place];
        self.events[before].after = after;
        self.events[after].before = before;
    }

    fn relink(&mut self, place: Place) {
        let Event { before, after, .. } = self.events[place];
        self.events[before].after = place;
        self.events[after].before = place;
    }
}

/// The value after the call, if its outcome fits the value before it.
fn step(value: Option<u64>, call: &Call) -> Option<Option<u64>> {
    match (call.action, call.outcome) {
        (Action::Read, Outcome::Read(seen)) => (seen == value).then_some(value),
        (Action::Write(new), Outcome::Written | Outcome::Unknown) => Some(Some(new)),
        (Action::Swap { expect, to }, Outcome::Swapped(done)) => {
            let fits = expect == value;
            (fits == done).then_some(if done { Some(to) } else { value })
        }
        (Action::Swap { expect, to }, Outcome::Unknown) => {
            Some(if expect == value { Some(to) } else { value })
        }
        // An answer to another question.
        _ => None,
    }
}

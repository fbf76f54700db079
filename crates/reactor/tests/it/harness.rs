//! Driving a reactor step by step.

use std::collections::VecDeque;

use reactor::{Class, Config, Event, Handler, Io, Outcome, PAGE, Reactor, Token};

/// A small reactor, as a test needs it.
pub(crate) fn small() -> Config {
    Config {
        buffers: vec![Class { bytes: PAGE, count: 8 }, Class { bytes: 64 * PAGE, count: 2 }],
        receive_buffers: 4,
        receive_bytes: PAGE,
        operations: 64,
        sockets: 32,
        files: 4,
        messages: 4,
        ..Config::default()
    }
}

pub(crate) type Step<'a, M> = &'a mut dyn FnMut(Heard<M>, &mut Reactor<M>) -> bool;

/// What a test's step is called with.
pub(crate) enum Heard<M> {
    Done(Token, Outcome),
    Message(M),
    /// All events of this turn were told.
    Settled,
}

/// Collects events, and hands them to a closure between the turns, where it has the whole reactor.
struct Listening<M> {
    heard: VecDeque<Event<M>>,
}

impl<M> Handler for Listening<M> {
    type Message = M;

    fn on(&mut self, event: Event<M>, _: &mut impl Io<Message = M>) {
        self.heard.push_back(event);
    }

    fn settle(&mut self, _: &mut impl Io<Message = M>) -> bool {
        true
    }
}

/// Runs until `step` says stop. `step` is called once before anything happened.
pub(crate) fn drive<M>(reactor: &mut Reactor<M>, step: Step<'_, M>) {
    let mut listening = Listening { heard: VecDeque::new() };
    if step(Heard::Settled, reactor) {
        return;
    }
    loop {
        reactor.turn(&mut listening).unwrap();
        while let Some(event) = listening.heard.pop_front() {
            let heard = match event {
                Event::Done { token, outcome } => Heard::Done(token, outcome),
                Event::Message(message) => Heard::Message(message),
            };
            if step(heard, reactor) {
                return;
            }
        }
        if step(Heard::Settled, reactor) {
            return;
        }
    }
}

//! A remote namespace and nothing else on a reactor.

use std::time::Duration;

use reactor::{Event, Handler, Io, Key, Op, Token};

use super::{Remote, TOKEN_KINDS};

/// The handler of a reactor that only a [`Remote`] lives on.
pub struct StandaloneHandler<O> {
    /// Its requests go in and come out here.
    pub remote: Remote<O>,
    is_ticking: bool,
}

const TICK: u8 = 1;
const TICK_EVERY: Duration = Duration::from_millis(20);

impl<O> StandaloneHandler<O> {
    /// Drives this one.
    pub fn new(remote: Remote<O>) -> StandaloneHandler<O> {
        StandaloneHandler { remote, is_ticking: false }
    }
}

impl<O> Handler for StandaloneHandler<O> {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        let Event::Done { token, outcome } = event else { return };
        if TOKEN_KINDS.contains(&token.parts().0) {
            self.remote.on(token, outcome, io);
        } else {
            self.is_ticking = false;
            self.remote.handle_timeout(io);
        }
    }

    fn settle(&mut self, io: &mut impl Io<Message = ()>) -> bool {
        if !self.is_ticking {
            let at = io.now().after(TICK_EVERY);
            let token = Token::of(TICK, Key::from_bits(0));
            self.is_ticking = io.submit(Op::Timer { at }, token).is_ok();
        }
        self.remote.settle(io);
        true
    }
}

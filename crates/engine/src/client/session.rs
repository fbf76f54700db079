//! One controller on a reactor of its own, for tools: ask, wait, ask again.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use block::IoError;
use nvme::initiator::{
    AdminRequest, Answer, Association, DiscoveryReader, Entry, ReadStep, Report, Reservation,
};
use reactor::{Buffer, Event, Handler, Io, Key, MonotonicTime, Op, Reactor, SetupError, Token};

use super::{Controller, ControllerEvent, Request, TOKEN_KINDS};

/// A controller and the reactor that drives it, on the calling thread.
pub struct Session {
    reactor: Reactor<()>,
    driven: SessionHandler,
}

struct SessionHandler {
    controller: Controller,
    is_ticking: bool,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No reactor.
    #[error("cannot set up a reactor")]
    Setup(#[from] SetupError),
    /// The reactor failed.
    #[error("the reactor failed")]
    Reactor(#[from] io::Error),
    /// The controller is gone.
    #[error("{0}")]
    Lost(String),
    /// The controller refused a request.
    #[error("the controller refused {what}: {status}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// What it said.
        status: String,
    },
    /// It said something that makes no sense.
    #[error("{0}")]
    Nonsense(&'static str),
}

const TICK: u8 = 1;
const TICK_EVERY: Duration = Duration::from_millis(20);

impl Handler for SessionHandler {
    type Message = ();

    fn on(&mut self, event: Event<()>, io: &mut impl Io<Message = ()>) {
        let Event::Done { token, outcome } = event else { return };
        let (kind, _) = token.parts();
        if TOKEN_KINDS.contains(&kind) {
            self.controller.on(token, outcome, io);
        } else {
            self.is_ticking = false;
        }
    }

    fn settle(&mut self, _: &mut impl Io<Message = ()>) -> bool {
        true
    }
}

impl Session {
    /// Connects and waits until the controller and its queues are up.
    pub fn connect(address: SocketAddr, association: Association) -> Result<Session, SessionError> {
        Session::connect_for(0, 0, address, association)
    }

    /// The same, with memory for so many buffers of that size at once.
    pub fn connect_for(
        count: u32,
        bytes: usize,
        address: SocketAddr,
        association: Association,
    ) -> Result<Session, SessionError> {
        let config = reactor::Config::default().with_room(bytes, count);
        let mut reactor = Reactor::new(&config)?;
        let controller = Controller::connect(1, address, association, &mut reactor);
        let mut session =
            Session { reactor, driven: SessionHandler { controller, is_ticking: false } };
        loop {
            match session.wait()? {
                ControllerEvent::Ready => return Ok(session),
                ControllerEvent::Lost { why } => return Err(SessionError::Lost(why)),
                _ => {}
            }
        }
    }

    /// Waits for the next thing that happens.
    pub fn wait(&mut self) -> Result<ControllerEvent, SessionError> {
        loop {
            if !self.driven.is_ticking {
                let at = self.reactor.now().after(TICK_EVERY);
                let token = Token::of(TICK, Key::from_bits(0));
                self.driven.is_ticking = self.reactor.submit(Op::Timer { at }, token).is_ok();
                self.driven.controller.handle_timeout(&self.reactor);
            }
            if let Some(happened) = self.driven.controller.poll(&mut self.reactor) {
                return Ok(happened);
            }
            if self.driven.controller.is_over() {
                return Err(SessionError::Lost("the controller is gone".into()));
            }
            self.driven.controller.settle(&mut self.reactor);
            self.reactor.turn(&mut self.driven)?;
        }
    }

    /// The controller.
    pub fn controller(&self) -> &Controller {
        &self.driven.controller
    }

    /// Sends a request; hands it back if that cannot be now.
    pub fn submit(&mut self, request: Request) -> Result<(), Request> {
        let submitted = self.driven.controller.submit(request, &self.reactor);
        submitted.map_err(|rejected| rejected.request)
    }

    /// A buffer, if one is free.
    pub fn take(&mut self, bytes: usize) -> Option<Buffer> {
        self.reactor.take(bytes)
    }

    /// Takes the time anew, after a while in which nothing was waited for.
    pub fn tell_time(&mut self) {
        self.reactor.tell_time();
    }

    /// The time.
    pub fn now(&self) -> MonotonicTime {
        self.reactor.now()
    }

    /// Sends an admin command and waits for the bytes of its answer.
    pub fn ask(
        &mut self,
        what: &'static str,
        asked: AdminRequest,
    ) -> Result<Vec<u8>, SessionError> {
        let Some(ticket) = self.driven.controller.request(asked, &self.reactor) else {
            return Err(SessionError::Nonsense("the controller takes no more requests"));
        };
        loop {
            match self.wait()? {
                ControllerEvent::Answered(found, answer) if found == ticket => {
                    return match answer {
                        Answer::Done { bytes, .. } => Ok(bytes),
                        Answer::Failed(status) => {
                            Err(SessionError::Refused { what, status: status.to_string() })
                        }
                        Answer::Lost(why) => Err(SessionError::Lost(why.to_string())),
                    };
                }
                ControllerEvent::Lost { why } => return Err(SessionError::Lost(why)),
                _ => {}
            }
        }
    }

    /// Reads the discovery log.
    pub fn discover(&mut self) -> Result<Vec<Entry>, SessionError> {
        let (mut reader, mut request) = DiscoveryReader::begin();
        loop {
            let bytes = self.ask("the discovery log", request)?;
            match reader.on(&bytes) {
                ReadStep::Ask(next) => request = next,
                ReadStep::Done(entries) => return Ok(entries),
                ReadStep::Failed(why) => return Err(SessionError::Nonsense(why)),
            }
        }
    }

    /// Sends a reservation command and waits for its end; a report has an answer.
    pub fn reserve(
        &mut self,
        nsid: u32,
        reservation: Reservation,
    ) -> Result<Option<Report>, SessionError> {
        /// Of no other request: those of tools count from zero.
        const TAG: u64 = u64::MAX;
        if !self.driven.controller.reserve(TAG, nsid, reservation, &self.reactor) {
            return Err(SessionError::Nonsense("the controller takes no reservation command now"));
        }
        let refused = |why: IoError| SessionError::Refused {
            what: "the reservation",
            status: why.to_string(),
        };
        loop {
            match self.wait()? {
                ControllerEvent::Done { tag: TAG, result, .. } => {
                    return result.map(|()| None).map_err(refused);
                }
                ControllerEvent::Reported { tag: TAG, result } => {
                    return result.map(Some).map_err(refused);
                }
                ControllerEvent::Lost { why } => return Err(SessionError::Lost(why)),
                _ => {}
            }
        }
    }

    /// Ends the association in good order.
    pub fn close(mut self) -> Result<(), SessionError> {
        self.driven.controller.shut_down(&self.reactor);
        while !matches!(self.wait()?, ControllerEvent::Lost { .. }) {}
        Ok(())
    }
}

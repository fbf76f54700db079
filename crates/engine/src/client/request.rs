//! What is asked of a controller, and what comes of it.

use block::{Command, Completion, IoError};
use nvme::initiator::{Answer, Report, Ticket};

use crate::device::Data;

/// A block command with its data and its owner's name for it.
#[derive(Debug)]
pub struct Request {
    /// Comes back with the result.
    pub tag: u64,
    /// On which namespace.
    pub nsid: u32,
    /// What to do.
    pub command: Command,
    /// With which bytes.
    pub data: Data,
}

/// A request that was not sent.
#[derive(Debug)]
pub struct Rejected {
    /// Why; `Busy` means that all slots are taken.
    pub fault: IoError,
    /// With its data.
    pub request: Request,
}

/// What became of it.
#[derive(Debug)]
pub enum ControllerEvent {
    /// Requests may be submitted.
    Ready,
    /// A request is over.
    Done {
        /// Of the request.
        tag: u64,
        /// How it ended.
        result: Completion,
        /// Of the request; of a read that succeeded, filled.
        data: Data,
    },
    /// A report of reservations is there, or not.
    Reported {
        /// Of the request.
        tag: u64,
        /// What it says.
        result: Result<Report, IoError>,
    },
    /// The answer to a message is there, or not.
    Replied {
        /// Of the message.
        tag: u64,
        /// What it says.
        result: Result<Vec<u8>, IoError>,
    },
    /// Namespaces changed.
    Namespaces,
    /// ANA states changed.
    Ana,
    /// The discovery log changed.
    Discovery,
    /// A notice about reservations: its kind.
    Notice(u8),
    /// An admin request was answered.
    Answered(Ticket, Answer),
    /// The way is lost; every request has ended before this.
    Lost {
        /// Why.
        why: String,
    },
}

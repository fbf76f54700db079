//! The reactor on the real kernel: sockets, files, timers, mailboxes, back-pressure, ends.

#[cfg(test)]
mod ends;
#[cfg(test)]
mod files;
#[cfg(test)]
mod frugal;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod sockets;
#[cfg(test)]
mod threads;

//! Target and initiator of the engine against each other, over real sockets.

#[cfg(test)]
mod failing;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod orders;
#[cfg(test)]
mod paths;
#[cfg(test)]
mod reservations;
#[cfg(test)]
mod rough;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod transfers;
#[cfg(test)]
mod volumes;

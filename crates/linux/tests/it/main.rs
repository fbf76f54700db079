//! The kernel of this machine, as far as root may try it.
#![cfg(test)]

mod live;

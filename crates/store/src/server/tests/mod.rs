//! Tests of the server without sockets.

mod crash;
mod crashdisk;
mod model;
mod watch;

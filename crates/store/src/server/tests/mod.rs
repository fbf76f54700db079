//! Tests of the server without sockets.

mod crash;
mod crashdisk;
mod durable;
mod lifecycle;
mod model;
mod tls;
mod watch;

//! Tests of the server without sockets.

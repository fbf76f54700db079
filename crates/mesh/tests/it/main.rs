//! The nine steps over a model of several nodes, their kernels, their network and the API server.

#![cfg(test)]

mod array;
mod histories;
mod kernel;
mod world;

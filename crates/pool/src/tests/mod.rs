//! The whole pool on disks that forget, against a model.

mod codec;
mod crash;
mod disk;
mod driver;
mod model;

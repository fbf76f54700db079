//! The whole pool on disks that forget, against a model.

mod codec;
mod crash;
mod damage;
mod disk;
mod driver;
mod feature;
mod history;
mod life;
mod merge;
mod model;

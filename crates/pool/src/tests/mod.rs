//! The whole pool on disks that forget, against a model.

mod codec;
mod crash;
mod create;
mod damage;
mod disk;
mod driver;
mod feature;
mod history;
mod hostile_images;
mod interrupted_writes;
mod lying_disks;
mod merge;
mod model;
mod mutation;
mod paging;
mod read_errors;
mod torn;

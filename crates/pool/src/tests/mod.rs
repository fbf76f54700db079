//! The whole pool on disks that forget, against a model.

mod breaks;
mod codec;
mod crash;
mod damage;
mod disk;
mod doubt;
mod driver;
mod feature;
mod history;
mod hostile;
mod liars;
mod life;
mod merge;
mod model;
mod paging;
mod torn;
mod unreadable;

//! Control planes, as processes, over real stores and real engines.

mod etcd;
mod lease;
mod recover;
mod rig;

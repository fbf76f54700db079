//! Control planes, as processes, over real stores and real engines.

mod etcd;
mod group;
mod lease;
mod quarantine;
mod recover;
mod rig;
mod rollback;

//! Test aids: disks in memory, and what fuzzers drive and plain tests replay.
//!
//! A reader of a disk must survive any bytes, also those whose checksums are right: a checksum
//! keeps damage out, not what a bug or an enemy has written. So bytes are sealed here with right
//! checksums before they are read.
//!
//! Not here: crashes and the model they are compared with (`tests`).

mod bench_pool;
pub mod fuzz;
mod image;

pub use bench_pool::BenchPool;
pub use image::Image;

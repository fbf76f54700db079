//! Test aids that several crates share: numbers from a seed, and the corpus of fuzzers.
//!
//! Not here: anything that knows what it tests.

extern crate std;

use std::path::Path;
use std::string::String;
use std::vec::Vec;
use std::{env, fs, io};

/// Random numbers from a seed: the same in every run (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends, and is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of these, if there are any.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let count = u64::try_from(from.len()).ok().filter(|count| *count > 0)?;
        from.get(usize::try_from(self.below(count)).ok()?).copied()
    }
}

/// The corpus of a fuzz target: its seeds, which a test makes from real encodings, and what a
/// fuzzer found. `package` is the folder of the package that asks.
///
/// Compares the seeds with what is written, and answers every input. With `HOLDFAST_WRITE_CORPUS`
/// set the seeds are written anew first.
///
/// # Panics
///
/// If a seed is another than it should be.
pub fn corpus(
    package: &str,
    target: &str,
    seeds: &[(String, Vec<u8>)],
) -> io::Result<Vec<Vec<u8>>> {
    let folder = Path::new(package).join("../../fuzz/corpus").join(target);
    if env::var_os("HOLDFAST_WRITE_CORPUS").is_some() {
        fs::create_dir_all(&folder)?;
        for (name, bytes) in seeds {
            fs::write(folder.join(name), bytes)?;
        }
    }
    for (name, bytes) in seeds {
        let written = fs::read(folder.join(name))?;
        assert!(written == *bytes, "{target}/{name} is not what the test makes of it");
    }
    fs::read_dir(&folder)?.map(|file| fs::read(file?.path())).collect()
}

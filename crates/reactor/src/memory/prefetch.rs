//! Memory that is looked at next.

/// What is fetched at most: a block. Whoever looks at more has the processor fetch the rest by
/// itself meanwhile.
const MOST: usize = 4096;

/// Has the processor fetch the beginning of `bytes` into its cache while it does other things.
///
/// What a device has just written is in no cache: whoever makes a checksum of it waits longer for
/// the memory than for the sum.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "there is no other way to say what the cache shall do")]
pub(crate) fn prefetch(bytes: &[u8]) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    let bytes = bytes.get(..MOST).unwrap_or(bytes);
    for line in bytes.chunks(64) {
        // SAFETY: SSE is part of every x86-64, and this reads nothing that a program could see.
        unsafe { _mm_prefetch(line.as_ptr().cast(), _MM_HINT_T0) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn prefetch(_bytes: &[u8]) {}

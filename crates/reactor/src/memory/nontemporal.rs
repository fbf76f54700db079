//! Copies to memory that nobody looks at soon.

/// Copies `from` to the beginning of `to`, as much as there is room for, around the processor's
/// cache where it can.
///
/// A plain copy first brings what it overwrites into the cache, and drives out what lies there. For
/// much data that goes to its final place and stays there, both are in vain, and it takes twice as
/// long.
pub fn copy_nontemporal(from: &[u8], to: &mut [u8]) {
    let count = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..count), to.get_mut(..count)) {
        stream(from, to);
    }
}

/// Both are of the same length.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "there is no other way to say what the cache shall do")]
fn stream(from: &[u8], to: &mut [u8]) {
    use core::arch::x86_64::{_mm_sfence, _mm_stream_si64};

    // SAFETY: any eight bytes are a number, and writing one breaks no rule of theirs.
    let (before, middle, after) = unsafe { to.align_to_mut::<i64>() };
    let (first, rest) = from.split_at(before.len());
    let (words, last) = rest.split_at(size_of_val(middle));
    before.copy_from_slice(first);
    after.copy_from_slice(last);
    for (place, word) in middle.iter_mut().zip(words.as_chunks().0) {
        // SAFETY: `place` is a number that is ours to write, and SSE2 is part of every x86-64.
        unsafe { _mm_stream_si64(place, i64::from_ne_bytes(*word)) };
    }
    // Before anybody may look: such stores keep no order among others.
    // SAFETY: SSE is part of every x86-64, and there is nothing to pass.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn stream(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_piece_at_any_place() {
        let from: Vec<u8> = (0..600u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        for at in 0..33 {
            for len in [0, 1, 15, 16, 17, 100, 255, 500] {
                let mut to = vec![0xEE; 600];
                copy_nontemporal(&from[3..3 + len], &mut to[at..at + len]);
                assert_eq!(to[at..at + len], from[3..3 + len], "{len} bytes at {at}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn no_more_than_there_is_room_for() {
        let (mut short, mut long) = ([0; 20], [0; 40]);
        copy_nontemporal(&[7; 30], &mut short);
        copy_nontemporal(&[7; 30], &mut long);
        assert_eq!((short, long[29], long[30]), ([7; 20], 7, 0));
    }
}

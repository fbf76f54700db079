//! What is mounted, and what is swap.

use std::collections::BTreeMap;

use crate::Tree;

/// Who uses devices.
#[derive(Debug, Default)]
pub(crate) struct Users {
    /// First mount point by `major:minor`.
    mounts: BTreeMap<String, String>,
    /// Paths of devices that are swap space.
    swaps: Vec<String>,
}

impl Users {
    pub(crate) fn read(tree: &Tree) -> Users {
        let mut mounts = BTreeMap::new();
        for line in tree.text("/proc/self/mountinfo").lines() {
            let mut fields = line.split(' ');
            if let (Some(device), Some(point)) = (fields.nth(2), fields.nth(1)) {
                mounts.entry(device.to_owned()).or_insert_with(|| unescaped(point));
            }
        }
        let swaps = tree.text("/proc/swaps");
        let swaps = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        Users { mounts, swaps: swaps.map(unescaped).collect() }
    }

    pub(crate) fn mount_point(&self, number: &str) -> Option<&str> {
        self.mounts.get(number).map(String::as_str)
    }

    pub(crate) fn is_swap(&self, path: &str) -> bool {
        self.swaps.iter().any(|swap| swap == path)
    }
}

/// The kernel writes white space and backslashes as three octal digits.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let octal = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_in_a_path_is_read_back() {
        for (text, path) in [
            ("/mnt/a\\040b", "/mnt/a b"),
            ("/mnt/a\\134b", "/mnt/a\\b"),
            ("/plain", "/plain"),
            ("/ends\\", "/ends\\"),
            ("/not\\9octal", "/not\\9octal"),
        ] {
            assert_eq!(unescaped(text), path);
        }
    }
}

//! A tar archive in memory (POSIX ustar), with root as owner and no times.

use anyhow::{Context, Result, ensure};

/// Tar writes everything in blocks of this size.
const BLOCK: usize = 512;

/// What an entry is.
#[derive(Clone, Copy)]
pub(super) enum Kind<'a> {
    Directory,
    File(&'a [u8]),
    Link(&'a str),
}

/// An archive in the making.
#[derive(Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
}

impl Archive {
    pub(super) fn add(&mut self, path: &str, kind: Kind<'_>, mode: u32) -> Result<()> {
        let (flag, data, link): (u8, &[u8], &str) = match kind {
            Kind::Directory => (b'5', &[], ""),
            Kind::File(data) => (b'0', data, ""),
            Kind::Link(to) => (b'2', &[], to),
        };
        let mut header = [0; BLOCK];
        put(&mut header, 0..100, path.as_bytes())
            .with_context(|| format!("{path} is too long for tar"))?;
        put(&mut header, 100..108, format!("{mode:07o}\0").as_bytes())?;
        put(&mut header, 108..116, b"0000000\0")?;
        put(&mut header, 116..124, b"0000000\0")?;
        put(&mut header, 124..136, format!("{:011o}\0", data.len()).as_bytes())?;
        put(&mut header, 136..148, b"00000000000\0")?;
        put(&mut header, 148..156, b"        ")?;
        put(&mut header, 156..157, &[flag])?;
        put(&mut header, 157..257, link.as_bytes())?;
        put(&mut header, 257..265, b"ustar\x0000")?;
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        put(&mut header, 148..156, format!("{sum:06o}\0 ").as_bytes())?;
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(data);
        self.fill();
        Ok(())
    }

    fn fill(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 2 * BLOCK]);
        self.bytes
    }
}

fn put(header: &mut [u8; BLOCK], range: std::ops::Range<usize>, text: &[u8]) -> Result<()> {
    let field = header.get_mut(range).context("a field lies in the header")?;
    ensure!(text.len() <= field.len(), "{} bytes do not fit", text.len());
    if let Some(part) = field.get_mut(..text.len()) {
        part.copy_from_slice(text);
    }
    Ok(())
}

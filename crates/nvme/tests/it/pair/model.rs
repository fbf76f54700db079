//! What the namespace may hold: for each block, the tags that a read may return.

use block::{Blocks, Command, Lba, Span};

use super::net::{BLOCK, Dice};

/// Tags that a block may hold: one, or more while a lost command leaves doubt.
pub struct Model {
    blocks: Vec<Vec<u64>>,
    next_tag: u64,
}

impl Model {
    pub fn new(blocks: usize) -> Model {
        Model { blocks: vec![vec![0]; blocks], next_tag: 1 }
    }

    pub fn span(&self) -> Span {
        Span::new(Lba(0), Blocks(self.blocks.len() as u64)).unwrap()
    }

    /// A random command that does not conflict with those at work, and the tag that it writes.
    pub fn choose(&mut self, dice: &mut Dice, at_work: &[Command]) -> Option<(Command, u64)> {
        let total = self.blocks.len() as u64;
        let most = [1, 4, 64][dice.index(3)];
        let len = 1 + dice.below(most);
        let start = dice.below(total - len + 1);
        let span = Span::new(Lba(start), Blocks(len)).unwrap();
        let fua = dice.one_in(4);
        let command = match dice.below(16) {
            0 => Command::Flush,
            1 => Command::Discard { span },
            2 => Command::WriteZeroes { span, fua, deallocate: dice.one_in(2) },
            3..=9 => Command::Read { span },
            10 => Command::Compare { span },
            _ => Command::Write { span, fua },
        };
        if at_work.iter().any(|other| other.conflicts(command)) {
            return None;
        }
        let tag = match command {
            Command::Write { .. } => {
                self.next_tag += 1;
                self.next_tag
            }
            _ => 0,
        };
        Some((command, tag))
    }

    /// Bytes to send with a command. A compare sends what the first block may hold, everywhere.
    pub fn fill(&self, command: Command, tag: u64, buffer: &mut [u8]) {
        match command {
            Command::Write { span, .. } => {
                let len = usize::try_from(span.len().0).unwrap() * BLOCK;
                for word in buffer[..len].chunks_mut(8) {
                    word.copy_from_slice(&tag.to_le_bytes());
                }
            }
            Command::Compare { span } => {
                let start = usize::try_from(span.start().0).unwrap();
                for (at, block) in buffer.chunks_mut(BLOCK).enumerate() {
                    if at as u64 >= span.len().0 {
                        break;
                    }
                    let tag = self.blocks[start + at][0];
                    block.chunks_mut(8).for_each(|w| w.copy_from_slice(&tag.to_le_bytes()));
                }
            }
            _ => {}
        }
    }

    /// A command was carried out.
    pub fn done(&mut self, command: Command, tag: u64, buffer: &[u8]) {
        let Some(span) = command.span() else { return };
        for (at, lba) in (span.start().0..span.end().0).enumerate() {
            let known = &mut self.blocks[usize::try_from(lba).unwrap()];
            match command {
                Command::Read { .. } => {
                    let block = &buffer[at * BLOCK..(at + 1) * BLOCK];
                    let tag = u64::from_le_bytes(block[..8].try_into().unwrap());
                    assert!(
                        block.chunks(8).all(|word| word == tag.to_le_bytes()),
                        "block {lba} holds a mixture"
                    );
                    assert!(known.contains(&tag), "block {lba} holds {tag}, not of {known:?}");
                    *known = vec![tag];
                }
                Command::Compare { .. } => *known = vec![known[0]],
                Command::Write { .. } | Command::WriteZeroes { .. } | Command::Discard { .. } => {
                    *known = vec![tag];
                }
                Command::Flush => {}
            }
        }
    }

    /// Nobody knows whether a command was carried out.
    pub fn doubted(&mut self, command: Command, tag: u64) {
        let Some(span) = command.span().filter(|_| command.is_mutation()) else { return };
        for lba in span.start().0..span.end().0 {
            let known = &mut self.blocks[usize::try_from(lba).unwrap()];
            if !known.contains(&tag) {
                known.push(tag);
            }
        }
    }

    /// Whether a compare of this span must succeed.
    pub fn is_certain(&self, span: Span) -> bool {
        (span.start().0..span.end().0)
            .all(|lba| self.blocks[usize::try_from(lba).unwrap()].len() == 1)
    }
}

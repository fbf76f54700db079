//! Block commands as NVMe commands, and how large one may be.

use alloc::boxed::Box;

use block::{BlockSize, Blocks, Command, IoError, Lba, Span};
use zerocopy::IntoBytes;

use super::transfer::Data;
use crate::wire::{DsmRange, IoOpcode, Sqe, U32, U64};

/// How large one command to a namespace may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Read, write, compare.
    pub transfer: Blocks,
    /// Write zeroes, which moves no data.
    pub zeroes: Blocks,
    /// Discard.
    pub discard: Blocks,
}

impl Limits {
    /// What one command of this namespace can do at most, by the fields of the protocol alone.
    pub fn of_protocol(block_size: BlockSize) -> Limits {
        let nlb = Blocks(1 << 16);
        Limits { block_size, transfer: nlb, zeroes: nlb, discard: Blocks(u32::MAX.into()) }
    }

    /// Most blocks of such a command; a flush has none.
    pub fn most(self, command: Command) -> Option<Blocks> {
        match command {
            Command::Read { .. } | Command::Write { .. } | Command::Compare { .. } => {
                Some(self.transfer)
            }
            Command::WriteZeroes { .. } => Some(self.zeroes),
            Command::Discard { .. } => Some(self.discard),
            Command::Flush => None,
        }
    }

    /// The part of a command that fits, and what is left of it.
    pub fn split(self, command: Command) -> (Command, Option<Command>) {
        let (Some(span), Some(most)) = (command.span(), self.most(command)) else {
            return (command, None);
        };
        let first = Span::new(span.start(), span.len().min(most));
        let rest = first.and_then(|first| Span::between(first.end(), span.end()));
        let with = |span: Option<Span>| span.map(|span| with_span(command, span));
        (with(first).unwrap_or(command), with(rest))
    }
}

fn with_span(command: Command, span: Span) -> Command {
    match command {
        Command::Read { .. } => Command::Read { span },
        Command::Write { fua, .. } => Command::Write { span, fua },
        Command::Flush => Command::Flush,
        Command::Discard { .. } => Command::Discard { span },
        Command::WriteZeroes { fua, deallocate, .. } => {
            Command::WriteZeroes { span, fua, deallocate }
        }
        Command::Compare { .. } => Command::Compare { span },
    }
}

/// The NVMe command and its data; `Unsupported` if it is larger than one command can be.
pub(super) fn encode(command: Command, nsid: u32, limits: Limits) -> Result<(Sqe, Data), IoError> {
    if let (Some(span), Some(most)) = (command.span(), limits.most(command))
        && span.len() > most
    {
        return Err(IoError::Unsupported);
    }
    let opcode = match command {
        Command::Read { .. } => IoOpcode::Read,
        Command::Write { .. } => IoOpcode::Write,
        Command::Flush => IoOpcode::Flush,
        Command::Discard { .. } => IoOpcode::DatasetManagement,
        Command::WriteZeroes { .. } => IoOpcode::WriteZeroes,
        Command::Compare { .. } => IoOpcode::Compare,
    };
    let mut sqe = Sqe::new(opcode.code(), 0);
    sqe.nsid = U32::new(nsid);
    let data = match command {
        Command::Flush => Data::None,
        Command::Discard { span } => discard(&mut sqe, span)?,
        Command::Read { span } => Data::In { len: range(&mut sqe, span, 0, limits)? },
        Command::Compare { span } => Data::Out { len: range(&mut sqe, span, 0, limits)? },
        Command::Write { span, fua } => {
            Data::Out { len: range(&mut sqe, span, fua_bit(fua), limits)? }
        }
        Command::WriteZeroes { span, fua, deallocate } => {
            let deallocate = if deallocate { Sqe::CDW12_DEAC } else { 0 };
            range(&mut sqe, span, fua_bit(fua) | deallocate, limits)?;
            Data::None
        }
    };
    Ok((sqe, data))
}

fn fua_bit(fua: bool) -> u32 {
    if fua { Sqe::CDW12_FUA } else { 0 }
}

/// Sets the blocks; returns how many bytes they have.
fn range(sqe: &mut Sqe, span: Span, bits: u32, limits: Limits) -> Result<u32, IoError> {
    let nlb = span.len().to_nlb().ok_or(IoError::Unsupported)?;
    let Lba(start) = span.start();
    sqe.set_slba(start);
    sqe.cdw12 = U32::new(bits | u32::from(nlb));
    // 65536 blocks of 64 KiB would be one byte too many for the field.
    let bytes = limits.block_size.bytes_of(span.len()).and_then(|b| u32::try_from(b.0).ok());
    match (bytes, sqe.opcode == IoOpcode::WriteZeroes.code()) {
        (Some(bytes), _) => Ok(bytes),
        (None, true) => Ok(0),
        (None, false) => Err(IoError::Unsupported),
    }
}

fn discard(sqe: &mut Sqe, span: Span) -> Result<Data, IoError> {
    let nlb = u32::try_from(span.len().0).map_err(|_| IoError::Unsupported)?;
    let Lba(start) = span.start();
    let range = DsmRange { cattr: U32::ZERO, nlb: U32::new(nlb), slba: U64::new(start) };
    sqe.cdw11 = U32::new(Sqe::CDW11_DSM_AD);
    Ok(Data::OutOwned { bytes: Box::from(range.as_bytes()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(start: u64, len: u64) -> Span {
        Span::new(Lba(start), Blocks(len)).unwrap()
    }

    fn limits() -> Limits {
        Limits::of_protocol(BlockSize::B4096)
    }

    /// Dwords 0 and 10 to 13 of a command, as the specification lays them out.
    fn golden(command: Command) -> (u8, u32, [u32; 3]) {
        let (sqe, _) = encode(command, 7, limits()).unwrap();
        let bytes = sqe.as_bytes();
        let dword = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        (bytes[0], dword(4), [dword(40), dword(44), dword(48)])
    }

    #[test]
    fn commands_as_the_specification_lays_them_out() {
        let far = span(0x1_2345_6789, 256);
        let at = [0x2345_6789, 1];
        let fua = 1 << 30;
        let deac = 1 << 25;
        for (command, opcode, dwords) in [
            (Command::Read { span: far }, 0x02, [at[0], at[1], 255]),
            (Command::Write { span: far, fua: false }, 0x01, [at[0], at[1], 255]),
            (Command::Write { span: far, fua: true }, 0x01, [at[0], at[1], 255 | fua]),
            (Command::Compare { span: far }, 0x05, [at[0], at[1], 255]),
            (Command::Flush, 0x00, [0, 0, 0]),
            (Command::Discard { span: far }, 0x09, [0, 4, 0]),
            (
                Command::WriteZeroes { span: far, fua: true, deallocate: true },
                0x08,
                [at[0], at[1], 255 | fua | deac],
            ),
        ] {
            assert_eq!(golden(command), (opcode, 7, dwords), "{command:?}");
        }
    }

    #[test]
    fn a_discard_carries_one_range() {
        let (_, data) = encode(Command::Discard { span: span(5, 9) }, 1, limits()).unwrap();
        let Data::OutOwned { bytes } = data else { panic!() };
        assert_eq!(*bytes, [0, 0, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_too_large_is_refused_before_it_is_sent() {
        let too_large = Command::Read { span: span(0, 65_537) };
        assert_eq!(encode(too_large, 1, limits()).unwrap_err(), IoError::Unsupported);
        let large = Limits::of_protocol(BlockSize::new(65536).unwrap());
        let read = Command::Read { span: span(0, 65_536) };
        assert_eq!(encode(read, 1, large).unwrap_err(), IoError::Unsupported);
        let zeroes = Command::WriteZeroes { span: span(0, 65_536), fua: false, deallocate: true };
        assert!(encode(zeroes, 1, large).is_ok());
    }

    proptest! {
        #[test]
        fn parts_make_up_the_whole(start in 0u64..1000, len in 1u64..500, most in 1u64..100) {
            let limits = Limits { transfer: Blocks(most), ..limits() };
            let whole = Command::Write { span: span(start, len), fua: true };
            let mut at = start;
            let mut left = Some(whole);
            while let Some(command) = left {
                let (part, rest) = limits.split(command);
                let part = part.span().unwrap();
                prop_assert_eq!(part.start(), Lba(at));
                prop_assert!(part.len() <= Blocks(most));
                at = part.end().0;
                left = rest;
            }
            prop_assert_eq!(at, start + len);
        }
    }
}

//! A way between host and target that tears the stream into odd pieces, damages it or cuts it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

/// What happens on the way from the host to the target, or, `backwards`, on the way back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rough {
    /// Pieces are shorter than this.
    pub(crate) piece: usize,
    pub(crate) backwards: bool,
    /// The I/O queue is cut off after so many bytes.
    pub(crate) cut: Option<usize>,
    /// This byte of the I/O queue is turned around.
    pub(crate) damage: Option<usize>,
}

/// A way to `target` for one admin queue and one I/O queue after it.
pub(crate) fn way(target: SocketAddr, rough: Rough) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for is_io in [false, true] {
            let host = listener.accept().unwrap().0;
            let target = TcpStream::connect(target).unwrap();
            let smooth = Rough { cut: None, damage: None, ..rough };
            let rough = if is_io { rough } else { smooth };
            let (forth, back) = if rough.backwards { (smooth, rough) } else { (rough, smooth) };
            carry(&host, &target, forth);
            carry(&target, &host, back);
        }
    });
    address
}

fn carry(from: &TcpStream, to: &TcpStream, rough: Rough) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    to.set_nodelay(true).unwrap();
    std::thread::spawn(move || {
        let mut piece = vec![0; rough.piece];
        let mut moved = 0;
        for step in (1usize..).map(|step| step * 7919) {
            let len = 1 + step % rough.piece;
            let len = rough.cut.map_or(len, |cut| len.min(cut - moved));
            let Ok(got) = from.read(&mut piece[..len]) else { break };
            if let Some(at) = rough.damage.filter(|at| (moved..moved + got).contains(at)) {
                piece[at - moved] ^= 0xFF;
            }
            moved += got;
            // A length of zero says that this is where it is cut.
            if got == 0 || to.write_all(&piece[..got]).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

//! A replica on the core of its target: its block commands leave the stream out, not the fence.

use super::*;

/// A way that counts what travels on it.
fn counted(to: SocketAddr) -> (SocketAddr, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, count) = (listener.local_addr().unwrap(), Arc::new(AtomicU64::new(0)));
    let total = Arc::clone(&count);
    std::thread::spawn(move || {
        for here in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(to).unwrap();
            for (mut from, mut to) in [
                (here.try_clone().unwrap(), there.try_clone().unwrap()),
                (there.try_clone().unwrap(), here.try_clone().unwrap()),
            ] {
                let total = Arc::clone(&total);
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        total.fetch_add(u64::try_from(count).unwrap(), Ordering::Relaxed);
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                    }
                    // Whoever waits for more is told; it may know already.
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    (address, count)
}

#[test]
fn what_is_on_the_same_core_does_not_travel() {
    for local in [true, false] {
        let mut cluster = Cluster::new(1);
        let (through, travelled) = counted(cluster.nodes[0].address);
        cluster.nodes[0].through = through;
        cluster.nodes[0].is_near = local;
        let told = cluster.open(0, 200);
        await_news(&told, is_open);
        let mut session = cluster.connect(0);
        verify(&mut session, 8, 16);
        flush(&mut session);
        let travelled = travelled.load(Ordering::Relaxed);
        assert_eq!(travelled < 1 << 19, local, "{travelled} bytes");
        cluster.stop();
    }
}

/// One copy, on the core of its target: nothing but the fence of the copy stands between.
#[test]
fn what_is_on_the_same_core_is_fenced_like_the_rest() {
    let cluster = Cluster::new(1);
    let told = cluster.open(0, 200);
    await_news(&told, is_open);
    let mut host = cluster.connect(0);
    assert_eq!(write(&mut host, 1, 1), Ok(()));
    let replica = name(&model::Nqn::replica(cluster.nodes[0].replica));
    let copy = association(replica, Options::default());
    let mut other = Session::connect(cluster.nodes[0].address, copy).unwrap();
    let (none, old, new) = (Key(0), Key(1), Key(2));
    let (action, kind) = (RegisterAction::Replace, ReservationType::ExclusiveAccess);
    other.reserve(1, Reservation::Register { action, current: none, new, force: true }).unwrap();
    let action = AcquireAction::PreemptAndAbort;
    other.reserve(1, Reservation::Acquire { action, kind, current: new, preempt: old }).unwrap();
    let action = AcquireAction::Acquire;
    other.reserve(1, Reservation::Acquire { action, kind, current: new, preempt: none }).unwrap();
    assert!(write(&mut host, 1, 3).is_err());
    assert!(read(&mut host, 1).is_err());
    assert_eq!(read(&mut other, 1), Ok(1));
    cluster.stop();
}

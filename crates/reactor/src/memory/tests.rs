use super::*;

fn arena() -> Arena {
    Arena::new(&[Class { bytes: PAGE, count: 2 }, Class { bytes: 4 * PAGE, count: 1 }]).unwrap()
}

#[test]
fn exhausted_means_wait_not_fail() {
    let arena = arena();
    let one = arena.take(100).unwrap();
    let two = arena.take(PAGE).unwrap();
    let spill = arena.take(1).unwrap();
    assert_eq!(arena.free_bytes(), 0);
    assert!(arena.take(1).is_none() && arena.take(2 * PAGE).is_none());
    drop(spill);
    assert!(arena.take(2 * PAGE).is_some());
    drop((one, two));
    assert_eq!(arena.free_bytes(), arena.bytes());
    assert!(arena.take(5 * PAGE).is_none(), "no class is that large");
}

#[test]
fn every_buffer_starts_on_a_page() {
    let arena = arena();
    for bytes in [1, PAGE, 3 * PAGE] {
        let mut buffer = arena.take(bytes).unwrap();
        assert_eq!(buffer.as_mut_ptr().addr() % PAGE, 0);
        assert_eq!(buffer.len(), bytes);
        assert!(arena.holds(buffer.as_ptr()));
    }
    assert!(!arena.holds(core::ptr::null()));
}

#[test]
fn a_slot_comes_back_with_its_last_piece() {
    let arena = Arena::new(&[Class { bytes: PAGE, count: 1 }]).unwrap();
    let mut head = arena.take(10).unwrap();
    head.copy_from_slice(b"0123456789");
    let tail = head.split_off(4).unwrap();
    assert_eq!((&*head, &*tail), (&b"0123"[..], &b"456789"[..]));
    assert!(head.split_off(5).is_none());
    let shared = tail.freeze();
    let part = shared.part(2, 3).unwrap();
    assert_eq!(&*part, b"678");
    assert!(shared.part(4, 3).is_none() && shared.part(usize::MAX, 2).is_none());
    drop((head, shared));
    assert!(arena.take(1).is_none());
    drop(part);
    assert!(arena.take(1).is_some());
}

#[test]
fn only_the_sole_owner_writes_again() {
    let arena = arena();
    let first = arena.take(10).unwrap().freeze();
    let second = first.clone();
    let first = first.thaw().unwrap_err();
    drop(second);
    let mut thawed = first.thaw().unwrap();
    thawed.fill(1);
}

#[test]
fn senseless_classes_are_refused() {
    for classes in [
        &[][..],
        &[Class { bytes: 100, count: 1 }],
        &[Class { bytes: PAGE, count: 0 }],
        &[Class { bytes: 2 * PAGE, count: 1 }, Class { bytes: PAGE, count: 1 }],
        &[Class { bytes: 1 << 29, count: 3 }],
        &[Class { bytes: PAGE, count: u32::MAX }],
    ] {
        assert!(matches!(Arena::new(classes), Err(ArenaError::Classes { .. })), "{classes:?}");
    }
}

#[test]
fn buffers_travel_between_threads() {
    let arena = arena();
    let mut buffer = arena.take(8).unwrap();
    buffer.fill(7);
    let sum = std::thread::spawn(move || buffer.iter().map(|b| u32::from(*b)).sum::<u32>());
    assert_eq!(sum.join().unwrap(), 56);
    assert_eq!(arena.free_bytes(), arena.bytes());
}

#[test]
fn neighbours_join_and_strangers_do_not() {
    let arena = Arena::new(&[Class { bytes: PAGE, count: 2 }]).unwrap();
    let mut head = arena.take(10).unwrap();
    head.copy_from_slice(b"0123456789");
    let mut middle = head.split_off(3).unwrap();
    let tail = middle.split_off(3).unwrap();
    let (head, tail) = head.join(tail).unwrap_err();
    let whole = head.join(middle).unwrap().join(tail).unwrap();
    assert_eq!(&*whole, b"0123456789");
    let stranger = arena.take(1).unwrap();
    let (whole, stranger) = whole.join(stranger).unwrap_err();
    drop((whole, stranger));
    assert_eq!(arena.free_bytes(), arena.bytes());
}

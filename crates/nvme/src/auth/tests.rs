//! Both sides against each other, and each against a liar.

use alloc::format;
use alloc::string::ToString;
use alloc::vec;
use alloc::vec::Vec;

use super::message::{FromController, FromHost};
use super::*;
use proptest::prelude::*;

fn secret(fill: u8, bound_with: Option<Hash>) -> Secret {
    Secret::new(&[fill; 48], bound_with).unwrap()
}

fn entropy(fill: u8) -> Entropy {
    let mut random = [fill; Entropy::LEN];
    for (at, byte) in (0u8..).zip(random.iter_mut()) {
        *byte = byte.wrapping_add(at.wrapping_mul(31));
    }
    Entropy::new(&mut random, Sequence::starting_at(u32::from(fill)).advance())
}

fn names() -> Names {
    Names { host: "nqn.2014-08.org:host".to_string(), subsystem: "nqn.2014-08.org:sub".to_string() }
}

fn only(hash: Hash, group: Group) -> Accepted {
    Accepted { hashes: vec![hash], groups: vec![group] }
}

fn keys(host: u8, controller: Option<u8>) -> Keys {
    Keys {
        host: secret(host, Some(Hash::Sha256)),
        controller: controller.map(|fill| secret(fill, None)),
    }
}

fn host(keys: Keys, accepted: Accepted) -> HostSide {
    HostSide::new(names(), keys, accepted, entropy(3))
}

fn controller(keys: Keys, accepted: Accepted) -> ControllerSide {
    ControllerSide::new(names(), keys, accepted)
}

/// Runs an exchange; `tamper` sees every message on its way, from the host or from the controller.
fn run_with(
    host: &mut HostSide,
    controller: &mut ControllerSide,
    mut tamper: impl FnMut(usize, &mut Vec<u8>),
) -> (Step, Vec<Vec<u8>>) {
    let mut seen = Vec::new();
    let mut step = host.on(Event::Begin);
    for at in 0..8 {
        step = match step {
            Step::Send(mut message) => {
                tamper(at, &mut message);
                seen.push(message.clone());
                controller.on_send(&message, entropy(9));
                host.on(Event::Sent)
            }
            Step::Receive { room } => {
                let room = usize::try_from(room).unwrap();
                let mut message = controller.on_receive(room).unwrap();
                tamper(at, &mut message);
                seen.push(message.clone());
                message.resize(room, 0);
                host.on(Event::Received(&message))
            }
            done => return (done, seen),
        };
    }
    panic!("the exchange does not end: {step:?}")
}

fn run(host: &mut HostSide, controller: &mut ControllerSide) -> Step {
    run_with(host, controller, |_, _| ()).0
}

#[test]
fn every_hash_and_group_in_both_directions() {
    for hash in Hash::ALL {
        for group in Group::ALL {
            // The large groups are slow without optimisation; one hash shows that they work.
            if group > Group::Ffdhe3072 && hash != Hash::Sha512 {
                continue;
            }
            for proof in [None, Some(5)] {
                let mut host = host(keys(1, proof), only(hash, group));
                let mut controller = controller(keys(1, Some(5)), Accepted::default());
                assert!(!controller.is_authenticated());
                let step = run(&mut host, &mut controller);
                assert_eq!(step, Step::Authenticated, "{hash:?} {group:?} {proof:?}");
                assert!(controller.is_authenticated());
                assert_eq!(controller.failure(), None);
            }
        }
    }
}

#[test]
fn the_controllers_preference_wins() {
    let accepted = Accepted {
        hashes: vec![Hash::Sha384, Hash::Sha512],
        groups: vec![Group::Ffdhe2048, Group::Null],
    };
    let mut host = host(keys(1, None), Accepted::default());
    let mut controller = controller(keys(1, None), accepted);
    let (step, seen) = run_with(&mut host, &mut controller, |_, _| ());
    assert_eq!(step, Step::Authenticated);
    let Ok(FromController::Challenge(challenge)) = FromController::parse(&seen[1]) else {
        panic!()
    };
    assert_eq!((challenge.hash, challenge.group), (Hash::Sha384, Group::Ffdhe2048));
}

#[test]
fn wrong_secrets_are_refused_on_both_sides() {
    for group in [Group::Null, Group::Ffdhe2048] {
        for (told_host, told_controller) in [
            (keys(1, None), keys(2, None)),
            (keys(1, Some(5)), keys(1, Some(6))),
            // The host wants proof, but the controller has no secret to give it with.
            (keys(1, Some(5)), keys(1, None)),
        ] {
            let mut host = host(told_host, only(Hash::Sha256, group));
            let mut controller = controller(told_controller, Accepted::default());
            assert_eq!(run(&mut host, &mut controller), Step::Failed(Reason::Failed));
            assert!(!controller.is_authenticated());
            assert_eq!(controller.failure(), Some(Reason::Failed));
        }
    }
}

/// While a secret is replaced, both sides meet with either of the two.
#[test]
fn a_controller_takes_the_keys_before_and_after_a_rotation() {
    let accepted = only(Hash::Sha256, Group::Null);
    for (proves, is_right) in [(1, true), (2, true), (3, false)] {
        let mut host = host(keys(proves, Some(proves + 4)), accepted.clone());
        let mut controller = controller(keys(1, Some(5)), Accepted::default()).or(keys(2, Some(6)));
        let step = run(&mut host, &mut controller);
        assert_eq!(step == Step::Authenticated, is_right, "{proves}: {step:?}");
        assert_eq!(controller.is_authenticated(), is_right);
        assert_eq!(controller.rejection().is_none(), is_right);
    }
    // It answers with the keys that the host proved, not with the other ones.
    let mut mixed = host(keys(1, Some(6)), accepted);
    let mut controller = controller(keys(1, Some(5)), Accepted::default()).or(keys(2, Some(6)));
    assert_eq!(run(&mut mixed, &mut controller), Step::Failed(Reason::Failed));
}

#[test]
fn names_are_part_of_the_proof() {
    let mut other = names();
    other.host.push('x');
    let accepted = only(Hash::Sha256, Group::Null);
    let mut host = HostSide::new(other, keys(1, None), accepted, entropy(3));
    let mut controller = controller(keys(1, None), Accepted::default());
    assert_eq!(run(&mut host, &mut controller), Step::Failed(Reason::Failed));
}

#[test]
fn nothing_in_common() {
    let mut weak = host(keys(1, None), only(Hash::Sha256, Group::Null));
    let mut strict = controller(keys(1, None), only(Hash::Sha512, Group::Null));
    assert_eq!(run(&mut weak, &mut strict), Step::Failed(Reason::HashUnusable));
    let mut weak = host(keys(1, None), only(Hash::Sha512, Group::Null));
    let mut strict = controller(keys(1, None), only(Hash::Sha512, Group::Ffdhe2048));
    assert_eq!(run(&mut weak, &mut strict), Step::Failed(Reason::GroupUnusable));
    assert_eq!(strict.failure(), Some(Reason::GroupUnusable));
}

#[test]
fn a_host_refuses_what_it_did_not_offer() {
    let mut strict = host(keys(1, None), only(Hash::Sha512, Group::Ffdhe2048));
    let mut lax = controller(keys(1, None), Accepted::default());
    // Somebody on the way makes the host look as if it offered no group.
    let (step, _) = run_with(&mut strict, &mut lax, |at, message| {
        if at == 0 {
            message[42] = Group::Null.id();
        }
    });
    assert_eq!(step, Step::Failed(Reason::GroupUnusable));
    assert_eq!(lax.failure(), Some(Reason::GroupUnusable));
}

#[test]
fn a_controller_cannot_leave_out_its_proof() {
    let mut host = host(keys(1, Some(5)), only(Hash::Sha256, Group::Null));
    let mut controller = controller(keys(1, Some(5)), Accepted::default());
    let (step, seen) = run_with(&mut host, &mut controller, |at, message| {
        if at == 3 {
            message[8] = 0;
        }
    });
    assert_eq!(step, Step::Failed(Reason::Failed));
    assert!(matches!(FromHost::parse(&seen[4]), Ok(FromHost::Failure2 { .. })));
    assert!(!controller.is_authenticated());
}

#[test]
fn a_small_buffer_changes_nothing() {
    let mut controller = controller(keys(1, None), Accepted::default());
    let mut host = host(keys(1, None), only(Hash::Sha256, Group::Null));
    let Step::Send(message) = host.on(Event::Begin) else { panic!() };
    controller.on_send(&message, entropy(9));
    assert_eq!(controller.on_receive(47), Err(NoRoom { needed: 48 }));
    let challenge = controller.on_receive(48).unwrap();
    host.on(Event::Sent);
    assert!(matches!(host.on(Event::Received(&challenge)), Step::Send(_)));
}

#[test]
fn messages_out_of_order_end_the_exchange() {
    let mut asked_first = controller(keys(1, None), Accepted::default());
    let message = asked_first.on_receive(64).unwrap();
    let reason = Reason::IncorrectMessage;
    assert_eq!(
        FromController::parse(&message),
        Ok(FromController::Failure1 { transaction: 0, reason })
    );
    assert_eq!(asked_first.failure(), Some(reason));
    // Over is over.
    let Step::Send(negotiate) = host(keys(1, None), Accepted::default()).on(Event::Begin) else {
        panic!()
    };
    asked_first.on_send(&negotiate, entropy(9));
    assert_eq!(asked_first.failure(), Some(reason));

    let mut early = controller(keys(1, None), Accepted::default());
    early.on_send(&FromHost::Success2 { transaction: 0 }.encode(), entropy(9));
    assert!(!early.is_authenticated());
    early.on_receive(64).unwrap();
    assert_eq!(early.failure(), Some(reason));
}

#[test]
fn concatenation_is_refused() {
    let mut host = host(keys(1, None), Accepted::default());
    let mut controller = controller(keys(1, None), Accepted::default());
    let (step, _) = run_with(&mut host, &mut controller, |at, message| {
        if at == 0 {
            message[6] = 2;
        }
    });
    assert_eq!(step, Step::Failed(Reason::ConcatenationMismatch));
}

#[test]
fn a_host_may_authenticate_again() {
    let mut controller = controller(keys(1, None), only(Hash::Sha256, Group::Null));
    for _ in 0..2 {
        let mut host = host(keys(1, None), Accepted::default());
        assert_eq!(run(&mut host, &mut controller), Step::Authenticated);
        assert!(controller.is_authenticated());
    }
    let mut wrong = host(keys(2, None), Accepted::default());
    assert_eq!(run(&mut wrong, &mut controller), Step::Failed(Reason::Failed));
    assert!(!controller.is_authenticated());
}

#[test]
fn printing_shows_no_secret() {
    let mut host = host(keys(0xAB, Some(0xAB)), only(Hash::Sha256, Group::Null));
    let mut controller = controller(keys(0xAB, Some(0xAB)), Accepted::default());
    run(&mut host, &mut controller);
    for text in [format!("{host:?}"), format!("{controller:?}")] {
        assert!(!text.contains("171") && !text.contains("ab, "), "{text}");
    }
}

proptest! {
    /// One flipped bit after the offer, which is not signed, never authenticates both sides.
    #[test]
    fn tampering_never_succeeds(at in 1usize..5, byte in 0usize..80, bit in 0u8..8) {
        let mut host = host(keys(1, Some(5)), only(Hash::Sha256, Group::Null));
        let mut controller = controller(keys(1, Some(5)), Accepted::default());
        let mut changed = false;
        let (step, _) = run_with(&mut host, &mut controller, |now, message| {
            // Bytes that the layouts reserve may differ.
            let reserved = matches!((now, byte), (_, 2 | 3) | (1..=3, 7) | (2, 9))
                || (now == 3 && (9..16).contains(&byte)) || (now == 4 && byte >= 6);
            if now == at && byte < message.len() && !reserved {
                message[byte] ^= 1 << bit;
                changed = true;
            }
        });
        prop_assert_eq!(step == Step::Authenticated && controller.is_authenticated(), !changed);
    }

    #[test]
    fn any_bytes_are_survived(messages in proptest::collection::vec(
        (any::<bool>(), proptest::collection::vec(0u8..5, 0..100)), 0..12,
    )) {
        let mut controller = controller(keys(1, None), only(Hash::Sha256, Group::Null));
        let mut host = host(keys(1, None), only(Hash::Sha256, Group::Null));
        host.on(Event::Begin);
        for (send, message) in &messages {
            if *send {
                controller.on_send(message, entropy(9));
                host.on(Event::Sent);
            } else {
                let _ = controller.on_receive(message.len());
                host.on(Event::Received(message));
            }
        }
        prop_assert!(!controller.is_authenticated());
    }
}

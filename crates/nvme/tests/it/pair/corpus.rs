//! The corpus of the fuzzers, and random changes of it, without a fuzzer.

use std::fs;
use std::path::{Path, PathBuf};

use nvme::initiator::{AdminEvent, IoEvent, testing};

use super::net::{Dice, seeds};

type Drive = fn(&[u8]);

#[test]
fn controllers_that_send_anything_are_survived() {
    let targets: [(&str, Drive); 3] = [
        ("nvme_host_io", |input| drop(testing::io(input))),
        ("nvme_host_admin", |input| drop(testing::admin(input))),
        ("nvme_host_structures", testing::structures),
    ];
    for (name, drive) in targets {
        let mut inputs = vec![Vec::new()];
        for entry in fs::read_dir(corpus().join(name)).expect(name) {
            inputs.push(fs::read(entry.unwrap().path()).unwrap());
        }
        assert!(inputs.len() > 2, "{name} has hardly a corpus");
        for (at, input) in inputs.iter().enumerate() {
            drive(input);
            let mut dice = Dice::new(u64::try_from(at).unwrap());
            for _ in seeds(200) {
                drive(&changed(input, &mut dice));
            }
        }
    }
}

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

#[test]
fn the_seeds_reach_what_they_are_for() {
    let seed = |name: &str| fs::read(corpus().join(name)).expect(name);
    let told = testing::io(&seed("nvme_host_io/answers"));
    let good = |event: &&IoEvent| {
        matches!(
            event,
            IoEvent::Done { result: Ok(()), .. } | IoEvent::Reported { result: Ok(_), .. }
        )
    };
    assert_eq!(told.iter().filter(good).count(), 5, "{told:?}");
    let told = testing::admin(&seed("nvme_host_admin/up"));
    assert!(matches!(told[..], [AdminEvent::Ready { .. }, AdminEvent::Lost(_)]), "{told:?}");
    let told = testing::admin(&seed("nvme_host_admin/events"));
    assert!(told.iter().any(|event| matches!(event, AdminEvent::Ana(_))), "{told:?}");
}

fn changed(input: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.index(bytes.len() + 1);
        let value = u8::try_from(dice.below(256)).unwrap();
        match (dice.below(4), bytes.get_mut(at)) {
            (0, _) => bytes.insert(at, value),
            (1, Some(_)) => drop(bytes.remove(at)),
            (_, Some(byte)) => *byte = value,
            (_, None) => bytes.push(value),
        }
    }
    bytes
}

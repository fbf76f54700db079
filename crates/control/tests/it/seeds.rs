//! Random wishes, random failures of nodes, effects in random order, and crashes, from a seed.

use std::time::Duration;

use control::core::Wish;
use control::testing::{Fault, Sim};
use model::*;

use crate::world::*;

/// How many seeds are tried.
const SEEDS: u64 = 60;

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888);
        (self.0 >> 33) % sides
    }

    fn small(&mut self, sides: u32) -> u32 {
        u32::try_from(self.roll(sides.into())).unwrap()
    }
}

fn wish(dice: &mut Dice) -> Wish {
    let number = dice.small(4) + 1;
    let id = volume(number);
    match dice.roll(12) {
        0..=2 => create(number, u8::try_from(dice.roll(3) + 1).unwrap()),
        3 | 4 => publish(number),
        5 => unpublish(number),
        6 => Wish::DeleteVolume(id),
        7 => Wish::SetReplicas { volume: id, replicas: u8::try_from(dice.roll(3) + 1).unwrap() },
        8 => Wish::Resize { volume: id, size: Size::gib(1 + dice.small(4)) },
        9 => take(dice.small(3) + 1, number),
        10 => Wish::DeleteSnapshot(snapshot(dice.small(3) + 1)),
        _ => Wish::Republish { volume: id, node: None },
    }
}

fn live(seed: u64) {
    let mut dice = Dice(seed);
    let mut sim: Sim = cluster(4);
    sim.seed = seed;
    let mut down: Option<String> = None;
    for _ in 0..25 {
        match dice.roll(8) {
            0 => {
                if let Some(name) = down.take() {
                    sim.cluster.engine(&name).start();
                } else {
                    let name = format!("n{}", dice.roll(4) + 1);
                    sim.cluster.engine(&name).stop();
                    down = Some(name);
                }
                sim.cluster.settle();
            }
            1 => {
                let at = usize::try_from(dice.roll(6)).unwrap() + 1;
                let fault = Fault::ALL[usize::try_from(dice.roll(6)).unwrap()];
                sim.fault = Some((sim.done + at, fault));
            }
            2 => sim.pass(Duration::from_secs(dice.roll(40))),
            _ => {
                let wish = wish(&mut dice);
                // Some callers wait, others do not.
                if dice.roll(2) == 0 {
                    drop(sim.insist(&wish));
                } else {
                    sim.ask(wish);
                }
            }
        }
    }
    if let Some(name) = down {
        sim.cluster.engine(&name).start();
    }
    sim.fault = None;
    sim.pass(Duration::from_mins(5));
    settle(&mut sim);
}

#[test]
fn whatever_happens_the_cluster_comes_to_rest_whole() {
    for seed in 1..=SEEDS {
        let lived = std::panic::catch_unwind(|| live(seed));
        if let Err(panic) = lived {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

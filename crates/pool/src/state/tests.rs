//! The state against a model: plain vectors of stamps.

use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use block::Blocks;
use proptest::collection::vec as vec_of;
use proptest::prelude::*;

use super::*;
use crate::bits::Run;
use crate::entity::{EntityKind, Label};

const SIZE: u64 = 64;

pub(crate) fn entity(id: u128, origin: u128, layer: u32, size: u64) -> Entity {
    Entity {
        id: Id(id),
        origin: Id(origin),
        kind: EntityKind::Replica,
        layer: LayerId(layer),
        size: Blocks(size),
        thick: false,
        created: 0,
        label: Label::default(),
        key: Vec::new(),
        share: Vec::new(),
        spec_backup: Vec::new(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create { size: u64 },
    Write { who: usize, start: u64, len: u64 },
    Discard { who: usize, start: u64, len: u64 },
    Snapshot { who: usize },
    Clone { who: usize, size: u64 },
    Resize { who: usize, size: u64 },
    Delete { who: usize },
}

fn steps() -> impl Strategy<Value = Step> {
    let size = 1u64..300;
    let start = 0u64..300;
    let len = prop_oneof![3 => 1u64..8, 1 => 1u64..200];
    prop_oneof![
        1 => size.clone().prop_map(|size| Step::Create { size }),
        8 => (any::<usize>(), start.clone(), len.clone())
            .prop_map(|(who, start, len)| Step::Write { who, start, len }),
        3 => (any::<usize>(), start, len)
            .prop_map(|(who, start, len)| Step::Discard { who, start, len }),
        2 => any::<usize>().prop_map(|who| Step::Snapshot { who }),
        2 => (any::<usize>(), size.clone()).prop_map(|(who, size)| Step::Clone { who, size }),
        1 => (any::<usize>(), size).prop_map(|(who, size)| Step::Resize { who, size }),
        2 => any::<usize>().prop_map(|who| Step::Delete { who }),
    ]
}

struct Bench {
    state: State,
    medium: BTreeMap<u64, u64>,
    model: BTreeMap<Id, Vec<u64>>,
    next: u64,
}

impl Bench {
    fn new() -> Bench {
        let size = ClusterSize::of_blocks(SIZE).unwrap();
        Bench {
            state: State::new(size, 60, 1 << 20),
            medium: BTreeMap::new(),
            model: BTreeMap::new(),
            next: 1,
        }
    }

    fn stamp(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn pick(&self, who: usize, kind: EntityKind) -> Option<Entity> {
        let all: Vec<_> = self.state.entities.values().filter(|e| e.kind == kind).collect();
        (!all.is_empty()).then(|| all[who % all.len()].clone())
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Create { size } => {
                let id = u128::from(self.stamp());
                let layer = self.state.next_layer;
                self.state.create(entity(id, 0, layer, size)).unwrap();
                self.model.insert(Id(id), vec![0; size as usize]);
            }
            Step::Write { who, start, len } => {
                let Some(to) = self.pick(who, EntityKind::Replica) else { return };
                for block in start..(start + len).min(to.size.0) {
                    self.write(&to, block);
                }
            }
            Step::Discard { who, start, len } => {
                let Some(to) = self.pick(who, EntityKind::Replica) else { return };
                let end = (start + len).min(to.size.0);
                if start < end {
                    self.state.discard(to.layer, start..end);
                    let model = self.model.get_mut(&to.id).unwrap();
                    model[start as usize..end as usize].fill(0);
                }
            }
            Step::Snapshot { who } => {
                let Some(of) = self.pick(who, EntityKind::Replica) else { return };
                let id = u128::from(self.stamp());
                let top = LayerId(self.state.next_layer);
                self.state.snapshot(of.id, top, entity(id, 0, 1, 1)).unwrap();
                self.model.insert(Id(id), self.model[&of.id].clone());
            }
            Step::Clone { who, size } => {
                let Some(of) = self.pick(who, EntityKind::Snapshot) else { return };
                let id = u128::from(self.stamp());
                let layer = self.state.next_layer;
                self.state.create(entity(id, of.id.0, layer, size)).unwrap();
                let mut content = self.model[&of.id].clone();
                content.resize(size as usize, 0);
                self.model.insert(Id(id), content);
            }
            Step::Resize { who, size } => {
                let Some(to) = self.pick(who, EntityKind::Replica) else { return };
                self.state.resize(to.id, Blocks(size)).unwrap();
                while let Some(window) = self.state.untrimmed(to.layer) {
                    let end = self.state.window_end(window);
                    self.state.discard(to.layer, self.state.window_start(window)..end);
                }
                self.model.get_mut(&to.id).unwrap().resize(size as usize, 0);
            }
            Step::Delete { who } => {
                let kind = if who % 2 == 0 { EntityKind::Replica } else { EntityKind::Snapshot };
                let Some(gone) = self.pick(who / 2, kind) else { return };
                self.state.delete(gone.id).unwrap();
                self.model.remove(&gone.id);
                while let Some(layer) = self.state.collapsible(&BTreeSet::new()) {
                    self.state.collapse(layer).unwrap();
                }
            }
        }
        self.state.cleared.clear();
        while let Some(cluster) = self.state.freed.pop() {
            self.state.space.release(cluster);
        }
    }

    fn write(&mut self, to: &Entity, block: u64) {
        let (logical, inside) = ((block / SIZE) as u32, (block % SIZE) as u16);
        let run = Run { first: inside, len: 1 };
        let own = self.state.layers[&to.layer].map.get(&logical).map(|entry| entry.says(inside));
        let cluster = if let Some(crate::map::BlockState::At(cluster)) = own {
            cluster
        } else {
            let entry = self.state.layers[&to.layer].map.get(&logical);
            let vacant = entry.and_then(|entry| entry.vacant(inside));
            let Some(cluster) = vacant.or_else(|| {
                self.state.may_allocate(to.layer, 1).then(|| self.state.space.take_any())?
            }) else {
                return;
            };
            self.state.pin(to.layer, logical, cluster);
            self.state.make_valid(to.layer, logical, cluster, run);
            self.state.unpin(to.layer, logical, cluster);
            cluster
        };
        let stamp = self.stamp();
        self.medium.insert(u64::from(cluster.0) * SIZE + u64::from(inside), stamp);
        self.model.get_mut(&to.id).unwrap()[block as usize] = stamp;
    }

    fn compare(&mut self) {
        self.state.check();
        let mut pieces = Vec::new();
        for (id, model) in &self.model {
            let layer = self.state.entities[id].layer;
            let mut found = Vec::new();
            for logical in 0..(model.len() as u64).div_ceil(SIZE) {
                let run = Run::of(0..SIZE);
                self.state.pieces(layer, logical as u32, run, &mut pieces);
                for piece in &pieces {
                    for block in piece.run.blocks() {
                        assert_eq!(self.state.find(layer, logical as u32, block), piece.at);
                        found.push(piece.at.map_or(0, |cluster| {
                            self.medium[&(u64::from(cluster.0) * SIZE + u64::from(block))]
                        }));
                    }
                }
            }
            found.truncate(model.len());
            assert_eq!(&found, model, "{id:?}");
            let written = self.state.written(layer, (0, model.len() as u64), 10_000);
            let listed: u64 = written.iter().map(|(from, to)| to - from).sum();
            assert_eq!(listed, model.iter().filter(|stamp| **stamp != 0).count() as u64);
        }
    }

    /// Changed ranges between all pairs cover exactly what differs.
    fn compare_changes(&mut self) {
        let ids: Vec<_> = self.model.keys().copied().collect();
        for (a, b) in ids.iter().flat_map(|a| ids.iter().map(move |b| (*a, *b))) {
            let (old, new) = (&self.model[&a], &self.model[&b]);
            let len = old.len().min(new.len());
            let layer = |id| self.state.entities[&id].layer;
            let (older, newer) = (layer(a), layer(b));
            let listed = self.state.changed(older, newer, (0, len as u64));
            for block in 0..len {
                let in_list =
                    listed.iter().any(|(from, to)| (*from..*to).contains(&(block as u64)));
                assert_eq!(in_list, old[block] != new[block], "block {block} of {a:?} {b:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn any_history_matches_the_model(steps in vec_of(steps(), 1..80)) {
        let mut bench = Bench::new();
        bench.step(&Step::Create { size: 200 });
        for step in &steps {
            bench.step(step);
            bench.compare();
        }
        bench.compare_changes();
        let ids: Vec<_> = bench.model.keys().copied().collect();
        for id in ids {
            bench.state.delete(id).unwrap();
        }
        while let Some(layer) = bench.state.collapsible(&BTreeSet::new()) {
            bench.state.collapse(layer).unwrap();
        }
        while let Some(cluster) = bench.state.freed.pop() {
            bench.state.space.release(cluster);
        }
        prop_assert_eq!(bench.state.space.free(), 60);
        prop_assert_eq!(bench.state.meta_bytes, 0);
    }
}

#[test]
fn a_thick_replica_keeps_its_space_from_others() {
    let size = ClusterSize::of_blocks(SIZE).unwrap();
    let mut state = State::new(size, 10, 1 << 20);
    state.create(Entity { thick: true, ..entity(1, 0, 1, SIZE * 8) }).unwrap();
    state.create(entity(2, 0, 2, SIZE * 10)).unwrap();
    for logical in 0..2 {
        assert!(state.may_allocate(LayerId(2), 1));
        let cluster = state.space.take_any().unwrap();
        state.pin(LayerId(2), logical, cluster);
    }
    assert!(!state.may_allocate(LayerId(2), 1));
    assert!(state.may_allocate(LayerId(1), 8));
}

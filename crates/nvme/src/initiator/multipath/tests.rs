//! Decisions of the multipath machine, alone and against a random world.

use alloc::collections::BTreeMap;
use alloc::vec;
use alloc::vec::Vec;

use block::{Blocks, Lba, Span};
use proptest::prelude::*;

use super::*;

const A: PathId = PathId(1);
const B: PathId = PathId(2);

fn policy() -> Policy {
    Policy { requests: 8, ..Policy::default() }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn at(millis: u64) -> Instant {
    Instant::since_start(ms(millis))
}

fn write() -> Command {
    Command::Write { span: Span::new(Lba(0), Blocks(1)).unwrap(), fua: false }
}

fn effects(paths: &mut Multipath) -> Vec<Effect> {
    core::iter::from_fn(|| paths.poll_effect()).collect()
}

fn live(slots: u32, ana: AnaState) -> PathEvent {
    PathEvent::Live { slots, ana }
}

/// Both paths live, with the given states and two slots each.
fn pair(policy: Policy, a: AnaState, b: AnaState) -> Multipath {
    let mut paths = Multipath::new(policy);
    for (id, ana) in [(A, a), (B, b)] {
        paths.add(at(0), id, false);
        paths.on(at(0), id, live(2, ana));
    }
    assert_eq!(effects(&mut paths), [Effect::Connect(A), Effect::Connect(B)]);
    paths
}

fn sent(effects: &[Effect]) -> Vec<(PathId, u32)> {
    let pick = |effect: &Effect| match effect {
        Effect::Send { path, request, .. } => Some((*path, request.0)),
        _ => None,
    };
    effects.iter().filter_map(pick).collect()
}

fn submit(paths: &mut Multipath, now: u64, id: u32) -> Vec<Effect> {
    paths.submit(at(now), RequestId(id), write()).unwrap();
    effects(paths)
}

fn end(paths: &mut Multipath, now: u64, id: u32, result: Completion) -> Vec<Effect> {
    paths.ended(at(now), Ended { request: RequestId(id), result });
    effects(paths)
}

fn done(id: u32, result: Completion) -> Effect {
    Effect::Complete { request: RequestId(id), result }
}

#[test]
fn the_optimized_path_is_taken_and_never_spilled_over() {
    let mut paths = pair(policy(), AnaState::NonOptimized, AnaState::Optimized);
    assert_eq!(sent(&submit(&mut paths, 0, 0)), [(B, 0)]);
    assert_eq!(sent(&submit(&mut paths, 0, 1)), [(B, 1)]);
    // B is full, A is worse: wait.
    assert_eq!(submit(&mut paths, 0, 2), []);
    assert_eq!(paths.held(), 1);
    let after = end(&mut paths, 1, 0, Ok(()));
    assert_eq!(after[0], done(0, Ok(())));
    assert_eq!(sent(&after), [(B, 2)]);
    // When B turns bad, A takes over.
    paths.on(at(2), B, PathEvent::Ana(AnaState::Inaccessible));
    assert_eq!(sent(&submit(&mut paths, 2, 0)), [(A, 0)]);
}

#[test]
fn near_paths_and_quick_paths_are_preferred() {
    let mut paths = Multipath::new(policy());
    paths.add(at(0), A, false);
    paths.add(at(0), B, true);
    for id in [A, B] {
        paths.on(at(0), id, live(8, AnaState::Optimized));
    }
    effects(&mut paths);
    assert_eq!(sent(&submit(&mut paths, 0, 0)), [(B, 0)], "near");

    let mut paths = pair(policy(), AnaState::Optimized, AnaState::Optimized);
    assert_eq!(sent(&submit(&mut paths, 0, 0)), [(A, 0)]);
    end(&mut paths, 50, 0, Ok(()));
    assert_eq!(sent(&submit(&mut paths, 50, 0)), [(B, 0)], "not yet measured");
    end(&mut paths, 51, 0, Ok(()));
    assert_eq!(sent(&submit(&mut paths, 51, 0)), [(B, 0)], "quicker");
    assert_eq!(sent(&submit(&mut paths, 51, 1)), [(B, 1)], "still quicker with one more");
}

#[test]
fn a_full_path_does_not_hold_up_one_that_is_as_good() {
    let mut paths = Multipath::new(policy());
    paths.add(at(0), A, true);
    paths.add(at(0), B, false);
    paths.on(at(0), A, live(1, AnaState::Optimized));
    paths.on(at(0), B, live(1, AnaState::Optimized));
    effects(&mut paths);
    assert_eq!(sent(&submit(&mut paths, 0, 0)), [(A, 0)]);
    assert_eq!(sent(&submit(&mut paths, 0, 1)), [(B, 1)]);
}

#[test]
fn what_a_lost_path_had_goes_by_another() {
    let mut paths = pair(policy(), AnaState::Optimized, AnaState::NonOptimized);
    assert_eq!(sent(&submit(&mut paths, 0, 0)), [(A, 0)]);
    paths.on(at(1), A, PathEvent::Lost);
    assert_eq!(effects(&mut paths), []);
    assert_eq!(sent(&end(&mut paths, 1, 0, Err(IoError::Unreachable))), [(B, 0)]);
    assert_eq!(end(&mut paths, 2, 0, Ok(())), [done(0, Ok(()))]);
}

#[test]
fn only_faults_of_the_path_are_retried() {
    let span = write().span().unwrap();
    for fault in [IoError::Fenced, IoError::NoSpace, IoError::Medium { span }, IoError::Unsupported]
    {
        let mut paths = pair(policy(), AnaState::Optimized, AnaState::Optimized);
        submit(&mut paths, 0, 0);
        assert_eq!(end(&mut paths, 1, 0, Err(fault)), [done(0, Err(fault))]);
    }
}

#[test]
fn a_path_that_fails_commands_is_left_alone_for_a_while() {
    let mut paths = pair(policy(), AnaState::Optimized, AnaState::Inaccessible);
    submit(&mut paths, 0, 0);
    assert_eq!(end(&mut paths, 1, 0, Err(IoError::Unreachable)), [Effect::Refresh(A)]);
    assert_eq!(paths.held(), 1);
    let again = at(101);
    assert_eq!(paths.poll_timeout(at(1)), Some(again));
    paths.handle_timeout(again);
    assert_eq!(sent(&effects(&mut paths)), [(A, 0)]);
    // News of its state end the suspicion at once.
    assert_eq!(end(&mut paths, 102, 0, Err(IoError::Unreachable)), [Effect::Refresh(A)]);
    paths.on(at(103), A, PathEvent::Ana(AnaState::Optimized));
    assert_eq!(sent(&effects(&mut paths)), [(A, 0)]);
}

#[test]
fn changes_settle_before_they_are_repeated() {
    let policy = Policy { settle: ms(5000), ..policy() };
    let mut paths = pair(policy, AnaState::Optimized, AnaState::NonOptimized);
    submit(&mut paths, 0, 0);
    let read = Command::Read { span: write().span().unwrap() };
    paths.submit(at(0), RequestId(1), read).unwrap();
    effects(&mut paths);
    paths.on(at(1), A, PathEvent::Lost);
    assert_eq!(end(&mut paths, 1, 0, Err(IoError::Unreachable)), []);
    assert_eq!(sent(&end(&mut paths, 1, 1, Err(IoError::Unreachable))), [(B, 1)], "reads do not");
    paths.handle_timeout(at(5000));
    assert_eq!(sent(&effects(&mut paths)), []);
    paths.handle_timeout(at(5001));
    assert_eq!(sent(&effects(&mut paths)), [(B, 0)]);
}

#[test]
fn without_a_path_requests_are_held_and_then_failed() {
    let mut paths = pair(policy(), AnaState::Optimized, AnaState::Inaccessible);
    paths.on(at(0), A, PathEvent::Lost);
    assert_eq!(submit(&mut paths, 0, 0), []);
    assert_eq!(submit(&mut paths, 1000, 1), []);
    paths.handle_timeout(at(59_999));
    assert!(!effects(&mut paths).iter().any(|effect| matches!(effect, Effect::Complete { .. })));
    paths.handle_timeout(at(60_000));
    assert!(effects(&mut paths).contains(&done(0, Err(IoError::TimedOut))));
    assert_eq!(paths.held(), 1);
    // A path in time saves the other.
    paths.on(at(60_500), A, live(1, AnaState::Optimized));
    assert_eq!(sent(&effects(&mut paths)), [(A, 1)]);
}

#[test]
fn queues_are_bounded() {
    let mut paths = pair(policy(), AnaState::Inaccessible, AnaState::Inaccessible);
    for id in 0..8 {
        submit(&mut paths, 0, id);
    }
    assert_eq!(paths.held(), 8);
    assert_eq!(paths.submit(at(0), RequestId(7), write()), Err(Refusal::Id(7)));
    assert_eq!(paths.submit(at(0), RequestId(8), write()), Err(Refusal::Id(8)));
}

#[test]
fn reconnecting_slows_down_and_ends() {
    let policy = Policy { abandon_after: Some(Duration::from_mins(1)), ..policy() };
    let mut paths = Multipath::new(policy);
    paths.add(at(0), A, false);
    assert_eq!(effects(&mut paths), [Effect::Connect(A)]);
    submit(&mut paths, 0, 0);
    let mut now = at(0);
    let mut delays = Vec::new();
    loop {
        paths.on(now, A, PathEvent::Lost);
        let next = paths.poll_timeout(now).unwrap();
        delays.push(next.since(now));
        now = next;
        paths.handle_timeout(now);
        match effects(&mut paths)[..] {
            [Effect::Connect(A)] => {}
            [Effect::Abandon(A), Effect::Complete { result, .. }] => {
                assert!(result.is_err());
                break;
            }
            ref other => panic!("{other:?}"),
        }
    }
    assert_eq!(now, at(60_000));
    assert!(delays[0] <= ms(100) && delays[4] >= ms(800), "{delays:?}");
    assert_eq!(paths.path(A), Some(PathState::Abandoned));
    assert_eq!(paths.submit(now, RequestId(0), write()), Err(Refusal::NoPath));
    // Adding it anew gives it another life.
    paths.add(now, A, false);
    assert_eq!(effects(&mut paths), [Effect::Connect(A)]);
}

#[test]
fn removing_the_last_path_ends_everything() {
    let mut paths = pair(policy(), AnaState::Optimized, AnaState::Inaccessible);
    for id in 0..3 {
        submit(&mut paths, 0, id);
    }
    paths.remove(at(1), A);
    paths.remove(at(1), B);
    assert_eq!(effects(&mut paths), [done(2, Err(IoError::Unreachable))]);
    let lost = Err(IoError::Unreachable);
    assert_eq!(end(&mut paths, 2, 0, lost), [done(0, lost)]);
    assert_eq!(end(&mut paths, 2, 1, Ok(())), [done(1, Ok(()))]);
}

/// One step of a random world.
#[derive(Clone, Debug)]
enum Happens {
    Submit(u32),
    EndOne { pick: usize, fault: Option<bool> },
    Path(u16, u8),
    Time(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (0u32..8).prop_map(Happens::Submit),
        (0usize..16, proptest::option::of(any::<bool>()))
            .prop_map(|(pick, fault)| Happens::EndOne { pick, fault }),
        (1u16..4, 0u8..4).prop_map(|(path, what)| Happens::Path(path, what)),
        (1u64..20_000).prop_map(Happens::Time),
    ]
}

/// What the owner of the connections would know.
#[derive(Default)]
struct World {
    /// Requests that wait for their end.
    open: Vec<u32>,
    /// Commands at work: request and path.
    at_work: Vec<(u32, PathId)>,
    slots: BTreeMap<PathId, usize>,
}

impl World {
    fn carry_out(&mut self, paths: &mut Multipath) {
        while let Some(effect) = paths.poll_effect() {
            match effect {
                Effect::Send { path, request, .. } => {
                    assert!(self.open.contains(&request.0), "sent after its end");
                    assert!(self.at_work.iter().all(|work| work.0 != request.0), "sent twice");
                    self.at_work.push((request.0, path));
                    let carried = self.at_work.iter().filter(|work| work.1 == path).count();
                    assert!(carried <= self.slots[&path], "too many at once");
                }
                Effect::Complete { request, .. } => {
                    let before = self.open.len();
                    self.open.retain(|open| *open != request.0);
                    assert_eq!(self.open.len() + 1, before, "completed twice");
                    assert!(self.at_work.iter().all(|work| work.0 != request.0));
                }
                Effect::Connect(_) | Effect::Refresh(_) | Effect::Abandon(_) => {}
            }
        }
    }

    fn lose(&mut self, paths: &mut Multipath, now: Instant, path: PathId) {
        paths.on(now, path, PathEvent::Lost);
        let (lost, rest) = self.at_work.iter().partition(|work| work.1 == path);
        self.at_work = rest;
        let lost: Vec<(u32, PathId)> = lost;
        for (request, _) in lost {
            self.carry_out(paths);
            let result = Err(IoError::Unreachable);
            paths.ended(now, Ended { request: RequestId(request), result });
        }
    }
}

proptest! {
    #[test]
    fn every_request_ends_once_whatever_happens(
        story in proptest::collection::vec(happens(), 0..200)
    ) {
        let mut paths = Multipath::new(policy());
        let mut world = World::default();
        let mut now = at(0);
        for id in 1..4 {
            paths.add(now, PathId(id), id == 1);
            world.slots.insert(PathId(id), 2);
        }
        for step in story {
            match step {
                Happens::Submit(id) => {
                    if paths.submit(now, RequestId(id), write()).is_ok() {
                        world.open.push(id);
                    }
                }
                Happens::EndOne { pick, fault } if !world.at_work.is_empty() => {
                    let at = pick % world.at_work.len();
                    let (request, _) = world.at_work.remove(at);
                    let result = match fault {
                        None => Ok(()),
                        Some(true) => Err(IoError::Aborted),
                        Some(false) => Err(IoError::NoSpace),
                    };
                    paths.ended(now, Ended { request: RequestId(request), result });
                }
                Happens::EndOne { .. } => {}
                Happens::Path(id, what) => {
                    let id = PathId(id);
                    match what {
                        0 => world.lose(&mut paths, now, id),
                        1 => paths.on(now, id, PathEvent::Ana(AnaState::Inaccessible)),
                        2 => paths.on(now, id, live(2, AnaState::NonOptimized)),
                        _ => paths.on(now, id, live(2, AnaState::Optimized)),
                    }
                }
                Happens::Time(millis) => {
                    now = now.after(ms(millis));
                    paths.handle_timeout(now);
                }
            }
            world.carry_out(&mut paths);
        }
        // The end of the world: all paths are lost, and time passes.
        for id in 1..4 {
            world.lose(&mut paths, now, PathId(id));
            world.carry_out(&mut paths);
        }
        now = now.after(policy().hold_for);
        paths.handle_timeout(now);
        world.carry_out(&mut paths);
        prop_assert_eq!(world.open, vec![]);
        prop_assert_eq!(paths.held(), 0);
    }
}

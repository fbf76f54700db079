//! Crash at every write: random histories, cut after every write and flush, opened again, compared.

use super::disk::Lie;
use super::history::{Plan, run};

/// Histories of one run of the quick tests; `HOLDFAST_SEEDS` asks for more, and
/// `HOLDFAST_FIRST_SEED` for others.
pub(super) fn seeds(first: u64, quick: u64) -> core::ops::Range<u64> {
    let first = first + number("HOLDFAST_FIRST_SEED").unwrap_or(0);
    first..first + number("HOLDFAST_SEEDS").unwrap_or(quick)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|number| number.parse().ok())
}

/// `HOLDFAST_OPERATIONS` sets how many; the deep lane has a million.
#[test]
fn many_operations_match_the_model() {
    let operations = number("HOLDFAST_OPERATIONS").unwrap_or(6000);
    let seed = 3_000_000 + number("HOLDFAST_FIRST_SEED").unwrap_or(0);
    let (sizes, cut_every): (&[u64], _) = (&[9000, 2600], (operations / 60).max(300));
    run(Plan { seed, sizes, steps: operations / 3, cut_every, lies: Lie::None }).unwrap();
}

#[test]
fn nothing_flushed_is_lost_at_any_cut() {
    let mut cuts = 0;
    for seed in seeds(0, 8) {
        let plan = Plan {
            seed,
            sizes: if seed % 2 == 0 { &[3600] } else { &[2600] },
            steps: 60,
            cut_every: 1,
            lies: Lie::None,
        };
        cuts += run(plan).unwrap();
    }
    assert!(cuts > 500, "{cuts}");
}

#[test]
fn nothing_flushed_is_lost_on_two_disks() {
    for seed in seeds(1_000_000, 3) {
        let plan = Plan { seed, sizes: &[7000, 2600], steps: 50, cut_every: 1, lies: Lie::None };
        run(plan).unwrap();
    }
}

#[test]
fn long_histories_match_the_model() {
    for seed in seeds(2_000_000, 2) {
        let sizes = if seed % 2 == 0 { &[3600][..] } else { &[9000, 2600] };
        run(Plan { seed, sizes, steps: 3000, cut_every: 300, lies: Lie::None }).unwrap();
    }
}

/// Histories that failed once.
#[test]
fn what_a_collapse_finds_hidden_is_not_free_before_that_is_durable() {
    let plan = Plan { seed: 700_073, sizes: &[2600], steps: 60, cut_every: 1, lies: Lie::None };
    run(plan).unwrap();
    run(Plan { seed: 1_700_003, sizes: &[7000, 2600], steps: 50, ..plan }).unwrap();
}

#[test]
fn nothing_is_done_on_account_of_what_could_not_be_written() {
    let plan = Plan { seed: 412, sizes: &[3600], steps: 60, cut_every: 1, lies: Lie::None };
    run(plan).unwrap();
}

#[test]
fn what_is_written_in_its_place_by_a_write_that_fails_elsewhere_can_be_read() {
    let plan =
        Plan { seed: 6_000_082, sizes: &[3600], steps: 3000, cut_every: 300, lies: Lie::None };
    run(plan).unwrap();
}

#[test]
fn a_flush_left_out_is_noticed() {
    let noticed = (0..10).filter(|seed| {
        let plan = Plan { seed: *seed, sizes: &[3600], steps: 60, cut_every: 1, lies: Lie::All };
        run(plan).is_err()
    });
    assert!(noticed.count() > 7);
}

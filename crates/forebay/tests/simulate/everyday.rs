//! The seeds of every day.

use std::fs::File;
use std::time::Instant;

use crate::fate::{Outcome, run};
use crate::here;

/// Turns of one seed.
const TURNS: u64 = 40_000;
/// Fixed seeds, and fresh ones.
const FIXED: u64 = 120;
const FRESH: u64 = 80;
/// ... and with leases.
const LEASES: u64 = 60;
/// Seeds that have found something once.
const FOUND: [u64; 4] = [1177, 1719, 6_699_726_336, 364_958_651_433];

fn turns() -> u64 {
    here::number("FOREBAY_SIMULATE_TURNS", TURNS)
}

/// Runs seeds; all that fail are named.
fn run_all(name: &str, seeds: impl Iterator<Item = u64>) {
    let begun = Instant::now();
    let mut sum = Outcome::default();
    let (mut count, mut failures) = (0, Vec::new());
    for seed in seeds {
        count += 1;
        match run(seed, turns()) {
            Ok(outcome) => add(&mut sum, &outcome),
            Err(what) => {
                // At once: a soak may be ended before it ends.
                eprintln!("{what}");
                failures.push(format!("seed {seed}"));
            }
        }
        if failures.len() == 3 {
            break;
        }
    }
    eprintln!(
        "{name}: {count} seeds, {} turns, {} operations, {} clients, {} keepers and {} times everybody killed, {} audits, {} \
         device errors, {} numbers of files used again, {} closes left to keepers, {} looks of outsiders ({} behind a lease), {:.1} s",
        sum.turns,
        sum.operations,
        sum.client_deaths,
        sum.keeper_deaths,
        sum.power_losses,
        sum.audits,
        sum.faults,
        sum.numbers_again,
        sum.left,
        sum.outside_looks,
        sum.lease_waits,
        begun.elapsed().as_secs_f64()
    );
    assert!(
        failures.is_empty(),
        "{} fail: {}; see above",
        failures.len(),
        failures.join(", ")
    );
}

fn add(sum: &mut Outcome, outcome: &Outcome) {
    sum.turns += outcome.turns;
    sum.operations += outcome.operations;
    sum.client_deaths += outcome.client_deaths;
    sum.keeper_deaths += outcome.keeper_deaths;
    sum.power_losses += outcome.power_losses;
    sum.audits += outcome.audits;
    sum.faults += outcome.faults;
    sum.numbers_again += outcome.numbers_again;
    sum.left += outcome.left;
    sum.outside_looks += outcome.outside_looks;
    sum.lease_waits += outcome.lease_waits;
}

fn is_told() -> bool {
    std::env::var_os("FOREBAY_TEST_SEED").is_some()
}

#[test]
fn fixed_seeds() {
    if !is_told() {
        run_all("fixed seeds", (0..FIXED).chain(FOUND));
    }
}

#[test]
fn fresh_seeds() {
    if !is_told() {
        run_all("fresh seeds", here::fresh_seeds(FRESH));
    }
}

/// Those in which closes leave what is owed to the keeper, and outsiders open files.
#[test]
fn seeds_with_leases() {
    if !is_told() {
        run_all("seeds with leases", with_leases(0..LEASES));
    }
}

fn with_leases(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    numbers.map(|number| 7 * (number / 2) + 3 + 3 * (number % 2))
}

#[test]
#[ignore = "as many as SOAK_CASES says; hours"]
fn soak_of_leases() {
    let count = here::number("SOAK_CASES", 2000);
    let first = here::number("SOAK_FIRST", 0);
    run_all("soak of leases", with_leases(first..first + count));
}

/// Only with `FOREBAY_TEST_SEED`: what the line says that a failure prints.
#[test]
fn a_seed_that_is_told() {
    if is_told() {
        run_all("the seed", here::fresh_seeds(1));
    }
}

#[test]
#[ignore = "as many as SOAK_CASES says; hours"]
fn soak() {
    let count = here::number("SOAK_CASES", 2000);
    run_all("soak", here::fresh_seeds(count));
}

/// The same seed, the same history, whatever else the process does: or no failure could be seen again.
#[test]
fn a_seed_has_one_history() {
    for seed in 0..6 {
        let turns = turns() / 2;
        let first = run(seed, turns);
        let others = files_without_names();
        assert_eq!(first, run(seed, turns), "seed {seed} has two histories");
        drop(others);
    }
}

/// As other tests of this process have open, and a keeper that looks for files without names comes upon.
fn files_without_names() -> Vec<File> {
    (0..40)
        .map(|_| tempfile::tempfile().expect("a file"))
        .collect()
}

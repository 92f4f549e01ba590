//! Planted bugs, each of which the simulation must find within a bounded number of turns: a check on the checks. Those that take
//! more luck than that have scenes (`scenes`, and those of the other suites); those that other suites find in seconds, and this one in half a minute, are
//! theirs alone.

use forebay::sim::{Bug, plant};

use crate::fate::run;
use crate::swarm::leaves;

/// Seeds that are tried, and turns of each.
const SEEDS: u64 = 1500;
const TURNS: u64 = 30_000;

fn must_be_found(bug: Bug) {
    must_be_found_by(bug, 0..SEEDS);
}

fn must_be_found_by(bug: Bug, mut seeds: impl Iterator<Item = u64>) {
    plant(Some(bug));
    let found = seeds.find_map(|seed| Some((seed, run(seed, TURNS).err()?)));
    plant(None);
    let (seed, what) =
        found.unwrap_or_else(|| panic!("{bug:?} was planted, and nothing went wrong"));
    eprintln!(
        "{bug:?} is found by seed {seed}: {}",
        what.lines().next().unwrap_or("")
    );
}

macro_rules! canaries {
    ($($name:ident: $bug:ident;)*) => {$(
        #[test]
        fn $name() {
            must_be_found(Bug::$bug);
        }
    )*};
}

canaries! {
    a_flush_that_forgets_what_came_after_it: LateClean;
    pages_that_are_clean_at_submission: CleanAtSubmit;
    a_sync_that_asks_no_device: SkipDeviceSync;
    an_error_that_is_swallowed: SwallowFlushError;
    bytes_published_before_they_are_there: ValidFirst;
    dirt_that_a_rebuild_forgets: ForgottenDirt;
    an_offset_chosen_before_the_lock: EarlyEnd;
    a_direct_write_that_waits_for_no_flight: NoLanding;
    bytes_that_leave_without_a_new_epoch: SameEpoch;
    pages_written_to_in_flight: UnstablePages;
    space_that_is_not_asked_for: SkipReserve;
    a_gate_that_is_not_looked_at: DeafEnter;
    small_frames_freed_early: EarlyFree;
    a_file_that_is_taken_for_another_of_its_number: AnyBirth;
}

macro_rules! canaries_of_leases {
    ($($name:ident: $bug:ident;)*) => {$(
        /// By those of the everyday seeds that have leases: others have none of it.
        #[test]
        fn $name() {
            must_be_found_by(Bug::$bug, (0..SEEDS).filter(|&seed| leaves(seed)));
        }
    )*};
}

canaries_of_leases! {
    a_file_left_without_a_lease: NoLease;
    a_lease_that_ends_before_the_bytes_are_there: EarlyRelease;
    a_lease_that_nobody_gives_up: KeptLease;
    memory_that_is_older_than_what_an_outsider_wrote: StaleMemory;
}

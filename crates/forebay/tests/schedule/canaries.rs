//! Planted bugs, each of which a scenario of every day must find: a check on the exploration itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use forebay::sim::{Bug, plant};

use crate::explore::{Budget, explore};
use crate::{ahead, appends, direct, flushing, gates, readers, stocks, streams, tables, views};

/// As many schedules as on every day, but no hurry: what a busy machine cannot look at is no proof of anything.
const BUDGET: Budget = Budget {
    time: Duration::from_secs(60),
    ..Budget::EVERYDAY
};

/// Explores with the bug planted; the scenario must fail.
fn must_be_found(bug: Bug, scenario: fn()) {
    plant(Some(bug));
    let name = format!("with {bug:?} planted");
    let result = catch_unwind(AssertUnwindSafe(|| explore(&name, BUDGET, scenario)));
    plant(None);
    assert!(
        result.is_err(),
        "{bug:?} was planted, and nothing went wrong"
    );
}

macro_rules! canaries {
    ($($name:ident: $bug:ident by $scenario:path;)*) => {$(
        #[test]
        fn $name() {
            must_be_found(Bug::$bug, $scenario);
        }
    )*};
}

canaries! {
    an_unlock_without_a_new_version: SameVersion by readers::readers_against_reuse;
    bytes_that_leave_without_a_new_epoch: SameEpoch by readers::readers_against_fills_and_eviction;
    bytes_that_leave_while_they_are_read_ahead: SameEpoch by ahead::ahead_against_a_writer_and_eviction;
    epochs_of_another_header: AnyHeader by readers::readers_against_another_header;
    a_gate_that_is_not_looked_at: DeafEnter by gates::stops_are_alone;
    a_gate_that_forgets_who_came: AloneUnasked by gates::who_works_stops;
    a_return_into_a_stopped_session: DeafUnpark by gates::stops_are_alone;
    small_frames_freed_before_they_are_unlinked: EarlyFree by readers::readers_against_small_frames_that_move;
    a_carved_frame_freed_with_a_part_in_use: LooseUncarve by tables::small_frames_have_one_owner;
    memory_given_without_a_claim: LooseClaim by stocks::memory_is_given_by_several;
    a_stock_that_two_take_the_same_from: LooseStock by stocks::parts_have_one_owner;
    a_root_that_forgets_what_is_below: BareRoot by tables::marks_under_growing_roots;
    a_flush_that_forgets_what_came_after_it: LateClean by flushing::sync_against_a_writer;
    a_direct_write_that_waits_for_no_flight: NoLanding by direct::direct_against_a_flight;
    a_read_that_goes_on_over_a_cut: ReadOverCut by readers::readers_against_a_cut_and_an_append;
    a_direct_write_that_leaves_zeros_at_the_old_end: ZerosAtTheEnd by direct::direct_over_an_end_that_is_owed_against_readers;
    a_writer_that_changes_what_a_view_holds: WriteInPlace by views::views_against_a_writer;
    a_frame_freed_under_its_view: FreePinned by views::views_against_eviction;
    a_frame_that_hides_what_was_written: AdoptOver by views::views_of_what_is_read_at_once;
    a_tree_that_is_not_told: UntoldDirt by streams::writers_against_writeback;
    an_offset_chosen_before_the_lock: EarlyEnd by gates::two_append;
    an_append_that_looks_for_no_growth: BlindToGrowth by appends::an_append_against_a_longer_write;
    a_short_append_that_looks_for_no_growth: BlindToGrowth by appends::a_short_append_against_a_longer_write;
    a_look_that_several_have_had: LooseWitness by tables::what_a_device_file_looks_like_is_of_one_moment;
    a_truncation_that_waits_for_no_append: CutAppends by gates::truncation_against_an_appender;
}

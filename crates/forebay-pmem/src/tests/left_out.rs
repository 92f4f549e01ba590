//! Each flush, fence and sync that a store calls is needed, and the loss is found where it is left out; or it stands here, with why not.
//!
//! What is needed is listed beside the canaries that leave it out: in `crash` of a store in use and of one that is made, in `crash_again` of one
//! that is opened after a crash. A call that comes to the code and to neither list fails here.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::crash::{self, NEEDED, NEEDED_TO_MAKE, record, rounds, workloads};
use super::crash_again::{self, NEEDED_AFTER_A_PROCESS};
use super::drive::{open, small_options, small_store};
use super::sim::{Call, Simulated};
use crate::layout::superblock::TAILS;
use crate::medium::{Durability, For, Medium};
use crate::store::make;

type Calls = BTreeSet<(Call, For)>;

/// What a store does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doing {
    Work,
    Make,
    Open,
}

/// Without DAX the medium does nothing when it is asked for a flush or a fence: its syncs bring everything.
const NOTHING_WITHOUT_DAX: [Call; 4] = [
    Call::Flush,
    Call::FlushOf(TAILS[0]),
    Call::FlushOf(TAILS[1]),
    Call::Fence,
];

/// Calls whose loss no crash shows, and why.
const UNSEEN: [(Doing, Durability, Call, For, &str); 10] = [
    (
        Doing::Work,
        Durability::Dax,
        Call::Sync,
        For::Home,
        "whoever has written lines to where they belong has fenced them",
    ),
    (
        Doing::Work,
        Durability::Dax,
        Call::FlushOf(TAILS[1]),
        For::Tail,
        "the second place stands in for the first, should that be damaged; nothing waits for it",
    ),
    (
        Doing::Make,
        Durability::Dax,
        Call::FlushOf(TAILS[0]),
        For::Tail,
        "either place says where an empty log begins",
    ),
    (
        Doing::Make,
        Durability::Dax,
        Call::FlushOf(TAILS[1]),
        For::Tail,
        "either place says where an empty log begins",
    ),
    (
        Doing::Open,
        Durability::Dax,
        Call::Sync,
        For::Home,
        "whoever has written lines to where they belong has fenced them",
    ),
    (Doing::Open, Durability::Dax, Call::Flush, For::Tail, AGAIN),
    (
        Doing::Open,
        Durability::Dax,
        Call::FlushOf(TAILS[0]),
        For::Tail,
        AGAIN,
    ),
    (
        Doing::Open,
        Durability::Dax,
        Call::FlushOf(TAILS[1]),
        For::Tail,
        AGAIN,
    ),
    (Doing::Open, Durability::Dax, Call::Sync, For::Tail, AGAIN),
    (
        Doing::Open,
        Durability::Fdatasync,
        Call::Sync,
        For::Tail,
        AGAIN,
    ),
];

const AGAIN: &str = "until the log is written to, its records are put over their blocks once more; what is then lost without it is found in a store in use, \
    which begins its log anew by the same lines";

fn needed(doing: Doing, durability: Durability) -> Calls {
    let mut list = match doing {
        Doing::Work => NEEDED.to_vec(),
        Doing::Make => NEEDED_TO_MAKE.to_vec(),
        Doing::Open => crash_again::NEEDED.to_vec(),
    };
    if doing == Doing::Open {
        let (call, purpose) = NEEDED_AFTER_A_PROCESS;
        list.push((durability, call, purpose));
    }
    let ours = list.into_iter().filter(|(of, ..)| *of == durability);
    ours.map(|(_, call, purpose)| (call, purpose)).collect()
}

fn unseen(doing: Doing, durability: Durability) -> Calls {
    let ours = UNSEEN
        .iter()
        .filter(|(what, of, ..)| (*what, *of) == (doing, durability));
    ours.map(|(_, _, call, purpose, _)| (*call, *purpose))
        .collect()
}

/// What is called.
fn called(doing: Doing, durability: Durability) -> Calls {
    match doing {
        Doing::Work => {
            let calls = |ops: &Vec<_>| record(small_store(), durability, None, ops).calls;
            workloads().iter().flat_map(calls).collect()
        }
        Doing::Make => {
            let medium = Simulated::recording(small_store(), durability, None);
            let done = make(Arc::clone(&medium) as Arc<dyn Medium>, &small_options());
            assert!(done.is_ok(), "{done:?}");
            medium.calls()
        }
        Doing::Open => {
            let recorded = record(small_store(), durability, None, &rounds()[..18]);
            let mut bytes = recorded.start.bytes;
            crash::store_all(&mut bytes, &recorded.events);
            let medium = Simulated::recording(bytes, durability, None);
            let opened = open(&medium);
            let calls = medium.calls();
            assert!(opened.is_ok(), "{:?}", opened.err());
            calls
        }
    }
}

const ALL: [Doing; 3] = [Doing::Work, Doing::Make, Doing::Open];

#[test]
fn each_flush_fence_and_sync_is_needed_or_stands_in_a_list() {
    for durability in [Durability::Dax, Durability::Fdatasync] {
        for doing in ALL {
            let (needed, unseen) = (needed(doing, durability), unseen(doing, durability));
            assert_eq!(needed.intersection(&unseen).next(), None);
            let mut called = called(doing, durability);
            if durability == Durability::Fdatasync {
                called.retain(|(call, _)| !NOTHING_WITHOUT_DAX.contains(call));
            }
            let listed: Calls = needed.union(&unseen).copied().collect();
            assert_eq!(called, listed, "{doing:?}, {durability:?}");
        }
    }
}

/// Whether a loss is found where something is left out.
fn is_found(doing: Doing, durability: Durability, left_out: (Call, For), seed: u64) -> bool {
    match doing {
        Doing::Work => crash::is_missed(durability, left_out, 8, seed),
        Doing::Make => crash::create_fault(durability, Some(left_out), seed).is_some(),
        Doing::Open => crash_again::explore(durability, Some(left_out), &rounds()[..18], seed)
            .1
            .is_some(),
    }
}

/// What is said to be unseen is: otherwise it is needed, and belongs to the canaries.
#[test]
fn what_no_crash_shows_is_not_found() {
    for (doing, durability, call, purpose, why) in UNSEEN {
        let found = is_found(doing, durability, (call, purpose), 1);
        assert!(
            !found,
            "{doing:?}, {durability:?}: {call:?} for {purpose:?}: {why}"
        );
    }
}

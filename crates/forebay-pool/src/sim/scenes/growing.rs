//! Scenes with a file that all clients make longer.

use super::{CELLS, Ill, Scene, bytes, holds_in, ill_of, told};
use crate::client::{Mode, Operation};
use crate::ids::File;
use crate::mistakes::{Mistake, plant};
use crate::random::Random;
use crate::sim::check::CELL;

/// Something with a file that began empty and becomes longer.
pub(super) fn growing(random: &mut Random, file: File, value: u64) -> Operation {
    let offset = random.below(CELLS) * CELL;
    let cells = 1 + random.below(12);
    let mode = if random.chance(500) {
        Mode::Remote
    } else {
        Mode::Local
    };
    match random.below(100) {
        0..25 => Operation::Read {
            file,
            offset,
            length: cells * CELL,
            mode,
        },
        25..40 => Operation::Write {
            file,
            offset,
            bytes: bytes(value, cells),
            mode,
        },
        40..70 => Operation::Append {
            file,
            bytes: bytes(value, 1 + cells % 5),
        },
        70..78 => Operation::Sync { file },
        _ => Operation::Attributes { file },
    }
}

#[test]
fn a_length_that_others_find_has_its_bytes() {
    let first = told("TEST_SEED").unwrap_or(1);
    let pools = told("TEST_POOLS").unwrap_or(200);
    let steps = told("TEST_STEPS").unwrap_or(120);
    for seed in first..first + pools {
        holds_in(Scene::Grows, seed, steps);
        holds_in(Scene::GrowsHome, seed, steps);
    }
}

#[test]
fn lengths_without_their_bytes_are_found() {
    plant(Some(Mistake::LengthsBeforeBytes));
    let found = (1..201).find(|seed| ill_of(Scene::Grows, *seed, 120) == Some(Ill::Wrong));
    plant(None);
    println!("found by seed {found:?}");
    assert!(found.is_some(), "the mistake is not found");
}

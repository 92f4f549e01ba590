//! Scenes with a file that all clients make longer.

use super::{CELLS, Scene, all_hold, assert_found, bytes, some_mode};
use crate::client::Operation;
use crate::ids::File;
use crate::mistakes::Mistake;
use crate::random::Random;
use crate::sim::check::CELL;

/// Something with a file that began empty and becomes longer.
pub(super) fn growing(random: &mut Random, file: File, value: u64) -> Operation {
    let offset = random.below(CELLS) * CELL;
    let cells = 1 + random.below(12);
    let mode = some_mode(random);
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
        70..78 => Operation::sync(file),
        _ => Operation::Attributes { file },
    }
}

#[test]
fn a_length_that_others_find_has_its_bytes() {
    all_hold(&[Scene::Grows, Scene::GrowsHome]);
}

#[test]
fn lengths_without_their_bytes_are_found() {
    assert_found(Mistake::LengthsBeforeBytes, Scene::Grows);
}

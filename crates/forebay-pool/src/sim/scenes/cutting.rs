//! Scenes with files that are cut and removed, on more servers than most of them have blocks.

use super::{CELLS, Scene, all_hold, assert_found, bytes, some_mode};
use crate::client::{Facts, Operation};
use crate::ids::File;
use crate::mistakes::Mistake;
use crate::random::Random;
use crate::sim::check::CELL;

/// Something with a file that comes, grows, is cut and goes. The first one stays.
pub(super) fn cutting(random: &mut Random, files: &[File], value: u64) -> Operation {
    let file = files[random.below(files.len() as u64) as usize];
    let offset = random.below(CELLS) * CELL;
    let mode = some_mode(random);
    match random.below(100) {
        0..20 => Operation::Make {
            parent: File::ROOT,
            name: value.to_string().into_bytes(),
            facts: Facts {
                modified: value as i64,
                ..Facts::default()
            },
            bytes: Vec::new(),
        },
        20..50 => Operation::Write {
            file,
            offset,
            bytes: bytes(value, 1 + random.below(12)),
            mode,
        },
        50..60 => Operation::Append {
            file,
            bytes: bytes(value, 1 + random.below(5)),
        },
        60..70 => Operation::Read {
            file,
            offset,
            length: 12 * CELL,
            mode,
        },
        70..75 => Operation::sync(file),
        75..90 => Operation::Truncate { file, size: offset },
        _ if Some(&file) != files.first() => Operation::Remove { file },
        _ => Operation::Attributes { file },
    }
}

#[test]
fn what_is_cut_or_removed_leaves_nothing_at_any_server() {
    all_hold(&[Scene::Cuts, Scene::CutsHome]);
}

#[test]
fn blocks_that_are_left_are_found() {
    for scene in [Scene::Cuts, Scene::CutsHome] {
        assert_found(Mistake::DiscardsTheFirstAlone, scene);
    }
}

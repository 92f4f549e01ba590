//! Two victims at once: the second dies in the state that the first has left, perhaps while it repairs that.

use forebay::sim;
use forebay_model::{Op, SplitMix64};

use crate::common::watch::Watch;
use crate::deaths::{accesses, chosen, seed, under_way};
use crate::scene::{Act, Scene, World, look};
use crate::scenes::{self, again, set_len, sync};

/// Pairs of deaths tried for a scene and a second operation.
const FIRST: u64 = 2;
const SECOND: u64 = 4;

/// What the second victim does.
fn seconds() -> Vec<Act> {
    let other = Op::Write {
        file: 1,
        handle: 0,
        offset: 300,
        len: 9000,
        seed: 31,
    };
    let append = Op::Append {
        file: 0,
        handle: 1,
        len: 6000,
        seed: 32,
    };
    vec![
        Act::Op(again(8200, 9000, 30)),
        Act::Op(other),
        Act::Op(append),
        Act::Op(sync()),
        Act::Op(set_len(70_000)),
        Act::Op(Op::Evict { file: 0 }),
        Act::Op(Op::KeeperStep { steps: 50 }),
    ]
}

/// A length that one sets and another appends to has more outcomes than the model tells apart.
fn may_meet(first: &Act, second: &Act) -> bool {
    let moves = |act: &Act| match act {
        Act::Op(Op::Append { .. } | Op::SetLen { .. }) => true,
        Act::Op(Op::Write { offset, len, .. }) => offset + u64::from(*len) > 60_000,
        Act::Op(Op::Reopen { truncate, .. }) => *truncate,
        _ => false,
    };
    let appends = |act: &Act| matches!(act, Act::Op(Op::Append { .. }));
    let shapes = |act: &Act| matches!(act, Act::Op(Op::Punch { .. } | Op::SetLen { .. }));
    !(moves(first) && moves(second) || appends(second) && moves(first) || shapes(first))
}

fn one(scene: &Scene, second: &Act, n: u64, m: u64, dice: &mut SplitMix64) {
    let mut world = World::new(scene);
    if world.die_untouched(&scene.act, n).is_some() {
        return;
    }
    world.open_missing();
    world.die(second, m);
    let both = [under_way(&scene.act), under_way(second)].concat();
    look(&mut world, &both, dice);
}

/// Accesses of the second act after the first victim's death, its repair among them.
fn second_accesses(scene: &Scene, second: &Act, n: u64) -> Option<u64> {
    let mut world = World::new(scene);
    if world.die_untouched(&scene.act, n).is_some() {
        return None;
    }
    world.open_missing();
    let before = sim::count();
    world.die(second, u64::MAX - 1);
    Some(sim::count() - before)
}

fn every_pair(scenes: &[Scene], first: u64, more: u64, all_seconds: bool) {
    let seed = seed();
    let mut dice = SplitMix64::new(seed);
    let watch = Watch::new();
    let seconds = seconds();
    let mut failures = Vec::new();
    for scene in scenes {
        let total = accesses(scene);
        let deaths: Vec<u64> = chosen(total, first, &mut dice).collect();
        let pairs = deaths
            .iter()
            .flat_map(|&n| (0..seconds.len()).map(move |i| (n, i)));
        let pairs: Vec<_> = pairs
            .filter(|_| all_seconds || dice.below(3) == 0)
            .collect();
        let failed = pairs.into_iter().find_map(|(n, i)| {
            let second = &seconds[i];
            if !may_meet(&scene.act, second) {
                return None;
            }
            let name = format!("{:?}, death {n} of {total}, second {i}", scene.name);
            let counted = watch.run(&name, || second_accesses(scene, second, n));
            let most = match counted {
                Ok(most) => most?,
                Err(failed) => return Some(failed),
            };
            chosen(most, more, &mut SplitMix64::new(seed ^ n)).find_map(|m| {
                let place = format!("{name} dies at {m} of {most}, FOREBAY_SEED={seed}");
                let mut dice = SplitMix64::new(seed ^ n ^ (m << 20));
                watch
                    .run(&place, || one(scene, second, n, m, &mut dice))
                    .err()
            })
        });
        failures.extend(failed);
    }
    assert!(
        failures.is_empty(),
        "{} scenes fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

#[test]
fn two_may_die() {
    every_pair(&scenes::all(), FIRST, SECOND, false);
}

#[test]
#[ignore = "many pairs of deaths; minutes"]
fn any_two_may_die() {
    every_pair(&scenes::all(), 25, 25, true);
}

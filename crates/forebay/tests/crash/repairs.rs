//! Deaths in the middle of a repair: the next repairer finds both.

use forebay::ids::{HeaderId, ThreadId};
use forebay::memory::threads;
use forebay::sim;
use forebay_model::SplitMix64;

use crate::common::watch::Watch;
use crate::deaths::{accesses, chosen, seed, under_way};
use crate::scene::{Scene, World, look};
use crate::scenes;

/// Deaths of victims tried of one scene, and deaths of repairers for each.
const VICTIMS: u64 = 2;
const REPAIRERS: u64 = 8;

/// A repairer begins and dies before its `n`-th access. `None`: it died.
fn repairer_dies(world: &mut World, n: u64) -> Option<()> {
    let repairer: ThreadId = world.become_somebody_else();
    let ended = sim::crash_after(n, || world.repair());
    if ended.is_none() {
        threads::slay(&world.engine.session.shared().arena, repairer);
    }
    world.become_somebody_else();
    ended
}

/// Accesses that the repair of one death makes.
fn repair_accesses(scene: &Scene, death: u64) -> Option<u64> {
    let mut world = World::new(scene);
    if world.die_untouched(&scene.act, death).is_some() {
        return None;
    }
    let before = sim::count();
    repairer_dies(&mut world, u64::MAX - 1);
    Some(sim::count() - before)
}

fn one(scene: &Scene, death: u64, repair: u64, dice: &mut SplitMix64) {
    let mut world = World::new(scene);
    if world.die_untouched(&scene.act, death).is_some() {
        return;
    }
    // And perhaps the second repairer dies too.
    repairer_dies(&mut world, repair);
    if dice.below(3) == 0 {
        repairer_dies(&mut world, dice.below(repair + 2000));
    }
    world.open_missing();
    look(&mut world, &under_way(&scene.act), dice);
}

fn every_repair(scenes: &[Scene], victims: u64, repairers: u64) {
    let failures = failures(scenes, victims, repairers, seed());
    assert!(
        failures.is_empty(),
        "{} scenes fail:\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// The first failure of each scene.
pub fn failures(scenes: &[Scene], victims: u64, repairers: u64, seed: u64) -> Vec<String> {
    let mut dice = SplitMix64::new(seed);
    let watch = Watch::new();
    let mut failures = Vec::new();
    for scene in scenes {
        let total = accesses(scene);
        let deaths: Vec<u64> = chosen(total, victims, &mut dice).collect();
        let failed = deaths.into_iter().find_map(|death| {
            let repairs = repair_accesses(scene, death)?;
            chosen(repairs, repairers, &mut dice.clone()).find_map(|repair| {
                let place = format!(
                    "{:?}, death {death} of {total}, repair {repair} of {repairs}, FOREBAY_SEED={seed}",
                    scene.name
                );
                let mut dice = SplitMix64::new(seed ^ death ^ (repair << 20));
                watch.run(&place, || one(scene, death, repair, &mut dice)).err()
            })
        });
        failures.extend(failed);
        dice.next_u64();
    }
    failures
}

#[test]
fn repairers_of_writes_may_die() {
    every_repair(
        &[scenes::writes(), scenes::past_memory()].concat(),
        VICTIMS,
        REPAIRERS,
    );
}

#[test]
fn repairers_of_everything_else_may_die() {
    every_repair(
        &[scenes::shapes(), scenes::upkeep(), scenes::keeping()].concat(),
        VICTIMS,
        REPAIRERS,
    );
}

#[test]
#[ignore = "many deaths of repairers for many deaths; minutes"]
fn any_repair_may_be_the_last() {
    every_repair(&scenes::all(), 40, 150);
}

/// Who wants a header whose holder has died leaves it after the looks that cost nothing: each time that a busy core is given away takes
/// milliseconds, and nobody opens that lock before a repair.
#[test]
fn nobody_waits_for_a_header_of_the_dead() {
    const LOOKS: u64 = 2 * 64;
    let scene = &scenes::writes()[0];
    let mut found = 0;
    for death in 0..accesses(scene) {
        let mut world = World::new(scene);
        if world.die_untouched(&scene.act, death).is_some() {
            break;
        }
        let shared = world.engine.session.shared();
        let (arena, me) = (&shared.arena, shared.me().expect("a slot"));
        let ids = (0..arena.counts().headers).map(HeaderId);
        let held = ids.filter(|&id| arena.header(id).is_some_and(|h| h.holder().is_some()));
        for id in held {
            let header = arena.header(id).expect("a header");
            let before = sim::count();
            assert!(header.lock(me, id).is_none());
            let looks = sim::count() - before;
            assert!(looks < LOOKS, "{looks} looks, death {death}");
            found += 1;
        }
    }
    assert!(found > 0, "nobody died with a header");
}

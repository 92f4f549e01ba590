//! Stocks of small frames: filled, emptied by others, given back, while frames are stolen and blocks evicted.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use forebay::evict;
use forebay::keeper::repair;
use forebay::member::provision;
use forebay::memory::regions::{self, Shortage};
use forebay::sim;
use forebay::sync::Ordering;

use crate::explore::dice;
use crate::world::{BLOCK, Member, PAGE, Shape, World, join};

crate::scenarios!(
    parts_have_one_owner,
    stocks_against_eviction_and_need,
    stealing_between_regions,
    a_death_loses_no_stock,
    memory_is_given_by_several,
    memory_stays_within_the_budget,
    memory_is_taken_back_while_all_is_counted,
    a_death_while_memory_is_given,
);

type Owned = Arc<Mutex<HashSet<u32>>>;

fn own(owned: &Owned, id: u32) {
    let new = owned.lock().expect("no panic").insert(id);
    assert!(new, "{id} has two owners");
}

fn disown(owned: &Owned, id: u32) {
    let was = owned.lock().expect("no panic").remove(&id);
    assert!(was, "{id} had no owner");
}

/// Takes small frames by a file's stock, and gives them back.
fn take_some(member: &Member, file: usize, owned: &Owned, rounds: u64) {
    let core = &member.file(file).core;
    for _ in 0..rounds {
        let Ok(_operation) = member.me().enter(core.id) else {
            continue;
        };
        let stock = Some(&core.entry().stock);
        let count = 1 + dice() % 4;
        let smalls: Vec<_> = (0..count)
            .filter_map(|_| regions::take_small(member.me(), stock))
            .collect();
        smalls.iter().for_each(|small| own(owned, small.0));
        for small in smalls {
            disown(owned, small.0);
            regions::free_small(member.me(), stock, small);
        }
    }
}

fn set_shortage(member: &Member, shortage: Shortage) {
    let word = &member.me().arena.superblock().shortage;
    word.store(shortage as u32, Ordering::Relaxed);
}

/// Two files' stocks of the same memory, two threads at one of them, somebody who halves them and somebody who takes whole
/// frames.
pub fn parts_have_one_owner() {
    let world = World::new(Shape {
        files: 2,
        frames: 2,
        ..Shape::default()
    });
    let owned = Owned::default();
    let _exploring = world.explore();
    let taker = |file: usize| {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| take_some(member, file, &owned, 3))
    };
    let whole = {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| {
            for _ in 0..2 {
                regions::halve_all(member.me());
                let Some(frame) = regions::take_frame(member.me()) else {
                    regions::give_all_back(member.me());
                    continue;
                };
                let parts = || (0..64).map(|part| regions::small_of(frame, part).0);
                parts().for_each(|part| own(&owned, part));
                sim::point();
                parts().for_each(|part| disown(&owned, part));
                regions::free_frame(member.me(), frame);
            }
        })
    };
    join([taker(0), taker(0), taker(1), whole]);
    world.check_at_rest();
}

/// Small writes of two files with memory for neither: what one has in stock, the other gets.
fn stocks_against_eviction_and_need() {
    let world = World::new(Shape {
        files: 2,
        frames: 2,
        headers: 8,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let writer = |file: usize| {
        world.spawn(move |member| {
            for index in 0..4u32 {
                let seed = 1 + index + 10 * file as u32;
                member.write(file, seed, u64::from(index % 3) * BLOCK + PAGE, 300);
            }
            member.sync(file);
            evict::give_stock_back(member.me(), member.file(file).core.id);
        })
    };
    let evictor = world.spawn(|member| {
        for shortage in [Shortage::Urgent, Shortage::None, Shortage::Low] {
            set_shortage(member, shortage);
            regions::halve_all(member.me());
            evict::evict(member.me(), 1, 0);
        }
        set_shortage(member, Shortage::None);
    });
    join([writer(0), writer(1), evictor]);
    world.check_at_rest();
}

/// More threads than one region has frames for.
fn stealing_between_regions() {
    let world = World::new(Shape {
        frames: 16,
        ..Shape::default()
    });
    assert_eq!(world.session.shared().arena.shares().regions(), 2);
    let owned = Owned::default();
    let _exploring = world.explore();
    let taker = || {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| {
            let frames: Vec<_> = (0..5)
                .filter_map(|_| regions::take_frame(member.me()))
                .collect();
            // Sixteen are enough for all three, wherever they are.
            assert_eq!(frames.len(), 5, "a region was not stolen from");
            frames.iter().for_each(|frame| own(&owned, frame.0));
            for frame in frames {
                disown(&owned, frame.0);
                regions::free_frame(member.me(), frame);
            }
        })
    };
    join([taker(), taker(), taker()]);
    world.check_at_rest();
}

/// Somebody dies with parts in hand, between the words that show them.
fn a_death_loses_no_stock() {
    let world = World::new(Shape {
        files: 2,
        frames: 2,
        headers: 8,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let victim = world.spawn_mortal(dice() % 120, |member| {
        for index in 0..3u32 {
            member.write(0, 1 + index, u64::from(index) * BLOCK, 100);
        }
        evict::give_stock_back(member.me(), member.file(0).core.id);
    });
    let other = world.spawn(|member| {
        member.write(1, 11, 0, 100);
        regions::halve_all(member.me());
        member.write(1, 12, BLOCK, 100);
    });
    join([victim, other]);
    world.check_after_death();
}

/// A session all of whose memory has been given back.
fn without_memory(frames: u32) -> Arc<World> {
    let world = World::new(Shape {
        frames,
        ..Shape::default()
    });
    let member = world.member();
    provision::give_back(member.me(), 0);
    let backed = &member.me().arena.superblock().frames_backed;
    assert_eq!(backed.load(Ordering::Relaxed), 0);
    world
}

/// Gives memory whoever else is at it, takes some of it, and lets it go.
fn give_and_take(member: &Member, owned: &Owned) {
    for _ in 0..2 {
        provision::more(member.world.session.shared(), member.me(), true);
        let _operation = member.me().enter_arena();
        let frames: Vec<_> = (0..2)
            .filter_map(|_| regions::take_frame(member.me()))
            .collect();
        frames.iter().for_each(|frame| own(owned, frame.0));
        for frame in frames {
            disown(owned, frame.0);
            regions::free_frame(member.me(), frame);
        }
    }
}

/// All of it once more, so that what there is lies where those who look expect it.
fn give_all(world: &Arc<World>) {
    let member = world.member();
    provision::ahead(world.session.shared(), member.me(), 16 * BLOCK);
}

/// Nobody waits for a turn, and somebody takes memory back.
pub fn memory_is_given_by_several() {
    let world = without_memory(16);
    let owned = Owned::default();
    let exploring = world.explore();
    let giver = || {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| give_and_take(member, &owned))
    };
    let taker = world.spawn(|member| {
        for _ in 0..2 {
            provision::give_back(member.me(), 0);
        }
    });
    join([giver(), giver(), taker]);
    drop(exploring);
    give_all(&world);
    world.check_at_rest();
}

/// Several give memory at once, where half of the arena may have some: also what is in their hands counts.
fn memory_stays_within_the_budget() {
    let world = without_memory(32);
    let member = world.member();
    let frames_max = &member.me().arena.superblock().frames_max;
    frames_max.store(16, Ordering::Relaxed);
    let exploring = world.explore();
    let giver = || {
        world.spawn(|member| {
            for _ in 0..2 {
                provision::more(member.world.session.shared(), member.me(), true);
                let held = member.frames_with_memory();
                assert!(held <= 16, "{held} frames have memory, and 16 may");
            }
        })
    };
    join([giver(), giver(), giver()]);
    drop(exploring);
    world.check_at_rest();
}

/// A rebuild counts what has memory while a thread that lives gives some and takes it back.
fn memory_is_taken_back_while_all_is_counted() {
    let world = without_memory(16);
    let exploring = world.explore();
    let victim = world.spawn_mortal(dice() % 100, |member| {
        provision::more(member.world.session.shared(), member.me(), true);
    });
    join([victim]);
    let living = world.spawn(|member| {
        provision::more(member.world.session.shared(), member.me(), true);
        provision::give_back(member.me(), 0);
    });
    let counting = world.spawn(|member| {
        repair::if_needed(member.world.session.shared(), member.me());
    });
    join([living, counting]);
    drop(exploring);
    world.repair();
    give_all(&world);
    world.check_at_rest();
}

/// Whoever gives memory dies, or takes it back and dies, while others give and take some.
fn a_death_while_memory_is_given() {
    let world = without_memory(16);
    let owned = Owned::default();
    let exploring = world.explore();
    let victim = world.spawn_mortal(dice() % 300, |member| {
        provision::more(member.world.session.shared(), member.me(), true);
        provision::give_back(member.me(), 0);
    });
    let giver = || {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| give_and_take(member, &owned))
    };
    join([victim, giver(), giver()]);
    drop(exploring);
    world.repair();
    give_all(&world);
    world.check_at_rest();
}

//! Deaths in the middle, with survivors who wait for what the dead held: they repair and go on.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use forebay::ids::ThreadId;
use forebay::keeper::repair;
use forebay::memory::arena::Arena;
use forebay::memory::threads::{self, Me};
use forebay::sim;
use forebay::sim::explore::die_after;
use shuttle::thread::JoinHandle;

use crate::explore::dice;
use crate::world::{BLOCK, Member, PAGE, Shape, World, join};

crate::scenarios!(
    a_writer_dies,
    a_reader_dies,
    a_flusher_dies,
    a_direct_writer_dies,
    a_truncater_dies,
    a_puncher_dies,
    an_evictor_dies,
    an_appender_dies,
    appenders_join_during_a_rebuild,
    two_die,
    slots_of_the_dead_are_taken_again,
    who_dies_at_slots_leaves_them_to_others,
);

/// A death at any of the first `within` accesses.
fn mortal(
    world: &Arc<World>,
    within: u64,
    work: impl FnOnce(&Member) + Send + 'static,
) -> JoinHandle<()> {
    world.spawn_mortal(dice() % within, work)
}

/// Two survivors: one writes and reads, one syncs, where the dead was at work.
fn survivors(world: &Arc<World>) -> [JoinHandle<()>; 2] {
    let writer = world.spawn(|member| {
        member.write(0, 50, 3000, 2000);
        member.read(0, 2500, 3000);
        member.write(0, 51, BLOCK + 100, 100);
    });
    let syncer = world.spawn(|member| {
        member.read(0, 0, 5000);
        member.sync(0);
        member.evict(0);
        member.read(0, 0, 5000);
    });
    [writer, syncer]
}

fn world() -> Arc<World> {
    let world = World::new(Shape {
        len: 2 * BLOCK,
        frames: 3,
        ..Shape::default()
    });
    let member = world.member();
    member.write(0, 1, 0, 2 * PAGE as usize);
    member.write(0, 2, BLOCK, 300);
    world
}

fn with_victim(within: u64, work: impl FnOnce(&Member) + Send + 'static) {
    let world = world();
    let _exploring = world.explore();
    let victim = mortal(&world, within, work);
    let [first, second] = survivors(&world);
    join([victim, first, second]);
    world.check_after_death();
}

fn a_writer_dies() {
    with_victim(700, |member| {
        member.write(0, 10, 2000, 3000);
        member.write(0, 11, BLOCK + PAGE, 64 * 1024);
    });
}

fn a_reader_dies() {
    with_victim(700, |member| {
        member.read(0, 3000, 30_000);
        member.read(0, BLOCK, 70_000);
    });
}

fn a_flusher_dies() {
    with_victim(1200, |member| member.flush_late(0));
}

fn a_direct_writer_dies() {
    with_victim(1200, |member| member.write_direct(0, 10, 0, 2));
}

fn a_truncater_dies() {
    with_victim(900, |member| member.set_len(0, BLOCK + 200));
}

fn a_puncher_dies() {
    with_victim(900, |member| member.punch(0, 100, 2 * PAGE));
}

fn an_evictor_dies() {
    with_victim(900, |member| {
        member.sync(0);
        member.evict(0);
    });
}

/// Appends of survivors are whole and apart, wherever the dead one's ended.
fn an_appender_dies() {
    const LEN: usize = 3000;
    let world = World::new(Shape {
        len: 0,
        ..Shape::default()
    });
    let places = Arc::new(Mutex::new(Vec::new()));
    let _exploring = world.explore();
    let victim = mortal(&world, 600, |member| {
        member.append(0, &[99; LEN]);
        member.append(0, &[99; LEN]);
    });
    let appender = |first: u8| {
        let places = Arc::clone(&places);
        world.spawn(move |member| {
            for byte in first..first + 2 {
                let at = member.append(0, &[byte; LEN]);
                places.lock().expect("no panic").push((at, byte));
            }
        })
    };
    join([victim, appender(1), appender(10)]);
    sim::set_exploring(false);
    world.repair();
    world.flush_all();
    let device = world.files[0].sim.contents();
    for (at, byte) in places.lock().expect("no panic").iter() {
        let record = &device[*at as usize..*at as usize + LEN];
        let odd = record.iter().position(|b| b != byte);
        assert_eq!(
            odd.map(|i| (i, record[i])),
            None,
            "the record of {byte}s at {at} is not of one piece"
        );
    }
}

/// Whoever takes a slot while somebody rebuilds is alive: what it locks stays locked.
fn appenders_join_during_a_rebuild() {
    const LEN: usize = 300;
    let world = World::new(Shape {
        files: 2,
        len: 0,
        ..Shape::default()
    });
    let places = Arc::new(Mutex::new(HashSet::new()));
    let _exploring = world.explore();
    let victim = mortal(&world, 100, |member| member.write(1, 10, 0, 3000));
    let rescuer = world.spawn(|member| {
        for _ in 0..3 {
            repair::if_needed(member.world.session.shared(), member.me());
        }
    });
    let appender = |byte: u8| {
        let places = Arc::clone(&places);
        world.spawn(move |member| {
            for _ in 0..3 {
                let new = member.world.member();
                let at = new.append(0, &[byte; LEN]);
                assert!(
                    places.lock().expect("no panic").insert(at),
                    "two records at {at}"
                );
            }
        })
    };
    join([victim, rescuer, appender(1), appender(2)]);
}

/// The second dies while it may be repairing after the first.
fn two_die() {
    let world = world();
    let _exploring = world.explore();
    let (first, second) = (dice() % 700, dice() % 3000);
    let victims = world.spawn(move |member| {
        member.die_within(first, |member| member.write(0, 10, 2000, 3000));
        let next = member.world.member();
        next.die_within(second, |member| {
            member.write(0, 11, 2500, 3000);
            member.sync(0);
        });
    });
    let [a, b] = survivors(&world);
    join([victims, a, b]);
    world.check_after_death();
}

/// A slot is buried once, and whoever takes it next is alive in it.
fn slots_of_the_dead_are_taken_again() {
    let world = World::new(Shape::default());
    let dead = world.member();
    threads::slay(dead.me().arena, dead.id);
    let mine = Arc::new(Mutex::new(HashSet::<ThreadId>::new()));
    let _exploring = world.explore();
    let rescuer = || {
        world.spawn(move |member| {
            repair::if_needed(member.world.session.shared(), member.me());
        })
    };
    let taker = || {
        let mine = Arc::clone(&mine);
        world.spawn(move |member| {
            for _ in 0..2 {
                let new = member.world.member();
                assert!(
                    mine.lock().expect("no panic").insert(new.id),
                    "a slot has two owners"
                );
                new.write(0, new.id.0 * 10, 0, 10);
                assert!(
                    !threads::is_gone(new.me().arena, new.id),
                    "alive and taken for dead"
                );
                mine.lock().expect("no panic").remove(&new.id);
            }
        })
    };
    join([rescuer(), rescuer(), taker()]);
}

/// How many slots can be taken.
fn free_slots(arena: &Arena) -> usize {
    let ids: Vec<_> = std::iter::from_fn(|| threads::take(arena, false)).collect();
    for &id in &ids {
        threads::release(Me { arena, id });
    }
    ids.len()
}

/// Takes a slot and gives it back, a few times, and dies before its `n`-th shared access unless it has ended by then.
fn take_turns(member: &Member, n: u64, mine: &Mutex<HashSet<ThreadId>>) {
    let arena = member.me().arena;
    let had = Cell::new(None);
    let take_turns = || {
        for _ in 0..3 {
            let id = threads::take(arena, false).expect("a free slot");
            had.set(Some(id));
            assert!(
                mine.lock().expect("no panic").insert(id),
                "a slot has two owners"
            );
            assert!(!threads::is_gone(arena, id), "alive and taken for dead");
            mine.lock().expect("no panic").remove(&id);
            threads::release(Me { arena, id });
            had.set(None);
        }
    };
    if die_after(n, take_turns).is_none()
        && let Some(id) = had.get()
    {
        mine.lock().expect("no panic").remove(&id);
        threads::slay(arena, id);
    }
}

/// Whoever dies while it takes a slot or gives it back leaves it to others.
fn who_dies_at_slots_leaves_them_to_others() {
    let world = World::new(Shape::default());
    let arena = Arc::clone(&world.session.shared().arena);
    let before = free_slots(&arena);
    let mine = Arc::new(Mutex::new(HashSet::new()));
    let taker = |n: u64| {
        let mine = Arc::clone(&mine);
        world.spawn(move |member| take_turns(member, n, &mine))
    };
    let victim = dice() % 80;
    let _exploring = world.explore();
    let rescuer = world.spawn(|member| {
        for _ in 0..2 {
            repair::if_needed(member.world.session.shared(), member.me());
        }
    });
    join([taker(victim), taker(u64::MAX), rescuer]);
    world.repair();
    assert_eq!(free_slots(&arena), before, "a slot is lost");
}

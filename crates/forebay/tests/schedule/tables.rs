//! Slots, nodes, frames and small frames: one owner each, nothing lost, nothing owed overlooked.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use forebay::device::DeviceFile;
use forebay::flush::ring;
use forebay::frame::header::Identity;
use forebay::frame::slots;
use forebay::ids::{BlockIndex, FileId, HeaderId};
use forebay::memory::regions;
use forebay::sim;
use forebay::sync::Ordering;

use crate::explore::dice;
use crate::world::{BLOCK, Member, PAGE, Shape, World, join};

crate::scenarios!(
    two_link_one_block,
    links_against_eviction,
    marks_under_growing_roots,
    one_slot_one_winner,
    frames_have_one_owner,
    small_frames_have_one_owner,
    hints_in_the_ring,
    what_a_device_file_looks_like_is_of_one_moment,
);

fn two_link_one_block() {
    let world = World::new(Shape::default());
    let _exploring = world.explore();
    let linker = |seed: u32, offset: u64| {
        world.spawn(move |member| {
            member.write(0, seed, offset, 300);
            member.read(0, offset, 300);
        })
    };
    let threads = [linker(1, 100), linker(2, 5000), linker(3, 2 * PAGE)];
    join(threads);
    world.check_at_rest();
}

fn links_against_eviction() {
    let world = World::new(Shape {
        headers: 2,
        ..Shape::default()
    });
    let _exploring = world.explore();
    let evictor = world.spawn(|member| {
        for _ in 0..4 {
            member.evict(0);
        }
    });
    let writer = world.spawn(|member| {
        member.write(0, 1, 0, 100);
        member.sync(0);
        member.write(0, 2, BLOCK, 100);
    });
    let reader = world.spawn(|member| {
        for block in [1, 0, 2] {
            member.read(0, block * BLOCK, 100);
        }
    });
    join([evictor, writer, reader]);
    world.check_at_rest();
}

/// The blocks that a scan finds.
fn owed(member: &Member) -> HashSet<u32> {
    let entry = member.file(0).core.entry();
    let mut found = HashSet::new();
    let mut at = 0;
    while let Some((block, header)) = slots::next_owed(member.me().arena, entry, at) {
        assert_eq!(header.0, block.0 % 64, "another block's header");
        found.insert(block.0);
        at = u64::from(block.0) + 1;
    }
    found
}

/// Blocks far apart make the tree taller while others are marked: no mark may be lost.
pub fn marks_under_growing_roots() {
    let world = World::new(Shape::default());
    let _exploring = world.explore();
    let marker = |blocks: [u32; 2]| {
        world.spawn(move |member| {
            let (me, entry) = (member.me(), member.file(0).core.entry());
            for block in blocks {
                let _operation = me.enter(member.file(0).core.id).expect("no gate is closed");
                let taken = slots::install(me, entry, BlockIndex(block), HeaderId(block % 64));
                assert_eq!(taken, Ok(()));
                slots::mark_owed(me.arena, entry, BlockIndex(block));
                let found = slots::lookup(me.arena, entry, BlockIndex(block));
                assert_eq!(found, Some(HeaderId(block % 64)));
                assert!(owed(member).contains(&block), "block {block} is overlooked");
            }
            slots::clear_owed(me.arena, entry, BlockIndex(blocks[0]));
            let found = owed(member);
            assert!(!found.contains(&blocks[0]) && found.contains(&blocks[1]));
        })
    };
    join([marker([1, 100]), marker([3, 5000]), marker([70, 300_000])]);
    sim::set_exploring(false);
    let member = world.member();
    assert_eq!(owed(&member), HashSet::from([100, 5000, 300_000]));
    let (arena, entry) = (member.me().arena, member.file(0).core.entry());
    slots::drop_tree(arena, entry);
    let free = arena.node_hints().count_about(1000);
    assert_eq!(free, arena.counts().nodes as usize, "nodes are lost");
}

fn one_slot_one_winner() {
    let world = World::new(Shape::default());
    let winners = Arc::new(Mutex::new(Vec::new()));
    let _exploring = world.explore();
    let racer = |header: u32| {
        let winners = Arc::clone(&winners);
        world.spawn(move |member| {
            let (me, entry) = (member.me(), member.file(0).core.entry());
            match slots::install(me, entry, BlockIndex(200), HeaderId(header)) {
                Ok(()) => winners.lock().expect("no panic").push(header),
                Err(refused) => assert!(matches!(refused, slots::Refused::Taken(_))),
            }
        })
    };
    join([racer(0), racer(1), racer(2)]);
    sim::set_exploring(false);
    let member = world.member();
    let found = slots::lookup(
        member.me().arena,
        member.file(0).core.entry(),
        BlockIndex(200),
    );
    assert_eq!(
        *winners.lock().expect("no panic"),
        [found.expect("a winner").0]
    );
    slots::drop_tree(member.me().arena, member.file(0).core.entry());
    let free = member.me().arena.node_hints().count_about(1000);
    assert_eq!(
        free,
        member.me().arena.counts().nodes as usize,
        "nodes are lost"
    );
}

type Owned = Arc<Mutex<HashSet<u32>>>;

fn own(owned: &Owned, id: u32) {
    assert!(
        owned.lock().expect("no panic").insert(id),
        "{id} has two owners"
    );
}

fn disown(owned: &Owned, id: u32) {
    assert!(
        owned.lock().expect("no panic").remove(&id),
        "{id} had no owner"
    );
}

fn frames_have_one_owner() {
    let world = World::new(Shape {
        frames: 2,
        ..Shape::default()
    });
    let owned = Owned::default();
    let _exploring = world.explore();
    let taker = || {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| {
            for _ in 0..4 {
                if let Some(frame) = regions::take_frame(member.me()) {
                    own(&owned, frame.0);
                    sim::point();
                    disown(&owned, frame.0);
                    regions::free_frame(member.me(), frame);
                }
            }
        })
    };
    join([taker(), taker(), taker()]);
    world.check_at_rest();
}

/// Small frames and whole ones of the same memory.
pub fn small_frames_have_one_owner() {
    let world = World::new(Shape {
        frames: 2,
        ..Shape::default()
    });
    let owned = Owned::default();
    let _exploring = world.explore();
    let taker = |rounds: u64| {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| {
            for _ in 0..rounds {
                let count = 1 + dice() % 3;
                let smalls: Vec<_> = (0..count)
                    .filter_map(|_| regions::take_small(member.me(), None))
                    .collect();
                smalls.iter().for_each(|small| own(&owned, small.0));
                for small in smalls {
                    disown(&owned, small.0);
                    regions::free_small(member.me(), None, small);
                }
            }
        })
    };
    let whole = {
        let owned = Arc::clone(&owned);
        world.spawn(move |member| {
            for _ in 0..3 {
                let Some(frame) = regions::take_frame(member.me()) else {
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
    join([taker(3), taker(3), whole]);
    world.check_at_rest();
}

/// A hint that comes out went in, and comes out once.
fn hints_in_the_ring() {
    let world = World::new(Shape::default());
    let (pushed, popped) = (Owned::default(), Owned::default());
    let _exploring = world.explore();
    let pusher = |from: u32| {
        let pushed = Arc::clone(&pushed);
        world.spawn(move |member| {
            for block in from..from + 5 {
                pushed.lock().expect("no panic").insert(block);
                let identity = Identity {
                    file: FileId(1),
                    block: BlockIndex(block),
                };
                ring::push(&member.me().arena.superblock().eager, identity);
            }
        })
    };
    let popper = {
        let (pushed, popped) = (Arc::clone(&pushed), Arc::clone(&popped));
        world.spawn(move |member| {
            let mut cursor = 0;
            for _ in 0..20 {
                let hint = ring::pop(&member.me().arena.superblock().eager, &mut cursor);
                let Some(identity) = hint else { continue };
                assert_eq!(identity.file, FileId(1));
                assert!(pushed.lock().expect("no panic").contains(&identity.block.0));
                own(&popped, identity.block.0);
            }
        })
    };
    join([pusher(0), pusher(100), popper]);
}

/// Several change the device file, and each remembers how it looks then, some of them late.
pub fn what_a_device_file_looks_like_is_of_one_moment() {
    let world = World::new(Shape::default());
    let _exploring = world.explore();
    let changer = || {
        world.spawn(|member| {
            let (core, me) = (&member.file(0).core, member.me());
            for _ in 0..2 {
                let trim = || core.device.trim();
                let changed = core.shared.change(me, core.id, &core.device, trim);
                changed.expect("a simulated file can be trimmed");
            }
        })
    };
    let looker = world.spawn(|member| {
        let (subject, me) = (member.file(0), member.me());
        let (entry, threads) = (subject.core.entry(), me.arena.counts().threads);
        for _ in 0..8 {
            let changes = entry.changes.load(Ordering::Acquire);
            let known = entry.witness(threads);
            let stat = subject.sim.stat().expect("a state");
            let is_same = entry.changes.load(Ordering::Acquire) == changes;
            if let Some(known) = known.filter(|_| is_same && !entry.is_changing(threads)) {
                assert_eq!(known, [stat.len, stat.mtime_ns, stat.ctime_ns], "by others");
            }
        }
    });
    join([changer(), changer(), looker]);
}

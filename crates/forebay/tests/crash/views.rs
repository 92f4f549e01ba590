//! Deaths at each step of taking a view, of letting one go, and of writing to a block that somebody else's view holds.

use forebay::memory::pins;
use forebay::sync::Ordering;
use forebay_model::{Op, SplitMix64};

use crate::deaths::{accesses, chosen, seed};
use crate::scene::{Act, Scene, World};
use crate::scenes::{again, quiet, set_len, sync, write};

const BLOCK: u64 = 256 * 1024;
/// The number of whoever holds views in an arena on the heap.
const HOLDER: u32 = 1;

fn pinned(world: &World) -> u32 {
    let superblock = world.engine.session.shared().arena.superblock();
    superblock.frames_pinned.load(Ordering::Acquire)
}

fn take(world: &mut World) {
    drop(
        world
            .engine
            .handle(0, 0)
            .view(0..2 * BLOCK)
            .expect("a view"),
    );
    drop(world.engine.handle(0, 0).view(10..20).expect("a view"));
}

/// What a process that is gone had pinned is free, and no more.
fn nothing_stays(world: &mut World, n: u64) {
    world.repair();
    world.audit("after the repair");
    let shared = world.engine.session.shared();
    pins::unpin_all_of(shared.me().expect("a slot"), HOLDER);
    assert_eq!(pinned(world), 0, "death {n}");
    world.audit("without views");
    let mut dice = SplitMix64::new(n);
    crate::scene::look(world, &[], &mut dice);
}

fn views_taken(samples: u64) {
    let befores = [
        vec![write(0, 2 * BLOCK)],
        vec![write(100, 5000), write(70_000, 300)],
        vec![write(0, BLOCK + 100), sync(), Op::Evict { file: 0 }],
    ];
    for before in befores {
        let scene = quiet("views", before, take);
        let mut dice = SplitMix64::new(seed());
        for n in chosen(accesses(&scene), samples, &mut dice) {
            let mut world = World::new(&scene);
            if world.die(&scene.act, n).is_none() {
                nothing_stays(&mut world, n);
            }
        }
    }
}

/// Somebody dies at something while somebody else's view holds the block.
fn deaths_beside_a_view(samples: u64) {
    let acts = [
        again(100, 5000, 1),
        again(0, BLOCK, 2),
        set_len(3 * 4096 + 17),
        Op::Punch {
            file: 0,
            handle: 0,
            offset: 100,
            len: 9000,
        },
        Op::Evict { file: 0 },
        sync(),
    ];
    for act in acts {
        let scene = Scene {
            act: Act::Op(act.clone()),
            ..quiet("beside", vec![write(0, BLOCK), sync()], |_| {})
        };
        let mut dice = SplitMix64::new(seed());
        for n in chosen(accesses(&scene) + 40, samples, &mut dice) {
            let mut world = World::new(&scene);
            let view = world.engine.handle(0, 0).view(0..BLOCK).expect("a view");
            assert!(!view.is_copy());
            let bytes = view.to_vec();
            let died = world.die(&scene.act, n).is_none();
            assert!(view[..] == bytes[..], "{act:?}, death {n}");
            world.repair();
            world.audit("beside a view");
            assert_eq!(pinned(&world), 1);
            if died {
                world.adopt(std::slice::from_ref(&act));
            } else {
                world.model.apply(&act);
            }
            world.go_on(n, 6);
            assert!(view[..] == bytes[..], "{act:?}, after death {n}");
            world.audit("later, beside a view");
            drop(view);
            assert_eq!(pinned(&world), 0);
            world.sync_and_compare();
        }
    }
}

#[test]
fn views_taken_and_let_go() {
    views_taken(12);
}

#[test]
fn deaths_while_a_view_is_held() {
    deaths_beside_a_view(8);
}

#[test]
#[ignore = "every access: minutes"]
fn every_death_with_views() {
    views_taken(u64::MAX);
    deaths_beside_a_view(u64::MAX);
}

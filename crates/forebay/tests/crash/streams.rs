//! Deaths in what is done by streams: writeback of the coldest, eviction, a tree that is made anew.

use forebay::Config;
use forebay::config::{DirtyTracking, Route};
use forebay::ids::FileId;
use forebay::stream::tracking;
use forebay::sync::Ordering;
use forebay_model::Op;

use crate::deaths::{SAMPLES, every_death};
use crate::scene::{Act, Scene, World, tracked};
use crate::scenes::{self, sync, write};

const BLOCK: u64 = 256 * 1024;

/// Everything goes to memory, and any of it is too much.
fn config() -> Config {
    Config {
        route: Route::Scrap,
        dirty_background: 0,
        memory: 16 * BLOCK,
        dirty_bytes_max: 8 * BLOCK,
        ..Config::tiny()
    }
}

fn scene(name: &'static str, before: Vec<Op>, act: fn(&mut World)) -> Scene {
    Scene {
        name,
        config,
        tracking: DirtyTracking::Stream,
        before,
        act: Act::Quiet(act),
    }
}

/// Two streams that owe something, and a clean one.
fn two_and_one() -> Vec<Op> {
    let clean = [write(0, 9 * BLOCK), sync()];
    let owing = [write(BLOCK, 2 * BLOCK), write(5 * BLOCK, 9000)];
    clean.into_iter().chain(owing).collect()
}

fn scenes() -> Vec<Scene> {
    vec![
        scene("write the coldest stream", two_and_one(), |world| {
            let shared = world.engine.session.shared();
            let me = shared.me().expect("a slot");
            let mut flusher = shared.own_flusher();
            forebay::file::streams::write_coldest(shared, me, &mut flusher);
        }),
        scene("evict by streams", two_and_one(), |world| {
            let me = world.engine.session.shared().me().expect("a slot");
            forebay::evict::evict(me, 4, 0);
        }),
        scene("a tree is made anew", two_and_one(), |world| {
            let me = world.engine.session.shared().me().expect("a slot");
            let file = FileId(0);
            me.arena.stream_tree(file).doubt.store(1, Ordering::Relaxed);
            let operation = me.enter(file).expect("nobody stops it");
            tracking::mend(me, file, me.arena.file_unchecked(file));
            drop(operation);
        }),
    ]
}

#[test]
fn operations_may_die_with_marks_alone() {
    every_death(&tracked(scenes::all(), DirtyTracking::Page), SAMPLES / 4);
}

#[test]
fn who_works_by_streams_may_die() {
    every_death(&scenes(), 2 * SAMPLES);
}

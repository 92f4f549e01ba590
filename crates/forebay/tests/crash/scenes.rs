//! The states and the operations.

use std::sync::Arc;

use forebay::Config;
use forebay::config::{DirtyTracking, Route};
use forebay::device::Inline;
use forebay::keeper::ahead::Prefetcher;
use forebay_model::{Access, Op};

use crate::scene::{Act, Scene, World, new_device};

const K: u64 = 1024;
const BLOCK: u64 = 256 * K;

pub fn write(offset: u64, len: u64) -> Op {
    // Seeds differ by place, so that no two writes of a scene have the same bytes.
    let seed = (offset * 31 + len * 7 + 1) as u32;
    Op::Write {
        file: 0,
        handle: 0,
        offset,
        len: len as u32,
        seed,
    }
}

/// The same place with other bytes.
pub fn again(offset: u64, len: u64, seed: u32) -> Op {
    Op::Write {
        file: 0,
        handle: 0,
        offset,
        len: len as u32,
        seed: 1_000_000 + seed,
    }
}

pub fn sync() -> Op {
    Op::SyncData { file: 0, handle: 0 }
}

pub fn set_len(len: u64) -> Op {
    Op::SetLen {
        file: 0,
        handle: 0,
        len,
    }
}

fn punch(offset: u64, len: u64) -> Op {
    Op::Punch {
        file: 0,
        handle: 0,
        offset,
        len,
    }
}

fn append(len: u32) -> Op {
    Op::Append {
        file: 0,
        handle: 0,
        len,
        seed: 4242,
    }
}

fn flush() -> Op {
    Op::KeeperStep { steps: 100 }
}

fn evict() -> Op {
    Op::Evict { file: 0 }
}

fn scrap() -> Config {
    Config {
        route: Route::Scrap,
        ..Config::tiny()
    }
}

fn direct() -> Config {
    Config {
        route: Route::Direct,
        ..Config::tiny()
    }
}

fn scene(name: &'static str, before: Vec<Op>, act: Op) -> Scene {
    Scene {
        name,
        config: Config::tiny,
        tracking: DirtyTracking::Stream,
        before,
        act: Act::Op(act),
    }
}

pub fn quiet(name: &'static str, before: Vec<Op>, act: fn(&mut World)) -> Scene {
    Scene {
        name,
        config: Config::tiny,
        tracking: DirtyTracking::Stream,
        before,
        act: Act::Quiet(act),
    }
}

fn with(config: fn() -> Config, scene: Scene) -> Scene {
    Scene { config, ..scene }
}

/// Writes into memory.
pub fn writes() -> Vec<Scene> {
    let small_pages = || {
        (0..8)
            .map(|i| again(i * 8 * K + 100, 50, i as u32))
            .collect::<Vec<_>>()
    };
    let fifteen = || (0..15).map(|i| write(i * 8 * K, 4 * K)).collect::<Vec<_>>();
    vec![
        scene("first write of all", vec![], write(0, 4 * K)),
        scene("first ragged write", vec![], write(100, 50)),
        scene(
            "ragged over a page's end",
            vec![write(0, 64 * K)],
            again(4 * K - 9, 20, 1),
        ),
        scene(
            "next 4 KiB of a sequence",
            vec![write(0, 80 * K), write(80 * K, 4 * K)],
            write(84 * K, 4 * K),
        ),
        scene(
            "over clean pages",
            vec![write(0, 64 * K), sync()],
            again(8 * K, 12 * K, 1),
        ),
        scene(
            "ragged over a clean page",
            vec![write(0, 64 * K), sync()],
            again(8 * K + 5, 100, 1),
        ),
        scene(
            "ragged over an absent page",
            vec![write(0, 64 * K), sync(), evict()],
            again(8 * K + 5, 100, 1),
        ),
        scene(
            "over absent pages",
            vec![write(0, 64 * K), sync(), evict()],
            again(8 * K, 12 * K, 1),
        ),
        scene(
            "over dirty pages",
            vec![write(0, 64 * K)],
            again(8 * K, 12 * K, 1),
        ),
        scene("over small pages", small_pages(), again(8 * K, 5000, 9)),
        scene("small pages into a frame", fifteen(), write(200 * K, 6 * K)),
        scene(
            "small pages into a frame by a large write",
            small_pages(),
            again(100, 70 * K, 9),
        ),
        scene(
            "run and run",
            vec![write(0, 64 * K), sync(), evict(), again(100, 50, 1)],
            again(3000, 50, 2),
        ),
        scene(
            "map and run",
            vec![
                write(0, 64 * K),
                sync(),
                evict(),
                again(100, 50, 1),
                again(300, 50, 2),
            ],
            again(3000, 50, 3),
        ),
        scene(
            "runs make a page",
            vec![again(0, 2000, 1), again(3000, 1096, 2)],
            again(2000, 1000, 3),
        ),
        scene(
            "map makes a page",
            vec![again(0, 1000, 1), again(2000, 2096, 2)],
            again(1000, 1000, 3),
        ),
        scene(
            "two blocks",
            vec![write(0, BLOCK)],
            again(BLOCK - 5000, 10_000, 1),
        ),
        scene(
            "three blocks beyond the end",
            vec![write(0, 1000)],
            write(BLOCK - 3000, BLOCK + 6000),
        ),
        scene(
            "far beyond the end",
            vec![write(0, 1000)],
            write(70 * BLOCK, 100),
        ),
        scene("append", vec![write(0, 5000)], append(3000)),
        scene(
            "append to a synced page",
            vec![write(0, 5000), sync()],
            append(10_000),
        ),
        scene(
            "append to an evicted page",
            vec![write(0, 5000), sync(), evict()],
            append(100),
        ),
        with(
            scrap,
            scene(
                "large into memory",
                vec![write(0, 3 * BLOCK), sync()],
                again(1000, 3 * BLOCK, 1),
            ),
        ),
        scene(
            "memory is full",
            vec![write(0, 7 * BLOCK), sync(), again(0, 100, 1)],
            write(8 * BLOCK, 70 * K),
        ),
        scene(
            "memory is full and owed",
            vec![
                write(0, BLOCK + 100),
                write(2 * BLOCK, 70 * K),
                write(4 * BLOCK, 70 * K),
                write(6 * BLOCK, 70 * K),
            ],
            write(9 * BLOCK, 70 * K),
        ),
    ]
}

/// Writes past memory.
pub fn past_memory() -> Vec<Scene> {
    let asked = straight().into_iter().map(|scene| with(direct, scene));
    asked.chain(as_it_comes()).collect()
}

/// By a route that goes to the device wherever it can.
fn straight() -> Vec<Scene> {
    vec![
        scene("direct into nothing", vec![], write(0, 2 * BLOCK)),
        scene(
            "direct beyond the end",
            vec![write(0, 1000)],
            write(BLOCK, 3 * BLOCK),
        ),
        scene(
            "direct over dirty",
            vec![write(0, 5000), write(BLOCK + 9, 5000)],
            again(0, 2 * BLOCK, 1),
        ),
        scene(
            "direct over clean",
            vec![
                write(0, 2 * BLOCK),
                sync(),
                Op::Read {
                    file: 0,
                    handle: 0,
                    offset: 0,
                    len: 300_000,
                },
            ],
            again(0, 2 * BLOCK, 1),
        ),
        scene(
            "direct over a synced end",
            vec![write(0, BLOCK + 100), sync()],
            again(BLOCK, BLOCK, 1),
        ),
        scene(
            "direct over an end that is owed",
            vec![write(0, BLOCK + 100)],
            again(BLOCK, BLOCK, 1),
        ),
        scene(
            "direct with ragged ends",
            vec![write(0, 3 * BLOCK)],
            again(1000, 2 * BLOCK + 500, 1),
        ),
        scene(
            "direct append",
            vec![write(0, BLOCK)],
            append(2 * BLOCK as u32),
        ),
    ]
}

/// By the everyday route.
fn as_it_comes() -> Vec<Scene> {
    let holes = || vec![set_len(4 * BLOCK), write(BLOCK + 100, 50)];
    vec![
        scene(
            "large by itself",
            vec![write(0, 100)],
            write(0, 3 * BLOCK + 100),
        ),
        scene("into a hole", holes(), write(2 * BLOCK + 7, 5000)),
        scene(
            "into a hole beside runs",
            holes(),
            again(BLOCK + 120, 5000, 1),
        ),
        scene(
            "into a hole beside clean",
            [
                holes(),
                vec![
                    sync(),
                    Op::Read {
                        file: 0,
                        handle: 0,
                        offset: BLOCK,
                        len: 9000,
                    },
                ],
            ]
            .concat(),
            again(BLOCK + 4000, 9000, 1),
        ),
        scene(
            "through a hole to beyond the end",
            holes(),
            again(4 * BLOCK - 100, 5000, 1),
        ),
        scene(
            "after a punch",
            vec![write(0, 2 * BLOCK), sync(), punch(4096, 40_960)],
            again(5000, 100, 2),
        ),
    ]
}

/// Lengths and holes.
pub fn shapes() -> Vec<Scene> {
    let mixed = || {
        vec![
            write(0, 2 * BLOCK + 777),
            sync(),
            again(5000, 100, 1),
            again(BLOCK + 8 * K, 9000, 2),
        ]
    };
    vec![
        scene("cut", mixed(), set_len(BLOCK + 10_000)),
        scene("cut to nothing", mixed(), set_len(0)),
        scene(
            "cut in small pages",
            vec![write(100, 50), write(9000, 50), write(20_000, 50)],
            set_len(9020),
        ),
        scene(
            "cut a map",
            vec![again(100, 50, 1), again(300, 50, 2), again(500, 50, 3)],
            set_len(320),
        ),
        scene(
            "cut the end of nothing",
            vec![write(0, 5000), sync(), evict()],
            set_len(4500),
        ),
        scene("grow", mixed(), set_len(4 * BLOCK)),
        scene(
            "grow over what a sync left",
            vec![write(0, 5000), sync()],
            set_len(90_000),
        ),
        scene("punch", mixed(), punch(6000, BLOCK)),
        scene(
            "punch clean pages",
            vec![write(0, BLOCK), sync()],
            punch(4096 + 100, 20_000),
        ),
        scene(
            "punch ragged pages",
            vec![
                write(0, 64 * K),
                sync(),
                evict(),
                again(5000, 100, 1),
                again(9000, 100, 2),
            ],
            punch(5050, 4000),
        ),
        scene("punch to the end", mixed(), punch(BLOCK, 9 * BLOCK)),
        scene(
            "open and truncate",
            mixed(),
            Op::Reopen {
                file: 0,
                handle: 1,
                access: Access::ReadWrite,
                truncate: true,
            },
        ),
    ]
}

/// What changes no contents.
pub fn upkeep() -> Vec<Scene> {
    let ragged = || {
        vec![
            write(0, 64 * K),
            sync(),
            evict(),
            again(100, 50, 1),
            again(9000, 50, 2),
            again(30_000, 9000, 3),
        ]
    };
    let clean = || {
        vec![
            write(0, BLOCK),
            write(BLOCK, 9000),
            write(3 * BLOCK + 100, 50),
            sync(),
        ]
    };
    let full = || {
        vec![
            write(0, BLOCK),
            write(BLOCK, BLOCK),
            again(100, 50, 1),
            again(2 * BLOCK + 10, 4000, 3),
        ]
    };
    vec![
        scene("sync of whole blocks", full(), sync()),
        scene(
            "sync of ragged pages",
            ragged(),
            Op::SyncAll { file: 0, handle: 0 },
        ),
        scene("sync of nothing", clean(), sync()),
        scene("flush of whole blocks", full(), flush()),
        scene("flush of ragged pages", ragged(), flush()),
        scene(
            "flush of a map",
            vec![
                write(0, 9000),
                sync(),
                evict(),
                again(100, 50, 1),
                again(300, 50, 2),
            ],
            flush(),
        ),
        scene("eviction", clean(), evict()),
        scene(
            "eviction beside dirty pages",
            [clean(), vec![again(100, 50, 1)]].concat(),
            evict(),
        ),
        scene(
            "read from memory",
            full(),
            Op::Read {
                file: 0,
                handle: 0,
                offset: 5,
                len: 300_000,
            },
        ),
        scene(
            "read from the device",
            [clean(), vec![evict()]].concat(),
            Op::Read {
                file: 0,
                handle: 0,
                offset: 5,
                len: 9000,
            },
        ),
        scene(
            "read of a block from the device",
            [clean(), vec![evict()]].concat(),
            Op::Read {
                file: 0,
                handle: 0,
                offset: 5,
                len: 100_000,
            },
        ),
        scene(
            "read around runs",
            ragged(),
            Op::Read {
                file: 0,
                handle: 0,
                offset: 0,
                len: 20_000,
            },
        ),
        scene(
            "reopen",
            full(),
            Op::Reopen {
                file: 0,
                handle: 1,
                access: Access::Append,
                truncate: false,
            },
        ),
        scene("close all", full(), Op::CloseAll { file: 0 }),
        quiet("open another file", full(), |world| {
            let device = new_device(world);
            let mut options = forebay::OpenOptions::new();
            options.read(true).write(true);
            let file = world
                .engine
                .session
                .open_device(device, "another", &options);
            file.expect("a file").close().expect("closed");
        }),
        quiet("memory ahead", vec![], |world| {
            let shared = world.engine.session.shared();
            let me = shared.me().expect("a slot");
            forebay::member::provision::ahead(shared, me, 2 << 20);
        }),
        quiet("memory back", clean(), |world| {
            let shared = world.engine.session.shared();
            let me = shared.me().expect("a slot");
            forebay::evict::evict_file(me, forebay::ids::FileId(0));
            forebay::evict::evict(me, 64, 0);
            forebay::member::provision::give_back(me, 0);
        }),
        quiet("give the file to the kernel", clean(), |world| {
            // A file of its own: the kernel mode of a simulated file leads nowhere.
            let device = new_device(world);
            let mut options = forebay::OpenOptions::new();
            options.read(true).write(true);
            let file = world
                .engine
                .session
                .open_device(device, "another", &options);
            let file = file.expect("a file");
            file.write_at(b"some bytes", 10).expect("written");
            file.to_kernel().expect("given");
        }),
    ]
}

/// Small frames that file 0 has in stock.
fn in_stock(world: &World) -> u32 {
    let core = world.engine.handle(0, 0).core().expect("a managed file");
    core.entry().stock.held().parts.count_ones()
}

/// Stocks of small frames: filled, drawn from, taken away.
pub fn stocks() -> Vec<Scene> {
    // Pages of as many blocks as the arena has headers for: the stock is filled with one, two, four...
    let scattered = |count: u64| {
        (0..count)
            .map(|i| again(i * BLOCK + 100, 50, i as u32))
            .collect::<Vec<_>>()
    };
    let synced = |count| [scattered(count), vec![sync()]].concat();
    vec![
        scene("a stock is filled", scattered(7), again(9 * BLOCK, 50, 77)),
        scene(
            "a stock is drawn from",
            scattered(8),
            again(9 * BLOCK, 50, 77),
        ),
        scene(
            "several pages fill a stock twice",
            scattered(2),
            again(9 * BLOCK, 14 * 4096, 77),
        ),
        scene("eviction into a stock", synced(5), evict()),
        scene("close with a stock", scattered(9), Op::CloseAll { file: 0 }),
        scene("cut what a stock gave", scattered(5), set_len(50)),
        quiet("stocks are halved", scattered(9), |world| {
            let me = world.engine.session.shared().me().expect("a slot");
            assert_ne!(in_stock(world), 0, "nothing to halve");
            forebay::memory::regions::halve_all(me);
        }),
        quiet(
            "stocks are taken, and frames whole again",
            synced(9),
            |world| {
                let me = world.engine.session.shared().me().expect("a slot");
                forebay::evict::evict(me, 64, 0);
                forebay::memory::regions::give_all_back(me);
            },
        ),
    ]
}

/// Becoming the keeper.
pub fn keeping() -> Vec<Scene> {
    let owing = vec![write(0, BLOCK), write(BLOCK, 9000)];
    vec![quiet("take office", owing, |world| {
        let shared = world.engine.session.shared();
        let me = shared.me().expect("a slot");
        assert!(forebay::keeper::run::take_office(shared, me, &mut None));
    })]
}

/// Reading ahead: a reader dies that asks or waits, or a keeper that has taken what was asked.
pub fn reading_ahead() -> Vec<Scene> {
    let uncached = || vec![write(0, 3 * BLOCK), sync(), evict()];
    let read = |offset, len| Op::Read {
        file: 0,
        handle: 0,
        offset,
        len,
    };
    // The first of these asks; the keeper of the state has begun nothing.
    let asking = || {
        let mut before = uncached();
        before.extend([0, 1].map(|at| read(at * 64 * K, 64 * K as u32)));
        before
    };
    let keep = |world: &mut World| {
        let shared = world.engine.session.shared();
        let me = shared.me().expect("a slot");
        let mut prefetcher = Prefetcher::new(Box::new(Inline::new()), 4);
        prefetcher.take_office(me);
        prefetcher.round(shared, me, true);
        prefetcher.leave(shared, me);
    };
    let scenes = vec![
        scene("a reader asks", uncached(), read(0, 64 * K as u32)),
        scene("a reader takes back", asking(), read(BLOCK, 64 * K as u32)),
        quiet("a keeper reads ahead", asking(), keep),
        quiet("a keeper dies, and a reader reads on", asking(), |world| {
            let shared = Arc::clone(world.engine.session.shared());
            let me = shared.me().expect("a slot");
            let mut prefetcher = Prefetcher::new(Box::new(Inline::new()), 4);
            prefetcher.take_office(me);
            prefetcher.round(&shared, me, true);
            world.read_all(0);
        }),
    ];
    scenes
        .into_iter()
        .map(|scene| with(reads_ahead, scene))
        .collect()
}

/// Somebody stands for the keeper from the beginning.
fn reads_ahead() -> Config {
    Config {
        read_ahead: 4 * BLOCK,
        memory: 16 * BLOCK,
        ..Config::tiny()
    }
}

pub fn all() -> Vec<Scene> {
    [
        writes(),
        past_memory(),
        shapes(),
        upkeep(),
        keeping(),
        stocks(),
        reading_ahead(),
    ]
    .concat()
}

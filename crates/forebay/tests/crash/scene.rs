//! One death: a state is prepared, a victim dies in it, a survivor repairs and looks.

use std::sync::Arc;

use forebay::config::DirtyTracking;
use forebay::device::{DeviceFile, Inline};
use forebay::ids::ThreadId;
use forebay::keeper::ahead::Prefetcher;
use forebay::keeper::check::check;
use forebay::keeper::check::doubt::doubt;
use forebay::keeper::repair;
use forebay::member::members;
use forebay::memory::threads;
use forebay::sim::device::{SimDisk, SimFile};
use forebay::sync::Ordering;
use forebay::{Config, sim};
use forebay_model::{
    Driver, Model, Op, Outcome, Profile, SplitMix64, Target, first_difference, generate,
};

use crate::common::{Engine, Store};

pub const FILES: usize = 2;
pub const HANDLES: usize = 2;

/// What a victim does.
#[derive(Clone)]
pub enum Act {
    /// An operation of the model.
    Op(Op),
    /// Something that changes no contents.
    Quiet(fn(&mut World)),
}

/// A state to die in, and what is done there.
#[derive(Clone)]
pub struct Scene {
    pub name: &'static str,
    pub config: fn() -> Config,
    pub tracking: DirtyTracking,
    pub before: Vec<Op>,
    pub act: Act,
}

/// The same scenes in sessions that track otherwise what is owed.
pub fn tracked(scenes: Vec<Scene>, tracking: DirtyTracking) -> Vec<Scene> {
    let other = |scene| Scene { tracking, ..scene };
    scenes.into_iter().map(other).collect()
}

/// A session with files on a disk, and the model of them.
pub struct World {
    pub disk: SimDisk,
    pub files: Vec<Arc<SimFile>>,
    pub engine: Engine,
    pub model: Model,
}

impl World {
    /// The state of a scene, made by a client that goes on living, idle.
    pub fn new(scene: &Scene) -> World {
        let (disk, store) = Store::sim(FILES, 1 << 30);
        let files = (1..=FILES as u64)
            .map(|inode| disk.open(inode).expect("a file"))
            .collect();
        let config = (scene.config)().with_tracking(scene.tracking);
        let read_ahead = config.read_ahead != Config::tiny().read_ahead;
        let engine = Engine::new(config, store, FILES, HANDLES);
        if read_ahead {
            // So that readers ask; nothing is begun but by an act.
            let me = engine.session.shared().me().expect("a thread slot");
            Prefetcher::new(Box::new(Inline::new()), 1).take_office(me);
        }
        let mut world = World {
            disk,
            files,
            engine,
            model: Model::new(FILES, HANDLES),
        };
        for op in &scene.before {
            world.must(op);
        }
        world
    }

    /// An operation that has to end as the model says.
    pub fn must(&mut self, op: &Op) {
        let expected = self.model.apply(op);
        let outcome = self.engine.run(op);
        assert!(
            outcome == expected,
            "{op:?}: expected {expected:?}, got {outcome:?}"
        );
    }

    /// This operating-system thread becomes another client.
    pub fn become_somebody_else(&self) -> ThreadId {
        let shared = self.engine.session.shared();
        members::forget(shared.instance);
        shared.me().expect("a thread slot").id
    }

    /// A client begins `act` and dies before its `n`-th access. `None`: it died. Handles that it has taken along are
    /// opened again.
    pub fn die(&mut self, act: &Act, n: u64) -> Option<()> {
        let ended = self.die_untouched(act, n);
        self.open_missing();
        ended
    }

    /// As [`World::die`]; nobody touches anything afterwards.
    pub fn die_untouched(&mut self, act: &Act, n: u64) -> Option<()> {
        let victim = self.become_somebody_else();
        let ended = match act {
            Act::Op(op) => sim::crash_after(n, || {
                let outcome = self.engine.run(op);
                assert!(
                    !matches!(outcome, Outcome::Failed(_)),
                    "{op:?}: {outcome:?}"
                );
            }),
            Act::Quiet(quiet) => sim::crash_after(n, || quiet(self)),
        };
        if ended.is_none() {
            threads::slay(&self.engine.session.shared().arena, victim);
        }
        self.become_somebody_else();
        ended
    }

    /// A victim may have died between a close and an open.
    pub fn open_missing(&mut self) {
        for file in 0..FILES {
            for handle in 0..HANDLES {
                if self.engine.files[file][handle].is_none() {
                    self.reopen_one(file as u8, handle as u8);
                }
            }
        }
    }

    fn reopen_one(&mut self, file: u8, handle: u8) {
        let access = forebay_model::Access::ReadWrite;
        let op = Op::Reopen {
            file,
            handle,
            access,
            truncate: false,
        };
        assert_eq!(self.engine.run(&op), Outcome::Done, "{op:?}");
    }

    /// Repairs as a waiter would: again and again until nobody dead is left.
    pub fn repair(&self) {
        let shared = self.engine.session.shared();
        let me = shared.me().expect("a thread slot");
        for _ in 0..8 {
            assert_eq!(doubt(me.arena), None, "a death is taken for damage");
            if let Some(findings) = repair::if_needed(shared, me) {
                assert_eq!(findings.corruptions, 0, "{findings:?}");
            }
        }
        assert_eq!(threads::dead(me.arena), [], "the dead are not buried");
    }

    /// The books balance.
    pub fn audit(&self, when: &str) {
        match check(&self.engine.session.shared().arena) {
            Ok(report) => assert_eq!(report.files_noted, 0, "{when}: changes under way"),
            Err(problems) => panic!("{when}: {problems:#?}"),
        }
    }

    /// All bytes of a file, as a program reads them.
    pub fn read_all(&mut self, file: u8) -> Vec<u8> {
        self.reopen(file);
        let handle = self.engine.handle(file, 0);
        let len = handle.len().expect("a length");
        let mut bytes = vec![0; len as usize];
        let read = handle.read_at(&mut bytes, 0).expect("bytes");
        assert_eq!(read as u64, len, "a short read of file {file}");
        assert_eq!(
            handle.len().expect("a length"),
            len,
            "the length changed while it was read"
        );
        bytes
    }

    fn reopen(&mut self, file: u8) {
        (0..HANDLES as u8).for_each(|handle| self.reopen_one(file, handle));
    }

    /// What is there is what was acknowledged, with what was under way old or new; from here on it is the truth.
    pub fn adopt(&mut self, under_way: &[Op]) {
        for file in 0..FILES as u8 {
            let image = self.read_all(file);
            self.model
                .adopt_after_death(file, under_way, &image)
                .unwrap_or_else(|m| panic!("{m}"));
        }
    }

    /// A sync of everything: the device has what the model says, and nothing is owed.
    pub fn sync_and_compare(&mut self) {
        for file in 0..FILES as u8 {
            self.must(&Op::SyncAll { file, handle: 0 });
            let device = self.files[usize::from(file)].contents();
            let model = self.model.content(file).read(0, u64::MAX);
            compare(&device, &model, file);
            let core = self.engine.handle(file, 0).core().expect("a managed file");
            let owed = core.entry().owed_pages.load(Ordering::Acquire);
            assert_eq!(owed, 0, "file {file} owes pages after a sync");
        }
        self.audit("after a sync");
    }

    /// The session is as good as new: random operations agree with the model.
    pub fn go_on(&mut self, seed: u64, ops: usize) {
        let list = generate(seed, &Profile::TINY, ops);
        let mut driver = Driver::from_model(self.model.clone());
        for op in &list {
            driver
                .step(op, &mut self.engine)
                .unwrap_or_else(|m| panic!("after the repair: {m}"));
        }
        driver
            .finish(&mut self.engine)
            .unwrap_or_else(|m| panic!("after the repair: {m}"));
        self.model = driver.model().clone();
    }

    /// Drops what is clean, so that what is read next comes from the device.
    pub fn evict(&mut self) {
        for file in 0..FILES as u8 {
            self.must(&Op::Evict { file });
        }
    }
}

fn compare(device: &[u8], model: &[u8], file: u8) {
    assert_eq!(
        device.len(),
        model.len(),
        "length of file {file} on the device"
    );
    if let Some(at) = first_difference(device, model) {
        panic!(
            "file {file} byte {at}: device {} and model {}",
            device[at], model[at]
        );
    }
}

/// What survivors do first, before anybody looks: the orders in which a repair can be met.
pub fn look(world: &mut World, under_way: &[Op], dice: &mut SplitMix64) {
    match dice.below(6) {
        0 => world.repair(),
        1 => drop(world.read_all(dice.below(2) as u8)),
        2 => {
            world.repair();
            world.evict();
        }
        3 => {
            let outcome = world.engine.run(&Op::KeeperStep { steps: 100 });
            assert_eq!(outcome, Outcome::Done);
        }
        4 => {
            let file = dice.below(FILES as u64) as u8;
            append_first(world, under_way, file);
        }
        _ => {
            let file = dice.below(FILES as u64) as u8;
            let outcome = world.engine.run(&Op::SyncData { file, handle: 1 });
            assert_eq!(outcome, Outcome::Done);
        }
    }
    world.repair();
    world.audit("after the repair");
    world.adopt(under_way);
    world.audit("after reading");
    match dice.below(4) {
        0 => world.evict(),
        1 => grow(world, dice),
        _ => {}
    }
    world.sync_and_compare();
    world.go_on(dice.next_u64(), 6);
    world.sync_and_compare();
    world.evict();
    world.audit("at the end");
    let mut driver = Driver::from_model(world.model.clone());
    driver
        .finish(&mut world.engine)
        .unwrap_or_else(|m| panic!("at the end: {m}"));
}

/// An append that meets the death: it goes to the end, wherever that is now.
fn append_first(world: &mut World, under_way: &[Op], file: u8) {
    world.reopen(file);
    const LEN: u32 = 5000;
    let op = Op::Append {
        file,
        handle: 0,
        len: LEN,
        seed: 0x00c0_ffee,
    };
    let Outcome::AppendedAt(at) = world.engine.run(&op) else {
        panic!("an append fails")
    };
    let mut image = world.read_all(file);
    assert_eq!(
        image.len() as u64,
        at + u64::from(LEN),
        "an append is not at the end"
    );
    let mut expected = vec![0; LEN as usize];
    forebay_model::fill(0x00c0_ffee, at, &mut expected);
    assert!(
        image.split_off(at as usize) == expected,
        "appended bytes are others"
    );
    world
        .model
        .adopt_after_death(file, under_way, &image)
        .unwrap_or_else(|m| panic!("{m}"));
    let expected = world.model.apply(&op);
    assert_eq!(expected, Outcome::AppendedAt(at));
}

/// What lies beyond the end is zeros, when the end moves.
fn grow(world: &mut World, dice: &mut SplitMix64) {
    for file in 0..FILES as u8 {
        let len = world.model.content(file).len() + 1 + dice.below(900_000);
        if dice.below(2) == 0 {
            world.must(&Op::SetLen {
                file,
                handle: 0,
                len,
            });
        } else {
            world.must(&Op::Write {
                file,
                handle: 0,
                offset: len,
                len: 3,
                seed: 77,
            });
        }
        let read = Op::Read {
            file,
            handle: 0,
            offset: 0,
            len: 8 << 20,
        };
        world.must(&read);
    }
}

/// The devices of a world, for acts that open them anew.
pub fn new_device(world: &World) -> Arc<dyn DeviceFile> {
    world.disk.create()
}

//! Memory that is full of what nobody writes: owed by processes that have nothing to do while there is no keeper, or to files that nobody
//! can open any more. Who needs memory then goes past it.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay::device::DeviceFile;
use forebay::limits::BLOCK_BYTES;
use forebay::sim::tasks::{Simulation, sleep};
use forebay::sync::Ordering;
use forebay_model::Access;

use crate::audit;
use crate::change::Change;
use crate::client::Buffer;
use crate::scenes::crowded_swarm;
use crate::world::World;

const PAGE: usize = 4096;
const SCHEDULES: u64 = 6;
/// The longest that a write may wait for memory that does not come, and for the device.
const SOON: Duration = Duration::from_secs(4);

/// A session, by itself.
struct Stage {
    sim: Simulation,
    world: Rc<World>,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let swarm = crowded_swarm(seed);
        Stage {
            sim: Simulation::new(seed, swarm.manner),
            world: World::new(swarm),
        }
    }

    fn run(&self, time: Duration, until: impl Fn() -> bool) -> Result<bool, String> {
        let ran = self.sim.run(time, until);
        ran.map_err(|failure| format!("{}: {}", failure.task, failure.what))
    }

    fn await_end(&self, task: u32) -> Result<(), String> {
        match self.run(SOON, || self.sim.is_gone(task))? {
            true => Ok(()),
            false => Err(format!("hangs: {}", self.sim.describe())),
        }
    }

    fn start_keeper(&self, process: u32) -> Result<(), String> {
        for (name, body) in self.world.new_keeper() {
            self.sim.spawn(process, name, body);
        }
        self.run(Duration::from_millis(20), || false).map(drop)
    }

    /// A process fills the memory with what it owes to the first file, and does nothing from then on.
    fn fill_memory(&self, process: u32) -> Result<(), String> {
        let filled = Rc::new(Cell::new(false));
        let (of, client, done) = (
            Rc::clone(&self.world),
            self.world.new_client(),
            Rc::clone(&filled),
        );
        self.sim.spawn(process, "who owes", move || {
            let opened = of.open(&client.session, 0, Access::ReadWrite, false);
            let file = opened.expect("a file can be opened");
            for block in 0..3 {
                let pages = Buffer::new(40 * PAGE, 0).get().to_vec();
                let written = file.write_at(&pages, block * BLOCK_BYTES as u64 + 100);
                assert_eq!(written.expect("a write"), pages.len());
            }
            done.set(true);
            sleep(Duration::from_secs(1000));
        });
        match self.run(Duration::from_millis(50), || filled.get())? {
            true => Ok(()),
            false => Err("the memory is not filled".into()),
        }
    }

    /// Keeper 1 has the first file, which has lost its name, when process 2 is killed, which owes it all memory.
    fn kill_who_owes_a_file_without_a_name(&self) -> Result<(), String> {
        self.start_keeper(1)?;
        self.fill_memory(2)?;
        let file = self.world.files[0].sim();
        self.world.disk.unlink(file.caps().inode);
        self.sim.kill(2);
        Ok(())
    }

    /// Another one writes the second file in order, appends to it, and reads that.
    fn write_the_other(&self, process: u32) -> Result<(), String> {
        let (of, client) = (Rc::clone(&self.world), self.world.new_client());
        self.sim.spawn(process, "who needs memory", move || {
            let opened = of.open(&client.session, 1, Access::ReadWrite, false);
            let file = opened.expect("a file can be opened");
            let mut memory = Buffer::new(40 * PAGE, 0);
            let bytes = memory.get();
            let change = Change::write(&of, 1, 0, bytes.len() as u64).expect("nobody else writes");
            forebay_model::fill(change.seed, 0, bytes);
            assert_eq!(file.write_at(bytes, 0).expect("a write"), bytes.len());
            change.done();
            let change = Change::append(&of, 1, bytes.len() as u64).expect("nobody else appends");
            forebay_model::fill(change.seed, 0, bytes);
            change.done_at(file.append(bytes).expect("an append"));
            let looking = Change::look(&of, 1);
            let mut found = Buffer::new(81 * PAGE, 0);
            let read = file.read_at(found.get(), 0).expect("bytes");
            looking.check_read(0, 81 * PAGE as u64, &found.get()[..read]);
            std::mem::forget(file);
        });
        self.await_end(process)
    }

    fn owed_pages(&self) -> u64 {
        let shared = self.world.join();
        let owed = &shared.arena.superblock().owed_pages;
        owed.load(Ordering::Acquire)
    }
}

fn every_seed(scene: fn(u64) -> Result<(), String>) {
    let failed: Vec<String> = (0..SCHEDULES)
        .filter_map(|seed| Some(format!("seed {seed}: {}", scene(seed).err()?)))
        .collect();
    assert!(failed.is_empty(), "{} fail: {}", failed.len(), failed[0]);
}

/// There is no keeper, and who owes what fills the memory has nothing to do.
fn idle_without_a_keeper(seed: u64) -> Result<(), String> {
    let stage = Stage::new(seed);
    stage.fill_memory(1)?;
    stage.write_the_other(2)
}

#[test]
fn who_finds_no_memory_writes_past_it() {
    every_seed(idle_without_a_keeper);
}

/// The file has lost its name, who owed it bytes has died, and the keeper with him, before it had written them.
fn owed_to_a_file_that_is_gone(seed: u64) -> Result<(), String> {
    let stage = Stage::new(seed);
    stage.kill_who_owes_a_file_without_a_name()?;
    stage.sim.kill(1);
    stage.run(SOON, || stage.sim.is_gone(1) && stage.sim.is_gone(2))?;
    stage.world.forget_keeper();
    stage.start_keeper(3)?;
    stage.write_the_other(4)
}

#[test]
fn what_is_owed_to_a_file_that_is_gone_stops_no_writer() {
    every_seed(owed_to_a_file_that_is_gone);
}

/// The keeper ends by itself, soon after the death of who owed bytes to a file without a name: it alone has that open.
fn a_keeper_ends_after_a_death(seed: u64) -> Result<(), String> {
    let stage = Stage::new(seed);
    stage.kill_who_owes_a_file_without_a_name()?;
    stage.run(SOON, || stage.sim.is_gone(2))?;
    stage.world.stop_keeper();
    stage.await_end(1)?;
    stage.world.forget_keeper();
    match stage.owed_pages() {
        0 => Ok(()),
        owed => Err(format!("{owed} pages are owed")),
    }
}

#[test]
fn a_keeper_that_ends_writes_what_the_dead_owe() {
    every_seed(a_keeper_ends_after_a_death);
}

/// All headers are owed to one file by a process that has nothing to do, and an audit looks at another file first.
fn an_audit_without_headers(seed: u64) -> Result<(), String> {
    let stage = Stage::new(seed);
    let (of, client) = (Rc::clone(&stage.world), stage.world.new_client());
    let write = move |index: usize, file: &forebay::File, offset: u64| {
        let change = Change::write(&of, index, offset, offset + 100).expect("nobody else writes");
        let mut bytes = [0; 100];
        forebay_model::fill(change.seed, offset, &mut bytes);
        assert_eq!(file.write_at(&bytes, offset).expect("a write"), 100);
        change.done();
    };
    let written = Rc::new(Cell::new(false));
    let (of, done) = (Rc::clone(&stage.world), Rc::clone(&written));
    stage.sim.spawn(1, "who owes", move || {
        let [first, second] = [0, 1].map(|index| {
            let opened = of.open(&client.session, index, Access::ReadWrite, false);
            opened.expect("a file can be opened")
        });
        write(0, &first, 0);
        first.sync_data().expect("a sync");
        let core = first.core().expect("a managed file");
        forebay::evict::evict_file(core.shared.me().expect("a slot"), core.id);
        for block in 0..6 {
            write(1, &second, block * BLOCK_BYTES as u64);
        }
        done.set(true);
        sleep(Duration::from_secs(1000));
    });
    if !stage.run(Duration::from_millis(50), || written.get())? {
        return Err("the headers are not owed".into());
    }
    let of = Rc::clone(&stage.world);
    stage.sim.spawn(2, "the auditor", move || {
        audit::look_at_everything(&of, 1);
    });
    stage.await_end(2)
}

#[test]
fn an_audit_writes_what_is_in_its_way() {
    every_seed(an_audit_without_headers);
}

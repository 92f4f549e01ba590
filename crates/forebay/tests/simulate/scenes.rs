//! What the simulation has found, each by itself: few steps, under many schedules.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use forebay::device::{DeviceFile, Piece};
use forebay::keeper::{repair, unfinished};
use forebay::limits::BLOCK_BYTES;
use forebay::member::again;
use forebay::memory::threads;
use forebay::sim::device::Weather;
use forebay::sim::tasks::{Manner, Simulation};
use forebay::sim::{Bug, plant};
use forebay::sync::Ordering;
use forebay::sync::time::{Instant, sleep};
use forebay::{Config, File};
use forebay_model::Access;

use crate::audit;
use crate::change::Change;
use crate::client::Buffer;
use crate::swarm::Swarm;
use crate::world::World;

const PAGE: u64 = 4096;

/// What one client does with the file.
type Part = fn(&Rc<World>, &File);

/// Three frames, for two files, and nothing that is owed is too much.
pub fn crowded_swarm(seed: u64) -> Swarm {
    Swarm {
        files: 2,
        frames: 3,
        headers: 6,
        memory: 3 * BLOCK_BYTES as u64,
        dirty_max: 1 << 40,
        route: forebay::config::Route::Threshold,
        ..quiet_swarm(seed)
    }
}

/// A small world without deaths and errors.
fn quiet_swarm(seed: u64) -> Swarm {
    let manner = Manner {
        accesses: 6,
        absence_rarity: 8,
        absence_ns: 20_000,
    };
    Swarm {
        files: 1,
        handles: 1,
        threads: 1,
        window: 4 * BLOCK_BYTES as u64,
        frames: 8,
        headers: 16,
        memory: 8 * BLOCK_BYTES as u64,
        dirty_max: Config::tiny().dirty_bytes_max,
        read_ahead: 0,
        route: forebay::config::Route::Scrap,
        flush_after: None,
        flush_interval: None,
        idle_after: None,
        weather: Weather {
            latency_ns: (100, 5000),
            slow_rarity: 0,
            error_rarity: 0,
            short_rarity: 0,
            part_bytes: 1 << 20,
        },
        stable_writes: false,
        capacity: 1 << 30,
        manner,
        keeper: false,
        power_losses: 0,
        ..Swarm::new(seed)
    }
}

/// One client does `first`; then others do `parts` at the same time; then there is an audit.
fn play(swarm: Swarm, first: Part, parts: &[Part]) -> Result<Rc<World>, String> {
    let sim = Simulation::new(swarm.seed, swarm.manner);
    let world = World::new(swarm);
    let run = |task: u32, part: Part| {
        let (of, process) = (Rc::clone(&world), world.new_client());
        sim.spawn(task, &format!("part {task}"), move || {
            let opened = of.open(&process.session, 0, Access::ReadWrite, false);
            let file = opened.expect("a file can be opened");
            part(&of, &file);
            // Closing flushes; what is looked at is what is owed.
            std::mem::forget(file);
        });
    };
    let ended = |last: u32| {
        let over = sim.run(Duration::from_secs(10), || {
            (1..=last).all(|task| sim.is_gone(task))
        });
        match over {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!("hangs: {}", sim.describe())),
            Err(failure) => Err(format!("{}: {}", failure.task, failure.what)),
        }
    };
    run(1, first);
    ended(1)?;
    let last = 1 + parts.len() as u32;
    (2..).zip(parts).for_each(|(task, part)| run(task, *part));
    ended(last)?;
    let of = Rc::clone(&world);
    sim.spawn(last + 1, "the auditor", move || {
        audit::look_at_everything(&of, 1)
    });
    ended(last + 1)?;
    drop(sim);
    Ok(world)
}

fn write(world: &Rc<World>, file: &File, offset: u64, len: u64) {
    let change = Change::write(world, 0, offset, offset + len).expect("nothing is in the way");
    let mut memory = Buffer::new(len as usize, 0);
    forebay_model::fill(change.seed, offset, memory.get());
    let written = file.write_at(memory.get(), offset).expect("a write");
    assert_eq!(written as u64, len);
    change.done();
}

fn punch(world: &Rc<World>, file: &File, offset: u64, len: u64) {
    let change = Change::hole(world, 0, offset, offset + len).expect("nothing is in the way");
    file.punch(offset, len).expect("a hole");
    change.done();
}

fn set_len(world: &Rc<World>, file: &File, len: u64) {
    let change = Change::resize(world, 0, len).expect("nothing is in the way");
    file.set_len(len).expect("a truncation");
    change.done();
}

fn begin(world: &Rc<World>, file: &File) {
    write(world, file, 0, 40_000);
}

fn written_and_synced(world: &Rc<World>, file: &File) {
    write(world, file, 0, 16 * PAGE);
    file.sync_data().expect("a sync");
}

fn grown(world: &Rc<World>, file: &File) {
    write(world, file, 0, 40_000);
    set_len(world, file, 700_000);
}

fn far(world: &Rc<World>, file: &File) {
    write(world, file, 852_316, 3251);
}

fn less_far(world: &Rc<World>, file: &File) {
    write(world, file, 335_872, 8041);
}

fn at_the_end(world: &Rc<World>, file: &File) {
    write(world, file, 700_000, 2695);
}

fn within_the_gap(world: &Rc<World>, file: &File) {
    write(world, file, 607_422, 16_384);
}

fn punch_eight_pages(world: &Rc<World>, file: &File) {
    punch(world, file, 0, 8 * PAGE);
}

fn write_two_pages(world: &Rc<World>, file: &File) {
    write(world, file, 2 * PAGE + 10, 2 * PAGE);
}

/// Schedules that are tried, and those that are tried at most to find a planted bug.
const SCHEDULES: u64 = 60;
const SCHEDULES_MAX: u64 = 1000;

/// So many schedules are sound.
fn sound(schedules: u64, first: Part, parts: &[Part]) -> Result<(), String> {
    for seed in 0..schedules {
        play(quiet_swarm(seed), first, parts).map_err(|what| format!("seed {seed}: {what}"))?;
    }
    Ok(())
}

fn must_fail(bug: Bug, scene: impl Fn(u64) -> Result<(), String>) {
    plant(Some(bug));
    let result = scene(SCHEDULES_MAX);
    plant(None);
    assert!(
        result.is_err(),
        "{bug:?} was planted, and nothing went wrong"
    );
}

fn two_beyond_the_end(schedules: u64) -> Result<(), String> {
    sound(schedules, begin, &[far, less_far])
}

fn a_writer_and_a_hole(schedules: u64) -> Result<(), String> {
    sound(
        schedules,
        written_and_synced,
        &[write_two_pages, punch_eight_pages],
    )
}

fn a_writer_in_a_gap_that_another_passes(schedules: u64) -> Result<(), String> {
    sound(schedules, grown, &[within_the_gap, at_the_end])
}

#[test]
fn of_two_who_write_beyond_the_end_both_have_their_space() {
    two_beyond_the_end(SCHEDULES).unwrap_or_else(|what| panic!("{what}"));
    must_fail(Bug::BlindToHoles, two_beyond_the_end);
}

#[test]
fn who_writes_where_another_punches_has_his_space() {
    a_writer_and_a_hole(SCHEDULES).unwrap_or_else(|what| panic!("{what}"));
    must_fail(Bug::BlindToHoles, a_writer_and_a_hole);
}

#[test]
fn who_writes_into_a_gap_that_another_passes_has_his_space() {
    a_writer_in_a_gap_that_another_passes(SCHEDULES).unwrap_or_else(|what| panic!("{what}"));
    must_fail(Bug::BorrowedSpace, a_writer_in_a_gap_that_another_passes);
}

/// Holes, filled in order from the beginning until two blocks are known to have space.
fn filled_in_order(world: &Rc<World>, file: &File) {
    set_len(world, file, 700_000);
    for page in (0..100).step_by(2) {
        write(world, file, page * PAGE, 2 * PAGE);
    }
    file.sync_data().expect("a sync");
}

fn punch_in_the_second_block(world: &Rc<World>, file: &File) {
    punch(world, file, 68 * PAGE, 20 * PAGE);
}

fn write_in_the_second_block(world: &Rc<World>, file: &File) {
    for page in 72..76 {
        write(world, file, page * PAGE + 10, 1000);
    }
}

fn a_writer_and_a_hole_in_what_has_been_filled(schedules: u64) -> Result<(), String> {
    sound(
        schedules,
        filled_in_order,
        &[write_in_the_second_block, punch_in_the_second_block],
    )
}

#[test]
fn what_was_known_to_have_space_is_not_where_another_punches() {
    a_writer_and_a_hole_in_what_has_been_filled(SCHEDULES).unwrap_or_else(|what| panic!("{what}"));
    must_fail(Bug::SolidHoles, a_writer_and_a_hole_in_what_has_been_filled);
}

/// That what is filled in order gets space ahead, so that hardly any write asks for it.
#[test]
fn holes_that_are_filled_in_order_get_space_ahead() {
    let world = play(quiet_swarm(2), filled_in_order, &[]).unwrap_or_else(|what| panic!("{what}"));
    let sim = world.files[0].sim();
    assert!(sim.is_allocated(0, 700_000).expect("a look"));
}

fn around_a_hole(world: &Rc<World>, file: &File) {
    write(world, file, 0, 4 * PAGE);
    file.sync_data().expect("a sync");
    punch(world, file, PAGE, 2 * PAGE);
    // The hole is in memory now, clean, and its neighbours owe something.
    let mut all = Buffer::new(4 * PAGE as usize, 0);
    assert_eq!(
        file.read_at(all.get(), 0).expect("bytes"),
        4 * PAGE as usize
    );
    write(world, file, 0, PAGE);
    write(world, file, 3 * PAGE, PAGE);
    file.sync_data().expect("a sync");
}

fn holes_stay() -> Result<(), String> {
    let world = play(quiet_swarm(1), around_a_hole, &[])?;
    let filled = world.files[0].sim().is_allocated(PAGE, PAGE);
    match filled.expect("a look") {
        true => Err("a hole has got space, which a full disk would not have had".into()),
        false => Ok(()),
    }
}

#[test]
fn a_hole_is_not_filled_when_its_neighbours_are_written() {
    holes_stay().unwrap_or_else(|what| panic!("{what}"));
    must_fail(Bug::FillHoles, |_| holes_stay());
}

/// A small world whose devices write a part of what they are given now and then.
fn short_swarm(seed: u64) -> Swarm {
    let quiet = quiet_swarm(seed);
    let weather = Weather {
        short_rarity: 2,
        ..quiet.weather
    };
    Swarm { weather, ..quiet }
}

/// The bytes before a file's end go through the kernel's cache, which may take a part of them.
#[test]
fn short_writes_of_the_last_page_are_gone_on_with() {
    for seed in 0..20 {
        let synced: Part = |world, file| {
            write(world, file, 0, 2 * PAGE + 1000);
            file.sync_data()
                .expect("a sync of a device that does not fail");
        };
        play(short_swarm(seed), synced, &[]).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

/// A close gives the kernel's cache a little, whole pages, too, and that may take a part of a page.
#[test]
fn short_writes_of_a_close_are_gone_on_with() {
    for seed in 0..40 {
        let swarm = short_swarm(seed);
        let sim = Simulation::new(seed, swarm.manner);
        let world = World::new(swarm);
        let (of, process) = (Rc::clone(&world), world.new_client());
        sim.spawn(1, "who closes", move || {
            let opened = of.open(&process.session, 0, Access::ReadWrite, false);
            let file = opened.expect("a file can be opened");
            let core = file.core().expect("a managed file").clone();
            write(&of, &file, 0, 2 * PAGE);
            let closed = file.close_behind(|| ());
            closed.expect("a close to a device that does not fail");
            // What a later flush made good would be told to who has the file open while another one owes more.
            let error = core.entry().error.load(Ordering::Acquire);
            assert_eq!(error, 0, "a flush has failed");
        });
        await_task(&sim, 1).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

fn beyond_the_end_of_a_full_disk(world: &Rc<World>, file: &File) {
    write(world, file, 0, 4 * PAGE);
    file.sync_data().expect("a sync");
    punch(world, file, 0, PAGE);
    // Somebody else takes what was reserved, and all that is left.
    world.files[0].sim().trim().expect("space given back");
    world.disk.fill(1 << 40);
    let refused = file.write_at(&[1; 100], 10 * PAGE);
    assert!(
        refused.is_err(),
        "a write into a hole of a full disk: {refused:?}"
    );
    assert_eq!(
        file.len().expect("a length"),
        4 * PAGE,
        "a write that failed made the file longer"
    );
}

#[test]
fn a_write_that_fails_beyond_the_end_leaves_the_length() {
    let played = play(quiet_swarm(3), beyond_the_end_of_a_full_disk, &[]);
    played.unwrap_or_else(|what| panic!("{what}"));
}

const AGAIN: usize = 40_000;

/// Until a task is over.
fn await_task(sim: &Simulation, task: u32) -> Result<(), String> {
    match sim.run(Duration::from_secs(10), || sim.is_gone(task)) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("hangs: {}", sim.describe())),
        Err(failure) => Err(format!("{}: {}", failure.task, failure.what)),
    }
}

/// A process writes and syncs a file, task 1, and dies after so many accesses, perhaps at a change of it.
fn with_a_death(accesses: u64) -> Result<(Simulation, Rc<World>), String> {
    let swarm = quiet_swarm(accesses);
    let sim = Simulation::new(swarm.seed, swarm.manner);
    let world = World::new(swarm);
    let (of, process) = (Rc::clone(&world), world.new_client());
    sim.spawn(1, "who dies", move || {
        let opened = of.open(&process.session, 0, Access::ReadWrite, false);
        let file = opened.expect("a file can be opened");
        loop {
            file.write_at(&[1; AGAIN], 0).expect("a write");
            file.sync_data().expect("a sync");
        }
    });
    sim.kill_later(1, accesses);
    await_task(&sim, 1)?;
    Ok((sim, world))
}

/// A process dies after so many accesses, perhaps at a change of a file. One that does not have the file repairs. Somebody opens it and closes
/// it in good order, an outsider writes it, and it is opened again.
fn outsiders_after_a_death(accesses: u64) -> Result<(), String> {
    let (sim, world) = with_a_death(accesses)?;
    let of = Rc::clone(&world);
    sim.spawn(2, "who repairs", move || {
        let shared = of.join();
        let me = shared.me().expect("a slot");
        while !threads::dead(me.arena).is_empty() {
            repair::if_needed(&shared, me);
        }
    });
    await_task(&sim, 2)?;
    let (of, process) = (Rc::clone(&world), world.new_client());
    sim.spawn(3, "who opens", move || {
        let open = || {
            let opened = of.open(&process.session, 0, Access::ReadWrite, false);
            opened.expect("a file can be opened")
        };
        let file = open();
        file.write_at(&[2; AGAIN], 0).expect("a write");
        file.close().expect("a close");
        let mut bytes = Buffer::new(AGAIN, 0);
        bytes.get().fill(3);
        let piece = Piece {
            ptr: bytes.get().as_mut_ptr(),
            len: AGAIN,
        };
        let outside = of.files[0].sim().write_buffered(&[piece], 0);
        assert_eq!(outside.expect("a write"), AGAIN);
        let (file, mut found) = (open(), Buffer::new(AGAIN, 0));
        assert_eq!(file.read_at(found.get(), 0).expect("bytes"), AGAIN);
        let old = found.get().iter().filter(|&&byte| byte != 3).count();
        assert_eq!(old, 0, "bytes from before an outsider wrote the file");
    });
    await_task(&sim, 3)
}

#[test]
fn after_a_death_at_a_change_outsiders_are_heard_of() {
    let deaths = (0..300).step_by(6);
    let failed: Vec<String> = deaths
        .filter_map(|accesses| {
            let what = outsiders_after_a_death(accesses).err()?;
            Some(format!("a death after {accesses} accesses: {what}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} fail: {}", failed.len(), failed[0]);
}

/// A process dies after so many accesses, perhaps at a change of a file. Another one opens it and closes it in good order, an outsider gives it
/// another length, and only then somebody repairs, and finishes files as a keeper does.
fn lengths_after_a_death(accesses: u64, len: u64) -> Result<(), String> {
    let (sim, world) = with_a_death(accesses)?;
    let (of, process) = (Rc::clone(&world), world.new_client());
    sim.spawn(2, "who closes", move || {
        let opened = of.open(&process.session, 0, Access::ReadWrite, false);
        let file = opened.expect("a file can be opened");
        file.write_at(&[2; AGAIN], 0).expect("a write");
        file.close().expect("a close");
    });
    await_task(&sim, 2)?;
    let file = world.files[0].sim();
    file.set_len(len).expect("another length");
    let of = Rc::clone(&world);
    sim.spawn(3, "who finishes", move || {
        let shared = of.join();
        let me = shared.me().expect("a slot");
        while !threads::dead(me.arena).is_empty() {
            repair::if_needed(&shared, me);
        }
        again::adopt_owed_files(&shared, None);
        unfinished::finish_unused_files(&shared, me);
    });
    await_task(&sim, 3)?;
    let found = file.contents().len() as u64;
    (found == len)
        .then_some(())
        .ok_or(format!("{found} bytes, and an outsider has made it {len}"))
}

#[test]
fn after_a_death_at_a_change_the_length_is_an_outsiders() {
    let mut deaths: Vec<(u64, u64)> = Vec::new();
    for len in [AGAIN as u64 / 2, 2 * AGAIN as u64] {
        deaths.extend((0..300).step_by(6).map(|accesses| (accesses, len)));
    }
    let failed: Vec<String> = deaths
        .into_iter()
        .filter_map(|(accesses, len)| {
            let what = lengths_after_a_death(accesses, len).err()?;
            Some(format!("a death after {accesses} accesses: {what}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} fail: {failed:#?}", failed.len());
}

/// A process dies in the middle of a hole in a file without a name, which nobody has open from then on: what memory has of the hole stays
/// owed, and is without space. Two audits look at that.
fn a_hole_in_a_file_that_is_gone(accesses: u64) -> Result<(), String> {
    let sim = Simulation::new(accesses, quiet_swarm(6).manner);
    let world = World::new(quiet_swarm(6));
    let (of, process) = (Rc::clone(&world), world.new_client());
    sim.spawn(1, "who dies", move || {
        let opened = of.open(&process.session, 0, Access::ReadWrite, false);
        let file = opened.expect("a file can be opened");
        write(&of, &file, 0, 4 * PAGE);
        of.replace(0, 0).expect("another file");
        forebay::sim::tasks::sleep(Duration::from_millis(1));
        punch(&of, &file, PAGE, PAGE);
        std::mem::forget(file);
    });
    let has_lost_its_name = || !world.files[0].sim().has_name();
    if !matches!(sim.run(Duration::from_secs(1), has_lost_its_name), Ok(true)) {
        return Err("the file has not lost its name".into());
    }
    sim.kill_later(1, accesses);
    await_task(&sim, 1)?;
    for audit in 2..4 {
        let of = Rc::clone(&world);
        sim.spawn(audit, "the auditor", move || {
            audit::look_at_everything(&of, 1)
        });
        await_task(&sim, audit)?;
    }
    Ok(())
}

#[test]
fn a_file_that_is_gone_needs_no_space() {
    let failed: Vec<String> = (0..60)
        .filter_map(|accesses| {
            let what = a_hole_in_a_file_that_is_gone(accesses).err()?;
            Some(format!("a death after {accesses} accesses: {what}"))
        })
        .collect();
    assert!(failed.is_empty(), "{} fail: {}", failed.len(), failed[0]);
}

/// Nothing that one process owes is above any limit, it has nothing to do, and it fills the memory; another needs some. The keeper, which
/// has the file, hears of that.
fn memory_that_another_owes(seed: u64) -> Result<(), String> {
    let swarm = Swarm {
        keeper: true,
        ..crowded_swarm(seed)
    };
    let sim = Simulation::new(seed, swarm.manner);
    let world = World::new(swarm);
    for (name, body) in world.new_keeper() {
        sim.spawn(1, name, body);
    }
    let in_time = |time, condition: &dyn Fn() -> bool| match sim.run(time, condition) {
        Ok(is_so) => Ok(is_so),
        Err(failure) => Err(format!("{}: {}", failure.task, failure.what)),
    };
    in_time(Duration::from_millis(20), &|| false)?;
    let written = Rc::new(std::cell::Cell::new(false));
    let (of, process, done) = (Rc::clone(&world), world.new_client(), Rc::clone(&written));
    sim.spawn(2, "who owes", move || {
        let opened = of.open(&process.session, 0, Access::ReadWrite, false);
        let file = opened.expect("a file can be opened");
        for block in 0..3 {
            let pages = Buffer::new(40 * PAGE as usize, 0).get().to_vec();
            let written = file.write_at(&pages, block * BLOCK_BYTES as u64 + 100);
            assert_eq!(written.expect("a write"), pages.len());
        }
        done.set(true);
        forebay::sim::tasks::sleep(Duration::from_secs(1000));
    });
    if !in_time(Duration::from_millis(20), &|| written.get())? {
        return Err("the first one has not written".into());
    }
    let (of, process) = (Rc::clone(&world), world.new_client());
    sim.spawn(3, "who needs memory", move || {
        let opened = of.open(&process.session, 1, Access::ReadWrite, false);
        let file = opened.expect("a file can be opened");
        let pages = Buffer::new(40 * PAGE as usize, 0).get().to_vec();
        assert_eq!(file.write_at(&pages, 0).expect("a write"), pages.len());
        std::mem::forget(file);
    });
    match in_time(Duration::from_millis(200), &|| sim.is_gone(3))? {
        true => Ok(()),
        false => Err(format!("hangs: {}", sim.describe())),
    }
}

#[test]
fn the_keeper_writes_what_others_owe_for_who_needs_memory() {
    let failed: Vec<String> = (0..SCHEDULES)
        .filter_map(|seed| {
            Some(format!(
                "seed {seed}: {}",
                memory_that_another_owes(seed).err()?
            ))
        })
        .collect();
    assert!(failed.is_empty(), "{} fail: {}", failed.len(), failed[0]);
}

/// Who makes a session beside the tasks, and remembers when, has the simulation's clock too: by another, how long somebody waits would hang
/// on how old the process is.
#[test]
fn a_simulation_has_one_clock() {
    let sim = Simulation::new(0, quiet_swarm(6).manner);
    let (begun, is_over) = (Instant::now(), Rc::new(Cell::new(false)));
    let over = Rc::clone(&is_over);
    sim.spawn(1, "waits", move || {
        sleep(Duration::from_millis(5));
        over.set(true);
    });
    let ended = sim.run(Duration::from_secs(1), || is_over.get());
    assert!(ended.is_ok_and(|is_over| is_over));
    let took = begun.elapsed().as_millis();
    assert!((5..100).contains(&took), "{took} ms");
}

//! Devices that fail: whatever call fails, and however, no acknowledged byte is lost, the error is told to every open
//! description until a retry has succeeded, and once the device works again a sync makes it equal to the model.
#![cfg(feature = "sim")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::watch::Watch;
use common::{Engine, Store};
use forebay::Config;
use forebay::config::DirtyTracking;
use forebay::device::DeviceFile;
use forebay::keeper::check::check;
use forebay::session::look::Unsettled;
use forebay::sim::device::{
    Before, Call, CallKind, FaultPlan, Kinds, Outcome as Fault, Repeat, SimDisk, SimFile,
    SimOptions, Verdict, Wrapped,
};
use forebay::sim::{Bug, plant};
use forebay_model::{
    BLOCK_BYTES, Driver, ErrorClass, Op, Outcome, Profile, Target, fill, first_difference, generate,
};

const FILES: usize = 2;
const HANDLES: usize = 2;

/// Everything fits into memory, so that a device that fails for ever stops nobody.
const PROFILE: Profile = Profile {
    window: 2 * BLOCK_BYTES,
    ..Profile::TINY
};

/// Calls without which nothing can be known or read.
const CHANGES: Kinds = Kinds::of(&[
    CallKind::WriteDirect,
    CallKind::WriteBuffered,
    CallKind::SyncData,
    CallKind::SyncAll,
    CallKind::SetLen,
    CallKind::Reserve,
    CallKind::Punch,
    CallKind::Trim,
]);

/// A plan that can be switched off.
struct Switch {
    plan: Arc<FaultPlan>,
    on: AtomicBool,
}

impl Switch {
    fn set(&self, on: bool) {
        self.on.store(on, Ordering::SeqCst);
    }
}

impl Before for Switch {
    fn before(&self, call: &Call) -> Verdict {
        if self.on.load(Ordering::SeqCst) {
            self.plan.before(call)
        } else {
            Verdict::Proceed
        }
    }
}

/// An engine on a disk that fails.
struct Rig {
    files: Vec<Arc<SimFile>>,
    switch: Arc<Switch>,
    engine: Engine,
    /// What failed in the present step is let succeed when it is asked again.
    lenient: bool,
    /// What a torn write has left of a request is not known, though its first part was acknowledged.
    torn: bool,
}

impl Rig {
    fn new(plan: &Arc<FaultPlan>) -> Rig {
        Self::with(plan, Config::tiny())
    }

    fn with(plan: &Arc<FaultPlan>, config: Config) -> Rig {
        let disk = SimDisk::new(SimOptions::default());
        let files: Vec<_> = (0..FILES).map(|_| disk.create()).collect();
        let switch = Arc::new(Switch {
            plan: Arc::clone(plan),
            on: AtomicBool::new(false),
        });
        let wrap = |file: &Arc<SimFile>| {
            Arc::new(Wrapped::new(Arc::clone(file), Arc::clone(&switch))) as Arc<dyn DeviceFile>
        };
        let store = Store::Sim(files.iter().map(wrap).collect());
        let mut engine = Engine::new(config, store, FILES, HANDLES);
        engine.read_ahead(11);
        switch.set(true);
        Rig {
            files,
            switch,
            engine,
            lenient: false,
            torn: false,
        }
    }

    /// The device works again: a sync of every file succeeds, and the device has what the model says.
    fn settle(&mut self, driver: &mut Driver) -> Result<(), String> {
        self.switch.set(false);
        for file in 0..FILES as u8 {
            for handle in 0..HANDLES as u8 {
                // Errors that this description has not heard of may be told once.
                self.engine.run(&Op::SyncAll { file, handle });
                let outcome = self.engine.run(&Op::SyncAll { file, handle });
                let refused = Outcome::Failed(ErrorClass::NotAllowed);
                if outcome != Outcome::Done && outcome != refused {
                    return Err(format!(
                        "a sync of file {file} on a sound device: {outcome:?}"
                    ));
                }
            }
            let device = self.files[usize::from(file)].contents();
            let model = driver.model().content(file).read(0, u64::MAX);
            if device != model {
                let at = first_difference(&device, &model);
                let (is, due) = (device.len(), model.len());
                return Err(format!(
                    "file {file}: {is} bytes for {due}, first difference {at:?}"
                ));
            }
        }
        driver.finish(&mut self.engine).map_err(|m| m.to_string())?;
        let arena = &self.engine.session.shared().arena;
        match check(arena) {
            Ok(report) if report.files_noted == 0 => Ok(()),
            Ok(report) => Err(format!("changes are under way: {report:?}")),
            Err(problems) => Err(format!("{problems:#?}")),
        }
    }
}

impl Target for Rig {
    fn run(&mut self, op: &Op) -> Outcome {
        let mut outcome = self.engine.run(op);
        if self.torn && matches!(outcome, Outcome::Wrote(n) if n < op.payload_len()) {
            outcome = Outcome::Failed(ErrorClass::Io);
        }
        if self.lenient && matches!(outcome, Outcome::Failed(class) if class.is_fault()) {
            self.switch.set(false);
        }
        outcome
    }
}

fn run(ops: &[Op], mut rig: Rig, lenient: bool, torn: bool) -> Result<(), String> {
    rig.lenient = lenient;
    rig.torn = torn;
    let all = [
        ops,
        &[Op::Len {
            file: FILES as u8 - 1,
            handle: HANDLES as u8 - 1,
        }],
    ]
    .concat();
    let mut driver = Driver::for_ops(&all).tolerating_faults();
    for op in ops {
        driver.step(op, &mut rig).map_err(|m| m.to_string())?;
        rig.switch.set(true);
    }
    rig.settle(&mut driver)
}

/// Each list of operations has one of them.
const TRACKINGS: [DirtyTracking; 2] = [DirtyTracking::Stream, DirtyTracking::Page];

/// Every call of a few lists fails in turn.
fn every_call(lists: u64, kinds: Kinds, faults: &[Fault], repeat: Repeat) {
    let failures = failures(lists, kinds, faults, repeat);
    let some = failures.iter().take(5).cloned().collect::<Vec<_>>();
    assert!(
        failures.is_empty(),
        "{} fail, the first:\n{}",
        failures.len(),
        some.join("\n")
    );
}

fn failures(lists: u64, kinds: Kinds, faults: &[Fault], repeat: Repeat) -> Vec<String> {
    let watch = Watch::new();
    let mut failures = Vec::new();
    for seed in 0..lists {
        let ops = generate(seed, &PROFILE, 40);
        let tracking = TRACKINGS[seed as usize % TRACKINGS.len()];
        let rig = |plan: &Arc<FaultPlan>| Rig::with(plan, Config::tiny().with_tracking(tracking));
        let counting = FaultPlan::counting(kinds);
        run(&ops, rig(&counting), false, false)
            .unwrap_or_else(|why| panic!("without a fault: {why}"));
        for n in 0..counting.calls() {
            for &fault in faults {
                let name = format!("seed {seed}, call {n}, {fault:?}, {repeat:?}");
                let plan = FaultPlan::nth(n, kinds, fault, repeat);
                let lenient = repeat == Repeat::ForEver;
                let torn = matches!(fault, Fault::Torn(_));
                let ended = watch.run(&name, || run(&ops, rig(&plan), lenient, torn));
                let failed =
                    ended.and_then(|result| result.map_err(|why| format!("{name}: {why}")));
                failures.extend(failed.err());
            }
        }
    }
    failures
}

const ERRORS: [Fault; 4] = [
    Fault::Errno(libc::EIO),
    Fault::Errno(libc::ENOSPC),
    Fault::Torn(libc::EIO),
    Fault::Short,
];

#[test]
fn any_call_may_fail_once() {
    every_call(3, Kinds::ALL, &ERRORS, Repeat::Once);
    every_call(1, Kinds::ALL, &[Fault::Errno(libc::EDQUOT)], Repeat::Once);
}

#[test]
fn changes_may_fail_from_any_call_on() {
    every_call(2, CHANGES, &ERRORS[..3], Repeat::ForEver);
}

#[test]
fn a_swallowed_error_is_found() {
    plant(Some(Bug::SwallowFlushError));
    let found = failures(1, Kinds::WRITES, &[Fault::Errno(libc::EIO)], Repeat::Once);
    plant(None);
    assert!(!found.is_empty(), "nobody noticed");
}

#[test]
#[ignore = "many lists; minutes"]
fn any_call_of_many_lists_may_fail() {
    every_call(40, Kinds::ALL, &ERRORS, Repeat::Once);
    every_call(40, CHANGES, &ERRORS[..3], Repeat::ForEver);
}

#[test]
fn every_description_hears_of_the_error_until_a_retry_succeeds() {
    let plan = FaultPlan::nth(0, Kinds::WRITES, Fault::Errno(libc::EIO), Repeat::ForEver);
    let mut rig = Rig::new(&plan);
    let write = Op::Write {
        file: 0,
        handle: 0,
        offset: 5,
        len: 9000,
        seed: 3,
    };
    assert_eq!(rig.run(&write), Outcome::Wrote(9000));
    // A flush by somebody else fails: nobody has heard of it yet.
    rig.run(&Op::KeeperStep { steps: 10 });
    for _ in 0..3 {
        for handle in 0..HANDLES as u8 {
            let sync = rig.run(&Op::SyncData { file: 0, handle });
            assert_eq!(sync, Outcome::Failed(ErrorClass::Io), "handle {handle}");
        }
    }
    let mut expected = vec![0; 9000];
    fill(3, 5, &mut expected);
    let read = rig.run(&Op::Read {
        file: 0,
        handle: 1,
        offset: 5,
        len: 9000,
    });
    assert!(
        read == Outcome::Bytes(expected.clone()),
        "bytes are lost with the error"
    );
    rig.switch.set(false);
    assert_eq!(rig.run(&Op::SyncData { file: 0, handle: 0 }), Outcome::Done);
    assert_eq!(rig.files[0].contents()[5..], expected);
    assert_eq!(
        rig.run(&Op::SyncData { file: 0, handle: 1 }),
        Outcome::Done,
        "the retry succeeded"
    );
}

#[test]
fn an_error_of_the_sync_itself_is_told_to_every_description() {
    let plan = FaultPlan::nth(
        0,
        Kinds::of(&[CallKind::SyncAll]),
        Fault::Errno(libc::EIO),
        Repeat::Once,
    );
    let mut rig = Rig::new(&plan);
    rig.run(&Op::Write {
        file: 0,
        handle: 0,
        offset: 0,
        len: 4096,
        seed: 3,
    });
    let failed = Outcome::Failed(ErrorClass::Io);
    assert_eq!(rig.run(&Op::SyncAll { file: 0, handle: 0 }), failed);
    // The device may have forgotten what it had been given, and says so once only.
    assert_eq!(rig.run(&Op::SyncAll { file: 0, handle: 1 }), failed);
    assert_eq!(rig.run(&Op::SyncAll { file: 0, handle: 0 }), Outcome::Done);
    assert_eq!(rig.run(&Op::SyncAll { file: 0, handle: 1 }), Outcome::Done);
}

/// The next try finds nothing to write, and is told by the device that all is well.
#[test]
fn a_session_syncs_again_and_names_what_failed_once() {
    let kinds = Kinds::of(&[CallKind::SyncAll]);
    let plan = FaultPlan::nth(0, kinds, Fault::Errno(libc::EIO), Repeat::Once);
    let mut rig = Rig::new(&plan);
    rig.run(&Op::Write {
        file: 0,
        handle: 0,
        offset: 0,
        len: 4096,
        seed: 3,
    });
    let mut lost = Vec::new();
    for _ in 0..2 {
        let unsettled = rig.engine.session.settle_all().expect("a slot");
        Unsettled::gather_unsynced(&mut lost, &unsettled);
        assert_eq!(unsettled.len() as u64, 2 - plan.calls(), "{unsettled:?}");
    }
    assert_eq!(plan.calls(), 2, "syncs");
    assert_eq!(lost.len(), 1, "{lost:?}");
    rig.engine.session.settle_all().expect("a slot");
    assert_eq!(plan.calls(), 2, "nothing is left to sync");
}

#[test]
fn a_write_that_does_not_ask_for_space_is_found() {
    plant(Some(Bug::SkipReserve));
    let found = std::panic::catch_unwind(a_full_disk_is_an_error_of_the_write).is_err();
    plant(None);
    assert!(found, "nobody noticed");
}

#[test]
fn a_full_disk_is_an_error_of_the_write() {
    for errno in [libc::ENOSPC, libc::EDQUOT] {
        let kinds = Kinds::of(&[CallKind::Reserve]);
        let plan = FaultPlan::nth(0, kinds, Fault::Errno(errno), Repeat::ForEver);
        let mut rig = Rig::new(&plan);
        for op in [
            Op::Write {
                file: 0,
                handle: 0,
                offset: 0,
                len: 5000,
                seed: 1,
            },
            Op::Append {
                file: 0,
                handle: 0,
                len: 5000,
                seed: 2,
            },
        ] {
            assert_eq!(rig.run(&op), Outcome::Failed(ErrorClass::NoSpace), "{op:?}");
            assert_eq!(rig.run(&Op::Len { file: 0, handle: 0 }), Outcome::Length(0));
        }
        assert_eq!(rig.run(&Op::SyncAll { file: 0, handle: 0 }), Outcome::Done);
        assert!(rig.files[0].contents().is_empty());
    }
}

/// The power fails after any operation: what the last sync promised is there.
fn power(lists: u64, profile: &Profile, ops: usize, stride: usize) {
    if let Some(failed) = power_failure(lists, profile, ops, stride) {
        panic!("{failed}");
    }
}

fn power_failure(lists: u64, profile: &Profile, ops: usize, stride: usize) -> Option<String> {
    for seed in 0..lists {
        let list = generate(seed, profile, ops);
        for end in (seed as usize % stride..=list.len()).step_by(stride) {
            let (disk, store) = Store::sim(FILES, 1 << 30);
            let mut engine = Engine::new(Config::tiny(), store, FILES, HANDLES);
            let all = [&list[..], &[Op::Len { file: 1, handle: 1 }]].concat();
            let mut driver = Driver::for_ops(&all);
            for op in &list[..end] {
                driver
                    .step(op, &mut engine)
                    .unwrap_or_else(|m| panic!("{m}"));
            }
            disk.crash_power(seed ^ (end as u64) << 32);
            for file in 0..FILES as u8 {
                let image = disk.open(u64::from(file) + 1).expect("a file").contents();
                let may = driver.model().may_be_after_power_loss(file, &[], &image);
                if let Err(mismatch) = may {
                    return Some(format!("seed {seed}, power fails after {end}: {mismatch}"));
                }
            }
        }
    }
    None
}

#[test]
fn a_sync_that_syncs_nothing_is_found() {
    plant(Some(Bug::SkipDeviceSync));
    let found = power_failure(4, &Profile::TINY, 80, 5);
    plant(None);
    assert!(found.is_some(), "nobody noticed");
}

#[test]
fn a_sync_survives_power_loss() {
    power(12, &Profile::TINY, 80, 5);
    power(4, &Profile::LARGE, 40, 5);
}

#[test]
#[ignore = "many lists; minutes"]
fn every_sync_survives_power_loss() {
    power(150, &Profile::TINY, 120, 1);
    power(40, &Profile::LARGE, 60, 1);
}

/// An append that stops half-way says so; what it has written stays.
#[test]
fn an_append_that_stops_half_way_is_an_error() {
    const BLOCK: usize = BLOCK_BYTES as usize;
    for (repeat, whole) in [(Repeat::Once, true), (Repeat::ForEver, false)] {
        let plan = FaultPlan::nth(
            0,
            Kinds::of(&[CallKind::WriteDirect]),
            Fault::Errno(libc::EIO),
            repeat,
        );
        let mut config = Config::tiny();
        config.route = forebay::config::Route::Direct;
        let rig = Rig::with(&plan, config);
        let file = rig.engine.handle(0, 0);
        file.write_at(&[1; 100], 0).expect("memory");
        // The first block goes to memory, the others to the device, which refuses.
        let bytes = vec![2; 5 * BLOCK];
        let appended = file.append(&bytes);
        assert!(plan.tripped() > 0, "nothing went to the device at once");
        let len = file.len().expect("a length");
        if whole {
            // The rest is tried again, as a caller of `write` would.
            assert_eq!(appended.expect("written at last"), 100);
            assert_eq!(len, 100 + bytes.len() as u64);
        } else {
            assert_eq!(appended.expect_err("half of it").errno(), libc::EIO);
            assert_eq!(len, BLOCK_BYTES, "what was written before stays");
        }
        rig.switch.set(false);
        file.sync_all().ok();
    }
}

/// What could not be made durable is told to every description, though a flush has succeeded since.
#[test]
fn a_failed_sync_is_not_made_up_for_by_a_flush() {
    let kinds = [
        CallKind::WriteDirect,
        CallKind::WriteBuffered,
        CallKind::SyncData,
        // Where the flush's last look syncs.
        CallKind::SyncAll,
    ];
    let plan = FaultPlan::nth(
        0,
        Kinds::of(&kinds),
        Fault::Errno(libc::EIO),
        Repeat::ForEver,
    );
    let rig = Rig::new(&plan);
    let (one, other) = (rig.engine.handle(0, 0), rig.engine.handle(0, 1));
    one.write_at(&[1; 8192], 0).expect("memory");
    // The flush fails, and the sync of what the device has.
    one.sync_data().expect_err("it fails");
    rig.switch.set(false);
    one.sync_data().expect("told once, and written by now");
    let errno = other.sync_data().expect_err("not told yet").errno();
    assert_eq!(errno, libc::EIO);
    other.sync_data().expect("told once");
}

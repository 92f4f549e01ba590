//! The test machinery tested: a checker that cannot fail checks nothing.

use super::*;
use crate::device::{Done, Inline, Queue, Request, RequestKind, Threads};
use crate::sys::memory::AlignedBytes;
use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

fn write(file: &dyn DeviceFile, offset: u64, byte: u8, len: usize) -> io::Result<usize> {
    file.write_direct(
        &[AlignedBytes::copy_of(&vec![byte; len], 4096).piece()],
        offset,
    )
}

#[test]
fn bytes_come_back_and_holes_read_as_zeros() {
    let file = SimDisk::new(SimOptions::default()).create();
    write(&*file, 4096, 7, 4096).expect("space");
    let back = AlignedBytes::new(3 * 4096, 4096);
    assert_eq!(file.read_direct(back.piece(), 0).expect("read"), 8192);
    let mut model = vec![0; 3 * 4096];
    model[4096..8192].fill(7);
    assert_eq!(back.to_vec(), model);
    assert!(file.is_allocated(4096, 4096).unwrap() && !file.is_allocated(0, 8192).unwrap());
    file.punch(4096, 4096).unwrap();
    assert_eq!(file.contents(), vec![0; 8192]);
    assert_eq!(file.stat().unwrap().allocated, 0);
}

#[test]
fn a_misaligned_direct_request_panics() {
    let file = SimDisk::new(SimOptions::default()).create();
    for (offset, start, len) in [(1, 0, 512), (0, 1, 512), (0, 0, 511)] {
        let memory = AlignedBytes::new(4096, 4096);
        let call = || file.write_direct(&[memory.part(start, len)], offset);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err();
        assert!(panicked, "offset {offset}, memory {start}, length {len}");
    }
}

#[test]
fn the_capacity_is_shared_and_cuts_writes_short() {
    let options = SimOptions {
        capacity_bytes: 3 * 4096,
        ..SimOptions::default()
    };
    let disk = SimDisk::new(options);
    let (a, b) = (disk.create(), disk.create());
    a.reserve(0, 8192).expect("space for two");
    assert_eq!(write(&*b, 0, 1, 8192).expect("space for one"), 4096);
    assert_eq!(
        write(&*b, 4096, 1, 512).unwrap_err().raw_os_error(),
        Some(libc::ENOSPC)
    );
    let mtime_ns = a.stat().unwrap().mtime_ns;
    a.trim().unwrap();
    assert_eq!(a.stat().unwrap().mtime_ns, mtime_ns);
    assert_eq!(disk.free_bytes(), 8192);
    assert_eq!(
        b.reserve(4096, 3 * 4096).unwrap_err().raw_os_error(),
        Some(libc::ENOSPC)
    );
    b.trim().unwrap();
    assert_eq!(disk.free_bytes(), 8192);
}

/// One sector each: synced, overwritten, and appended after the sync.
fn crashed(seed: u64) -> Vec<u8> {
    let disk = SimDisk::new(SimOptions::default());
    let file = disk.create();
    write(&*file, 0, 1, 1024).unwrap();
    file.sync_data().unwrap();
    write(&*file, 512, 2, 512).unwrap();
    write(&*file, 512, 3, 512).unwrap();
    write(&*file, 1024, 4, 512).unwrap();
    disk.crash_power(seed);
    let space = file.stat().unwrap().allocated;
    assert_eq!(
        disk.free_bytes(),
        SimOptions::default().capacity_bytes - space
    );
    file.contents()
}

#[test]
fn power_failures_keep_what_was_synced_and_any_subset_of_the_rest() {
    let mut seen = HashSet::new();
    for seed in 0..200 {
        let left = crashed(seed);
        assert_eq!(left, crashed(seed), "a seed decides");
        assert!(
            left[..512].iter().all(|&byte| byte == 1),
            "synced bytes stay"
        );
        let sectors: Vec<u8> = left.chunks(512).map(|sector| sector[0]).collect();
        assert!(
            left.chunks(512)
                .all(|sector| sector.iter().all(|&byte| byte == sector[0]))
        );
        seen.insert(sectors);
    }
    let expected: HashSet<Vec<u8>> = [1, 2, 3]
        .into_iter()
        .flat_map(|middle| [vec![1, middle], vec![1, middle, 0], vec![1, middle, 4]])
        .collect();
    assert_eq!(seen, expected);
}

#[test]
fn a_cut_that_survives_leaves_nothing_older_behind() {
    for seed in 0..100 {
        let disk = SimDisk::new(SimOptions::default());
        let file = disk.create();
        write(&*file, 0, 1, 1024).unwrap();
        file.sync_all().unwrap();
        file.set_len(512).unwrap();
        file.set_len(1024).unwrap();
        disk.crash_power(seed);
        let (left, one) = (file.contents(), vec![1; 512]);
        let zeros = [one.clone(), vec![0; 512]].concat();
        let expected = [vec![1; 1024], one, zeros];
        assert!(expected.contains(&left), "seed {seed}");
    }
}

#[test]
fn every_call_can_fail_in_turn() {
    let run = |plan: &Arc<FaultPlan>| {
        let file = faulty(SimDisk::new(SimOptions::default()).create(), plan);
        write(&*file, 0, 1, 4096)?;
        file.reserve(4096, 4096)?;
        write(&*file, 4096, 1, 4096)?;
        file.sync_data()
    };
    let counting = FaultPlan::counting(Kinds::ALL);
    run(&counting).expect("nothing fails");
    assert_eq!(counting.calls(), 4);
    for n in 0..counting.calls() {
        let plan = FaultPlan::nth(n, Kinds::ALL, Outcome::Errno(libc::EDQUOT), Repeat::Once);
        assert_eq!(
            run(&plan).unwrap_err().raw_os_error(),
            Some(libc::EDQUOT),
            "call {n}"
        );
        assert_eq!((plan.calls(), plan.tripped()), (n + 1, 1));
    }
}

#[test]
fn kinds_repetition_and_short_writes() {
    let file = SimDisk::new(SimOptions::default()).create();
    let plan = FaultPlan::nth(1, Kinds::WRITES, Outcome::Short, Repeat::ForEver);
    let file = faulty(file, &plan);
    file.stat().unwrap();
    assert_eq!(write(&*file, 0, 1, 4096).unwrap(), 4096);
    assert_eq!(write(&*file, 0, 2, 1536).unwrap(), 512);
    assert_eq!(
        write(&*file, 0, 3, 512).unwrap(),
        512,
        "half of it is no sector"
    );
    let bytes = AlignedBytes::new(10, 1);
    assert_eq!(
        file.write_buffered(&[bytes.part(0, 3), bytes.part(3, 7)], 0)
            .unwrap(),
        5
    );
    assert_eq!((plan.calls(), plan.tripped()), (4, 3));
}

#[test]
fn a_torn_write_leaves_half_and_reports_the_error() {
    let plan = FaultPlan::nth(1, Kinds::ALL, Outcome::Torn(libc::EIO), Repeat::ForEver);
    let file = faulty(SimDisk::new(SimOptions::default()).create(), &plan);
    write(&*file, 0, 1, 1024).unwrap();
    assert_eq!(
        write(&*file, 0, 2, 1024).unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
    assert_eq!(file.inner().contents(), [[2; 512], [1; 512]].concat());
    assert_eq!(
        file.sync_data().unwrap_err().raw_os_error(),
        Some(libc::EIO)
    );
}

#[test]
fn a_panic_of_a_file_reaches_whoever_polls() {
    let file = SimDisk::new(SimOptions::default()).create();
    let memory = AlignedBytes::new(512, 512);
    let mut queue = Threads::new(1).expect("a thread");
    let pieces = vec![memory.piece()];
    queue.submit(Request {
        file,
        kind: RequestKind::Write,
        pieces,
        offset: 1,
        token: 0,
    });
    let poll = std::panic::AssertUnwindSafe(|| queue.poll(true, &mut Vec::new()));
    assert!(std::panic::catch_unwind(poll).is_err());
}

#[test]
fn canary_a_swallowed_error_is_seen_by_a_power_failure() {
    let disk = SimDisk::new(SimOptions::default());
    let plan = FaultPlan::nth(0, Kinds::SYNCS, Outcome::Swallow, Repeat::Once);
    let file = faulty(disk.create(), &plan);
    write(&*file, 0, 1, 4096).unwrap();
    file.sync_data().expect("so it says");
    disk.crash_power(3);
    assert_ne!(
        file.inner().contents(),
        vec![1; 4096],
        "the checker must notice"
    );
}

#[test]
fn slowness_adds_up() {
    let pace = Pace::new(Duration::from_millis(2), Some(1 << 20));
    let file = slowed(SimDisk::new(SimOptions::default()).create(), &pace);
    let start = Instant::now();
    write(&*file, 0, 1, 8192).unwrap();
    write(&*file, 0, 1, 8192).unwrap();
    assert!(
        start.elapsed() >= Duration::from_millis(15),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn waiting_waits_for_writes_that_are_held_up() {
    let disk = SimDisk::new(SimOptions::default());
    let file = disk.create();
    let (entered, is_in) = std::sync::mpsc::channel();
    let hook = move |call: &Call| {
        if call.kind == CallKind::WriteDirect {
            entered.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    disk.set_hook(Some(Arc::new(hook)));
    let writer = Arc::clone(&file);
    let thread = std::thread::spawn(move || write(&*writer, 0, 9, 512).unwrap());
    is_in.recv().unwrap();
    file.wait_in_flight().unwrap();
    assert_eq!(file.contents(), vec![9; 512]);
    thread.join().unwrap();
}

#[test]
fn queues_call_wrapped_files() {
    let plan = FaultPlan::nth(0, Kinds::READS, Outcome::Errno(libc::EIO), Repeat::Once);
    let file = faulty(SimDisk::new(SimOptions::default()).create(), &plan);
    let memory = AlignedBytes::new(512, 512);
    let mut queue = Inline::new();
    let pieces = vec![memory.piece()];
    queue.submit(Request {
        file,
        kind: RequestKind::Read,
        pieces,
        offset: 0,
        token: 5,
    });
    let mut done: Vec<Done> = Vec::new();
    queue.poll(true, &mut done);
    let error = done.pop().expect("done").result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
}

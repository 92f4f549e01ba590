//! Bytes: what is written comes back, whichever way, and a device that lies is found out.

use crate::places::{self, pattern, pieces_of, read, write};
#[cfg(feature = "keeper")]
use forebay::device::queue::Uring;
use forebay::device::queue::{Inline, Threads};
use forebay::device::{DeviceFile, Queue, Request, RequestKind, best_queue};
use forebay::sys::memory::AlignedBytes;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const REQUEST_BYTES: usize = 64 * 1024;
const REQUESTS: usize = 16;
const FILE_BYTES: usize = REQUESTS * REQUEST_BYTES;

fn queues() -> Vec<Box<dyn Queue>> {
    let queues: [Box<dyn Queue>; 4] = [
        Box::new(Threads::new(2).expect("threads")),
        Box::new(Inline::new()),
        Box::new(Inline::seeded(1)),
        best_queue(8),
    ];
    queues.into_iter().chain(uring()).collect()
}

/// The ring itself, since the best queue may be another.
fn uring() -> Option<Box<dyn Queue>> {
    #[cfg(feature = "keeper")]
    match Uring::new(4) {
        Ok(queue) => return Some(Box::new(queue)),
        Err(error) => println!("skip io_uring: {error}"),
    }
    None
}

/// Moves the memory to or from the file, a request for each part, `piece_bytes` to a piece.
fn transfer(
    queue: &mut dyn Queue,
    file: &Arc<dyn DeviceFile>,
    kind: RequestKind,
    memory: &AlignedBytes,
    piece_bytes: usize,
) -> Result<(), String> {
    let pieces = pieces_of(memory, piece_bytes);
    let per_request = REQUEST_BYTES / piece_bytes;
    for (token, pieces) in pieces.chunks(per_request).enumerate() {
        let (file, pieces) = (Arc::clone(file), pieces.to_vec());
        let (token, offset) = (token as u64, (token * REQUEST_BYTES) as u64);
        queue.submit(Request {
            file,
            kind,
            pieces,
            offset,
            token,
        });
    }
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(true, &mut done);
    }
    for done in done {
        let moved = done
            .result
            .map_err(|error| format!("{kind:?} {}: {error}", done.token))?;
        if moved != REQUEST_BYTES {
            return Err(format!("{kind:?} {}: {moved} bytes", done.token));
        }
    }
    Ok(())
}

/// Writes through a queue, reads back through it; the result says what differs.
fn round_trip(
    queue: &mut dyn Queue,
    file: &Arc<dyn DeviceFile>,
    kind: RequestKind,
    piece_bytes: usize,
    seed: u8,
) -> Result<(), String> {
    let wanted = pattern(seed, FILE_BYTES);
    let memory = AlignedBytes::copy_of(&wanted, 4096);
    transfer(queue, file, kind, &memory, piece_bytes)?;
    let back = AlignedBytes::new(FILE_BYTES, 4096);
    transfer(queue, file, RequestKind::Read, &back, piece_bytes)?;
    match back.to_vec() == wanted {
        true => Ok(()),
        false => Err("other bytes came back".into()),
    }
}

#[test]
fn every_queue_moves_bytes_there_and_back() {
    for place in places::managed() {
        let (_own, file) = place.file();
        let file: Arc<dyn DeviceFile> = file;
        let mut seed = 0;
        for mut queue in queues() {
            for kind in [RequestKind::Write, RequestKind::WriteBuffered] {
                for piece_bytes in [4096, REQUEST_BYTES / 2, REQUEST_BYTES] {
                    seed += 1;
                    let result = round_trip(queue.as_mut(), &file, kind, piece_bytes, seed);
                    let name = queue.name();
                    assert_eq!(result, Ok(()), "{}: {name} {kind:?}", place.dir.display());
                }
            }
        }
    }
}

#[test]
fn more_pieces_than_one_call_takes_are_written_in_order() {
    for place in places::managed() {
        let (_own, file) = place.file();
        let wanted = pattern(3, 1500 * 4096);
        let memory = AlignedBytes::copy_of(&wanted, 4096);
        let written = file
            .write_direct(&pieces_of(&memory, 4096), 0)
            .expect("space");
        assert_eq!(written, wanted.len());
        assert_eq!(read(&*file, 0, wanted.len()).expect("read"), wanted);
    }
}

#[test]
fn the_smallest_direct_request_is_what_caps_say() {
    for place in places::managed() {
        let (_own, file) = place.file();
        let (memory_align, len) = (file.caps().memory_align, file.caps().offset_align as usize);
        assert!(len <= 4096 && memory_align <= 4096);
        let wanted = pattern(9, len);
        let memory = AlignedBytes::new(len + 8192, 4096);
        let piece = memory.part(memory_align as usize, len);
        // SAFETY: inside `memory`, which nobody else knows.
        unsafe { piece.copy_in(&wanted) };
        assert_eq!(
            file.write_direct(&[piece], len as u64).expect("aligned"),
            len
        );
        assert_eq!(read(&*file, len as u64, 4096).expect("read"), wanted);
    }
}

#[test]
fn direct_and_buffered_readers_see_each_other() {
    for place in places::managed() {
        let (mut own, file) = place.file();
        own.write_all_at(&pattern(1, 10_000), 0).expect("space");
        assert_eq!(
            read(&*file, 4096, 8192).expect("read"),
            pattern(1, 10_000)[4096..]
        );
        write(&*file, 4096, &pattern(2, 4096)).expect("space");
        let tail = [1, 2, 3];
        let memory = AlignedBytes::copy_of(&tail, 1);
        assert_eq!(
            file.write_buffered(&[memory.piece()], 10_000)
                .expect("space"),
            3
        );
        file.sync_data().expect("sync");
        file.sync_all().expect("sync");
        let mut seen = Vec::new();
        own.read_to_end(&mut seen).expect("read");
        let old = pattern(1, 10_000);
        let wanted = [&old[..4096], &pattern(2, 4096), &old[8192..], &tail].concat();
        assert!(seen == wanted, "{}", place.dir.display());
        file.set_len(5).expect("cut");
        assert_eq!(file.stat().expect("stat").len, 5);
    }
}

#[cfg(feature = "sim")]
mod faults {
    use super::*;
    use forebay::sim::device::{FaultPlan, Kinds, Outcome, Repeat, faulty};

    fn trip(plan: &Arc<FaultPlan>) -> Result<(), String> {
        let Some(place) = places::managed().pop() else {
            return Err("no directory is managed".into());
        };
        let file: Arc<dyn DeviceFile> = faulty(place.file().1, plan);
        round_trip(
            &mut Threads::new(2).expect("threads"),
            &file,
            RequestKind::Write,
            4096,
            77,
        )
    }

    #[test]
    fn an_error_at_any_call_comes_out() {
        let counting = FaultPlan::counting(Kinds::ALL);
        match trip(&counting) {
            Err(reason) => return crate::here::skipped(reason),
            Ok(()) => assert!(counting.calls() > REQUESTS as u64),
        }
        for n in 0..counting.calls() {
            for outcome in [Outcome::Errno(libc::EIO), Outcome::Short] {
                let plan = FaultPlan::nth(n, Kinds::ALL, outcome, Repeat::Once);
                assert!(trip(&plan).is_err(), "call {n}: {outcome:?}");
            }
        }
    }

    #[test]
    fn canary_a_device_that_swallows_writes_is_found_out() {
        let plan = FaultPlan::nth(5, Kinds::WRITES, Outcome::Swallow, Repeat::Once);
        assert!(trip(&plan).is_err(), "the check would miss a lost write");
    }
}

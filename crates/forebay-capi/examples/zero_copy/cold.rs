//! Views of what nobody has in memory, and the device's own speed.

use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use forebay::evict::evict_file;
use forebay::{Result, Session};

use crate::kernel::{self, Counts, Mapped};
use crate::measure::{compare, sum, timed};
use crate::{GIB, MIB, Place, open, session};

/// The ways, in order, for what each has cost.
const WAYS: [&str; 7] = [
    "view",
    "new session",
    "read",
    "mmap",
    "populated",
    "one",
    "four",
];
/// Bytes that a direct read brings.
const REQUEST: usize = 2 * MIB;

pub fn cold(place: &Place) -> Result<()> {
    for len in [64 * MIB, GIB] {
        one(place, len)?;
    }
    Ok(())
}

/// A file of `len` bytes, in ways of which each reads and sums all of it.
fn one(place: &Place, len: usize) -> Result<()> {
    let (path, plain) = kernel::made(place, "cold", len);
    // Of a file that one session manages another one has a copy, by the kernel.
    let (unmanaged, _) = kernel::made(place, "cold-new", len);
    let direct = kernel::open(&path, libc::O_DIRECT);
    let memory = Mapped::huge(len);
    let cold = || kernel::let_go_of(&path);
    let counts: [Cell<String>; 7] = Default::default();
    let counted = |way: usize, work: &mut dyn FnMut()| -> Duration {
        let before = Counts::now(&path);
        let took = timed(work);
        counts[way].set(Counts::since(&path, before));
        took
    };
    let file = place.open("cold")?;
    let (mut is_copy, mut is_new_copy) = (false, false);
    let whole = 0..len as u64;
    compare(
        &format!(
            "{} MiB that nobody has in memory, read and summed, ms",
            len / MIB
        ),
        1.0,
        [
            ("view", &mut || {
                cold();
                let core = file.core().expect("managed");
                evict_file(core.shared.me().expect("a slot"), core.id);
                counted(0, &mut || {
                    let view = file.view(whole.clone()).expect("a view");
                    sum(&view);
                    is_copy |= view.is_copy();
                })
            }),
            ("view in a new session", &mut || {
                kernel::let_go_of(&unmanaged);
                let other = session("new").expect("a session");
                let took = counted(1, &mut || is_new_copy |= sum_anew(&other, &unmanaged));
                drop(other);
                took
            }),
            ("read by 1 MiB", &mut || {
                cold();
                counted(2, &mut || read_by(&plain, len))
            }),
            ("mmap", &mut || {
                cold();
                counted(3, &mut || _ = sum(&Mapped::new(&plain, 0, len, 0, 0)))
            }),
            ("mmap, MADV_POPULATE_READ", &mut || {
                cold();
                counted(4, &mut || _ = sum(&Mapped::new(&plain, 0, len, 0, 22)))
            }),
            ("direct, 2 MiB, one at once", &mut || {
                cold();
                counted(5, &mut || read_all(&memory, &direct, 1))
            }),
            ("direct, 2 MiB, four at once", &mut || {
                cold();
                counted(6, &mut || read_all(&memory, &direct, 4))
            }),
        ],
    );
    tell(counts);
    println!("        a view was a copy: {is_copy}, in a new session: {is_new_copy}");
    file.close()?;
    place.remove("cold");
    place.remove("cold-new");
    Ok(())
}

/// All of a file, in a session that has not had it open. Whether it was a copy.
fn sum_anew(session: &Session, path: &str) -> bool {
    let file = open(session, path).expect("a file");
    let view = file.view(0..u64::MAX).expect("a view");
    sum(&view);
    view.is_copy()
}

/// Prints what the ways have cost.
fn tell(counts: [Cell<String>; 7]) {
    for (name, counts) in WAYS.iter().zip(counts) {
        println!("        {name}: {}", counts.into_inner());
    }
}

/// Reads a file by the kernel, a mebibyte at a time, and sums it.
fn read_by(file: &std::fs::File, len: usize) {
    let mut buffer = vec![0u8; MIB];
    for at in (0..len as u64).step_by(MIB) {
        file.read_exact_at(&mut buffer, at).expect("read");
        sum(&buffer);
    }
}

/// Reads a file past the kernel's cache into memory that is there, by so many threads, and sums it.
fn read_all(memory: &Mapped, file: &std::fs::File, threads: usize) {
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(REQUEST, Relaxed);
            if at >= memory.len() {
                return;
            }
            memory.read(file, at, REQUEST);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    sum(memory);
}

//! Views of what is cached.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay::{File, Result};

use crate::kernel::{self, Mapped};
use crate::measure::{compare, sum, timed};
use crate::{GIB, MIB, Place};

const PIECE: usize = 2 * MIB;
const POPULATE_READ: i32 = 22;

/// What it takes to have cached bytes: 2 MiB of which one is read, and a gigabyte that is summed.
pub fn cached(place: &Place) -> Result<()> {
    let (_, plain) = kernel::made(place, "viewed", GIB);
    let file = place.open("viewed")?;
    let pieces = || (0..GIB as u64).step_by(PIECE);
    let each = |work: &mut dyn FnMut(u64)| timed(|| pieces().for_each(work));
    let mut bytes = vec![0u8; PIECE];
    let mut more = bytes.clone();
    let mapped = |at, flags| Mapped::new(&plain, at, PIECE, flags, 0);
    compare(
        "2 MiB of a cached file, one byte read, us",
        1e3 / (GIB / PIECE) as f64,
        [
            ("view", &mut || {
                each(&mut |at| {
                    let view = file.view(at..at + PIECE as u64).expect("a view");
                    black_box(view[77]);
                })
            }),
            ("read_at", &mut || {
                each(&mut |at| _ = file.read_at(&mut bytes, at).expect("read"))
            }),
            ("read", &mut || {
                each(&mut |at| plain.read_exact_at(&mut more, at).expect("read"))
            }),
            ("mmap", &mut || {
                each(&mut |at| _ = black_box(mapped(at, 0)[77]))
            }),
            ("mmap, MAP_POPULATE", &mut || {
                each(&mut |at| _ = black_box(mapped(at, libc::MAP_POPULATE)[77]))
            }),
        ],
    );
    summed(&file, &plain)?;
    file.close()?;
    place.remove("viewed");
    Ok(())
}

/// A gigabyte, every byte of which is read.
fn summed(file: &File, plain: &std::fs::File) -> Result<()> {
    let whole = 0..GIB as u64;
    let is_copy = file.view(whole.clone())?.is_copy();
    let mut buffer = vec![0u8; MIB];
    let mut other = vec![0u8; MIB];
    let by_mib = |work: &mut dyn FnMut(u64)| -> Duration {
        timed(|| (0..GIB as u64).step_by(MIB).for_each(work))
    };
    compare(
        &format!("1 GiB of a cached file summed, ms (the view is a copy: {is_copy})"),
        1.0,
        [
            ("view", &mut || {
                timed(|| _ = sum(&file.view(whole.clone()).expect("a view")))
            }),
            ("read_at by 1 MiB", &mut || {
                by_mib(&mut |at| {
                    file.read_at(&mut buffer, at).expect("read");
                    sum(&buffer);
                })
            }),
            ("read by 1 MiB", &mut || {
                by_mib(&mut |at| {
                    plain.read_exact_at(&mut other, at).expect("read");
                    sum(&other);
                })
            }),
            ("mmap, MADV_POPULATE_READ", &mut || {
                timed(|| _ = sum(&Mapped::new(plain, 0, GIB, 0, POPULATE_READ)))
            }),
        ],
    );
    Ok(())
}

//! Windows: what they save, and from which size on.

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use forebay::{File, Result, Window};

use crate::kernel;
use crate::measure::{Took, Way, compare, in_turn, timed};
use crate::{GIB, MIB, Place};

/// Bytes that are written by pieces.
const TOTAL: usize = 128 * MIB;

/// A gigabyte that lies ready, to a new file: until the call returns, and until it is durable.
pub fn saved(place: &Place) -> Result<()> {
    save(place, false)?;
    save(place, true)?;
    place.remove("saved");
    Ok(())
}

fn save(place: &Place, durable: bool) -> Result<()> {
    let bytes = vec![7u8; GIB];
    let mut window = place.session.window(GIB)?;
    window.fill(7);
    let path = place.path("saved");
    let by_kernel = |write: &mut dyn FnMut(&mut std::fs::File)| {
        place.remove("saved");
        let mut file = kernel::open(&path, 0);
        timed(|| {
            write(&mut file);
            if durable {
                file.sync_all().expect("durable");
            }
        })
    };
    let by_engine = |write: &mut dyn FnMut(&File)| {
        place.remove("saved");
        let file = place.open("saved").expect("a file");
        let time = timed(|| {
            write(&file);
            if durable {
                file.sync_all().expect("durable");
            }
        });
        file.close().expect("closed");
        time
    };
    let before = window.attached_bytes();
    let until = if durable { "durable" } else { "returned" };
    compare(
        &format!("1 GiB saved to a new file, until {until}, ms"),
        1.0,
        [
            ("window", &mut || {
                window.refill().expect("refilled");
                by_engine(&mut |file| {
                    assert_eq!(window.commit(file, 0, 0..GIB).expect("given"), GIB);
                })
            }),
            ("write_at", &mut || {
                by_engine(&mut |file| assert_eq!(file.write_at(&bytes, 0).expect("written"), GIB))
            }),
            ("write", &mut || {
                by_kernel(&mut |file| file.write_all(&bytes).expect("written"))
            }),
            ("RWF_DONTCACHE by 16 MiB", &mut || {
                by_kernel(&mut |file| {
                    for (part, at) in bytes.chunks(16 * MIB).zip((0..).step_by(16 * MIB)) {
                        kernel::write_without_cache(file, part, at);
                    }
                })
            }),
        ],
    );
    let attached = (window.attached_bytes() - before) / 8 / MIB as u64;
    println!("        {attached} MiB of each without a copy");
    Ok(())
}

/// Pieces that are filled and written one after the other, by size: microseconds a MiB, of which the filling is in all.
pub fn sizes(place: &Place) -> Result<()> {
    for off in [0, 100] {
        let file = place.open("sizes")?;
        println!(
            "filled and written by pieces, {off} bytes off, us a MiB: window, write_at, write"
        );
        for size in [4, 16, 64, 256, 1024, 2048, 4096, 16384].map(|kib| kib << 10) {
            one_size(place, &file, size, off)?;
        }
        file.sync_data()?;
        file.close()?;
    }
    place.remove("sizes");
    place.remove("sizes-kernel");
    Ok(())
}

fn one_size(place: &Place, file: &File, size: usize, off: u64) -> Result<()> {
    let other = kernel::open(&place.path("sizes-kernel"), 0);
    let mut bytes = vec![0u8; size];
    let mut more = bytes.clone();
    let mut window = place.session.window(size)?;
    window.slide(off)?;
    let each = |work: &mut dyn FnMut(u64)| -> Duration {
        timed(|| {
            (0..TOTAL as u64)
                .step_by(size)
                .for_each(|at| work(at + off))
        })
    };
    let before = window.attached_bytes();
    let mut ways: [Way<'_>; 3] = [
        ("window", &mut || {
            each(&mut |at| {
                window.fill(at as u8);
                window.commit(file, at, 0..size).expect("given");
                window.detach().expect("detached");
            })
        }),
        ("write_at", &mut || {
            each(&mut |at| {
                more.fill(at as u8);
                file.write_at(&more, at).expect("written");
            })
        }),
        ("write", &mut || {
            each(&mut |at| {
                bytes.fill(at as u8);
                other.write_all_at(&bytes, at).expect("written");
            })
        }),
    ];
    let [window_took, write_at, write] =
        in_turn(&mut ways).map(|took| took.times(1e3 / (TOTAL / MIB) as f64));
    let attached = (window.attached_bytes() - before) as f64 * 100.0 / (8 * TOTAL) as f64;
    println!(
        "    {:6} KiB  {window_took}  {write_at}  {write}  {attached:.0} % without a copy",
        size >> 10
    );
    Ok(())
}

/// A buffer of 2 MiB that is rewritten in part after each time that it was written.
pub fn rewritten(place: &Place) -> Result<()> {
    const SIZE: usize = 2 * MIB;
    let file = place.open("rewritten")?;
    let other = kernel::open(&place.path("rewritten-kernel"), 0);
    let mut bytes = vec![0u8; SIZE];
    let windows = || place.session.window(SIZE);
    let (mut plain, mut refilled, mut detached) = (windows()?, windows()?, windows()?);
    println!(
        "2 MiB written, a part of it rewritten, us each: window as it is, refill, detach, write"
    );
    for share in [0, 25, 50, 100] {
        let part = SIZE * share / 100;
        let each =
            |work: &mut dyn FnMut(u64)| timed(|| (0..TOTAL as u64).step_by(SIZE).for_each(work));
        let by = |window: &mut Window, ready: fn(&mut Window) -> Result<()>| {
            each(&mut |at| {
                ready(window).expect("ready");
                window[..part].fill(at as u8);
                window.commit(&file, at, 0..SIZE).expect("given");
            })
        };
        let took: [Took; 4] = in_turn(&mut [
            ("as it is", &mut || by(&mut plain, |_| Ok(()))),
            ("refill", &mut || by(&mut refilled, Window::refill)),
            ("detach", &mut || by(&mut detached, Window::detach)),
            ("write", &mut || {
                each(&mut |at| {
                    bytes[..part].fill(at as u8);
                    other.write_all_at(&bytes, at).expect("written");
                })
            }),
        ]);
        let [a, b, c, d] = took.map(|took| took.times(1e3 / (TOTAL / SIZE) as f64));
        println!("    {share:3} %  {a}  {b}  {c}  {d}");
    }
    file.close()?;
    place.remove("rewritten");
    place.remove("rewritten-kernel");
    Ok(())
}

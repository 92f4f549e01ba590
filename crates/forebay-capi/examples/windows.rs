//! What windows are worth: bytes saved from a window, by the engine's `write_at`, and by the kernel's `write`, in turn.
//!
//!     FOREBAY_MEMORY=3GiB FOREBAY_DIRTY_BYTES_MAX=2GiB cargo run --release -p forebay-capi --example windows -- DIR
//!
//! Medians of five rounds after one that warms the memory of all. Files are written over, but those that are saved are new each time.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay::{Config, File, OpenOptions, Result, Session, View, Window};

const ROUNDS: usize = 6;
const MIB: usize = 1 << 20;
const SAVED: usize = 1 << 30;

struct Place {
    session: Session,
    dir: String,
}

impl Place {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.dir)
    }

    fn open(&self, name: &str) -> Result<File> {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true);
        self.session.open_file(self.path(name), &how)
    }
}

fn kernel(path: &str) -> fs::File {
    let mut how = fs::OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.open(path).expect("a file")
}

/// Runs some ways in turn; the medians without the first round, milliseconds.
fn in_turn<const N: usize>(mut ways: [&mut dyn FnMut() -> Duration; N]) -> [f64; N] {
    let mut times: [Vec<Duration>; N] = std::array::from_fn(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (way, times) in ways.iter_mut().zip(&mut times) {
            times.push(way());
        }
    }
    times.map(|mut times| {
        times.remove(0);
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64() * 1e3
    })
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

/// A gigabyte that lies ready, to a new file: until the call returns, and until it is durable.
fn save(place: &Place, durable: bool) -> Result<()> {
    let bytes = vec![7u8; SAVED];
    let mut window = place.session.window(SAVED)?;
    window.fill(7);
    let path = place.path("saved");
    let settle = |file: &fs::File| {
        if durable {
            file.sync_all().expect("durable");
        }
    };
    let mut kernels = || {
        let _ = fs::remove_file(&path);
        let mut file = kernel(&path);
        timed(|| {
            file.write_all(&bytes).expect("written");
            settle(&file);
        })
    };
    let mut dontcache = || {
        let _ = fs::remove_file(&path);
        let file = kernel(&path);
        timed(|| {
            for (part, at) in bytes.chunks(16 * MIB).zip((0..).step_by(16 * MIB)) {
                dontcache(&file, part, at);
            }
            settle(&file);
        })
    };
    let managed = |write: &mut dyn FnMut(&File)| {
        let _ = fs::remove_file(&path);
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
    let mut engines =
        || managed(&mut |file| assert_eq!(file.write_at(&bytes, 0).expect("written"), SAVED));
    let before = window.attached_bytes();
    let mut windows = || {
        window.refill().expect("refilled");
        managed(&mut |file| assert_eq!(window.commit(file, 0, 0..SAVED).expect("given"), SAVED))
    };
    let times = in_turn([&mut kernels, &mut dontcache, &mut engines, &mut windows]);
    let attached = (window.attached_bytes() - before) / ROUNDS as u64 / MIB as u64;
    let until = if durable { "durable" } else { "returned" };
    println!(
        "1 GiB saved, until {until}, ms: write {:.1}, RWF_DONTCACHE {:.1}, write_at {:.1}, window {:.1} ({attached} MiB without a copy)",
        times[0], times[1], times[2], times[3]
    );
    Ok(())
}

/// `pwritev2` with `RWF_DONTCACHE`; a plain write where the file system does not have it.
fn dontcache(file: &fs::File, bytes: &[u8], at: u64) {
    use std::os::fd::AsRawFd;
    const RWF_DONTCACHE: i32 = 0x80;
    let mut done = 0;
    while done < bytes.len() {
        let part = libc::iovec {
            iov_base: bytes[done..].as_ptr().cast_mut().cast(),
            iov_len: bytes.len() - done,
        };
        let at = (at + done as u64) as i64;
        // SAFETY: one part, of bytes that are ours.
        let written =
            unsafe { libc::pwritev2(file.as_raw_fd(), &raw const part, 1, at, RWF_DONTCACHE) };
        if written < 0 {
            file.write_all_at(&bytes[done..], at as u64)
                .expect("written");
            return;
        }
        done += written as usize;
    }
}

/// Pieces that are filled and written one after the other, by size: microseconds a MiB, of which the filling is in all.
fn sizes(place: &Place, off: u64) -> Result<()> {
    const TOTAL: usize = 128 * MIB;
    let file = place.open("sizes")?;
    let other = kernel(&place.path("sizes-kernel"));
    println!("filled and written by pieces, {off} bytes off, us a MiB: write, write_at, window");
    for size in [4, 16, 64, 256, 1024, 2048, 4096, 16384].map(|kib| kib << 10) {
        let mut bytes = vec![0u8; size];
        let mut window = place.session.window(size)?;
        window.slide(off)?;
        let pieces = || (0..TOTAL as u64).step_by(size).map(|at| at + off);
        let mut more = bytes.clone();
        let mut kernels = || {
            timed(|| {
                for at in pieces() {
                    bytes.fill(at as u8);
                    other.write_all_at(&bytes, at).expect("written");
                }
            })
        };
        let mut engines = || {
            timed(|| {
                for at in pieces() {
                    more.fill(at as u8);
                    file.write_at(&more, at).expect("written");
                }
            })
        };
        let before = window.attached_bytes();
        let mut windows = || {
            timed(|| {
                for at in pieces() {
                    window.fill(at as u8);
                    window.commit(&file, at, 0..size).expect("given");
                    window.detach().expect("detached");
                }
            })
        };
        let times = in_turn([&mut kernels, &mut engines, &mut windows]);
        let mibs = (TOTAL / MIB) as f64;
        let [write, write_at, commit] = times.map(|ms| ms * 1e3 / mibs);
        let attached = (window.attached_bytes() - before) as f64 * 100.0 / (ROUNDS * TOTAL) as f64;
        println!(
            "  {:6} KiB: {write:7.1} {write_at:7.1} {commit:7.1}  ({attached:.0} % without a copy)",
            size >> 10
        );
    }
    file.sync_data()?;
    file.close()
}

/// A buffer of 2 MiB that is rewritten in part after each time that it was written.
fn rewritten(place: &Place) -> Result<()> {
    const TOTAL: usize = 128 * MIB;
    const SIZE: usize = 2 * MIB;
    let file = place.open("rewritten")?;
    let other = kernel(&place.path("rewritten-kernel"));
    let mut bytes = vec![0u8; SIZE];
    let mut plain = place.session.window(SIZE)?;
    let mut refilled = place.session.window(SIZE)?;
    let mut detached = place.session.window(SIZE)?;
    println!(
        "2 MiB written, a part of it rewritten, us each: write, window as it is, refill, detach"
    );
    for share in [0, 25, 50, 100] {
        let part = SIZE * share / 100;
        let pieces = || (0..TOTAL as u64).step_by(SIZE);
        let mut kernels = || {
            timed(|| {
                for at in pieces() {
                    bytes[..part].fill(at as u8);
                    other.write_all_at(&bytes, at).expect("written");
                }
            })
        };
        let by = |window: &mut Window, ready: fn(&mut Window) -> Result<()>| {
            timed(|| {
                for at in pieces() {
                    ready(window).expect("ready");
                    window[..part].fill(at as u8);
                    window.commit(&file, at, 0..SIZE).expect("given");
                }
            })
        };
        let mut as_it_is = || by(&mut plain, |_| Ok(()));
        let mut with_refill = || by(&mut refilled, Window::refill);
        let mut with_detach = || by(&mut detached, Window::detach);
        let times = in_turn([
            &mut kernels,
            &mut as_it_is,
            &mut with_refill,
            &mut with_detach,
        ]);
        let [a, b, c, d] = times.map(|ms| ms * 1e3 / (TOTAL / SIZE) as f64);
        println!("  {share:3} %: {a:7.1} {b:7.1} {c:7.1} {d:7.1}");
    }
    file.close()
}

/// What it takes to have cached bytes: 2 MiB of which one is read, and a gigabyte that is summed.
fn views(place: &Place) -> Result<()> {
    let file = place.open("viewed")?;
    let content = vec![3u8; 16 * MIB];
    for at in (0..SAVED as u64).step_by(16 * MIB) {
        file.write_at(&content, at)?;
    }
    file.sync_data()?;
    let path = place.path("viewed-kernel");
    let other = kernel(&path);
    for at in (0..SAVED as u64).step_by(16 * MIB) {
        other.write_all_at(&content, at).expect("written");
    }
    let mut bytes = vec![0u8; 2 * MIB];
    let mut more = bytes.clone();
    let pieces = || (0..SAVED as u64).step_by(2 * MIB);
    let one = |view: &View| std::hint::black_box(view[77]);
    let mut kernels =
        || timed(|| pieces().for_each(|at| other.read_exact_at(&mut bytes, at).expect("read")));
    let mut engines =
        || timed(|| pieces().for_each(|at| _ = file.read_at(&mut more, at).expect("read")));
    let mut views = || {
        timed(|| {
            pieces().for_each(|at| _ = one(&file.view(at..at + 2 * MIB as u64).expect("a view")))
        })
    };
    let times = in_turn([&mut kernels, &mut engines, &mut views]);
    let [a, b, c] = times.map(|ms| ms * 1e3 / (SAVED / (2 * MIB)) as f64);
    println!("2 MiB of a cached file, us: read {a:.1}, read_at {b:.1}, view {c:.1}");
    let sum = |bytes: &[u8]| {
        let (_, words, _) = unsafe_words(bytes);
        std::hint::black_box(words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word)))
    };
    let mut buffer = vec![0u8; MIB];
    let mut kernels = || {
        timed(|| {
            for at in (0..SAVED as u64).step_by(MIB) {
                other.read_exact_at(&mut buffer, at).expect("read");
                sum(&buffer);
            }
        })
    };
    let mut views = || timed(|| _ = sum(&file.view(0..SAVED as u64).expect("a view")));
    let mut copy = false;
    let mut is_copy = || {
        copy = file.view(0..SAVED as u64).expect("a view").is_copy();
        Duration::ZERO
    };
    let mut mapped = || timed(|| _ = sum(&Mapped::new(&other, SAVED)));
    let [a, b, c, _] = in_turn([&mut kernels, &mut views, &mut mapped, &mut is_copy]);
    println!(
        "1 GiB of a cached file summed, ms: read {a:.1}, view {b:.1} (a copy: {copy}), mmap and MADV_POPULATE_READ {c:.1}"
    );
    file.close()
}

fn unsafe_words(bytes: &[u8]) -> (&[u8], &[u64], &[u8]) {
    // SAFETY: any bytes are numbers.
    unsafe { bytes.align_to() }
}

struct Mapped(*mut u8, usize);

impl Mapped {
    fn new(file: &fs::File, len: usize) -> Self {
        use std::os::fd::AsRawFd;
        const MADV_POPULATE_READ: i32 = 22;
        let (fd, map) = (file.as_raw_fd(), libc::MAP_SHARED);
        // SAFETY: new addresses, of a file that is as long.
        let first = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, map, fd, 0) };
        assert!(first != libc::MAP_FAILED);
        // SAFETY: what was mapped just now.
        unsafe { libc::madvise(first, len, MADV_POPULATE_READ) };
        Mapped(first.cast(), len)
    }
}

impl std::ops::Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped until it is dropped; nobody writes the file meanwhile.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

fn main() -> Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let mut options = forebay::config::Options::default();
    options.set("session", "windows")?;
    let session = Session::open(Config::load_with(options)?)?;
    let place = Place { session, dir };
    sizes(&place, 0)?;
    sizes(&place, 100)?;
    rewritten(&place)?;
    save(&place, false)?;
    save(&place, true)?;
    let _ = fs::remove_file(Path::new(&place.path("saved")));
    views(&place)
}

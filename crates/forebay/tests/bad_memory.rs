//! Programs that pass addresses where no memory is: the engine answers as the kernel does, and stays whole.
//!
//! Every request goes to a managed file and, by the kernel, to a plain one; counts, errors and bytes must agree. A handler
//! of SIGSEGV ends the engine's copies, as the preload library's does; without one the test process would die of the first.
#![cfg(all(target_arch = "x86_64", not(feature = "sim")))]

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::time::Duration;

use forebay::config::Route;
use forebay::file::core::{Core, Halt};
use forebay::file::quick::{self, Recent};
use forebay::file::{read, write};
use forebay::memory::copy;
use forebay::{Config, OpenOptions, Session};

const PAGE: usize = 4096;
/// Pages of the program's memory; every `HOLE_EVERY`th is missing.
const PAGES: usize = 1300;
const HOLE_EVERY: usize = 509;
const FILE_BYTES: u64 = 8 << 20;

extern "C" fn on_fault(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a context; the thread goes on with the registers in it.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let ip = &mut registers[libc::REG_RIP as usize];
        match copy::fixup(*ip as usize) {
            Some(out) => *ip = out as i64,
            // Not ours: the default action, at the same instruction again.
            None => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

fn handle_faults() {
    // SAFETY: a handler that keeps to what handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            assert_eq!(
                libc::sigaction(signal, &raw const action, std::ptr::null_mut()),
                0
            );
        }
    }
}

/// Memory with holes.
struct Memory(*mut u8);

impl Memory {
    fn new() -> Self {
        let (read_write, private) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a mapping of the test's own.
        unsafe {
            let start = libc::mmap(
                std::ptr::null_mut(),
                PAGES * PAGE,
                read_write,
                private,
                -1,
                0,
            );
            assert_ne!(start, libc::MAP_FAILED);
            for hole in (0..PAGES).step_by(HOLE_EVERY).skip(1) {
                let at = start.add(hole * PAGE);
                assert_eq!(libc::mprotect(at, PAGE, libc::PROT_NONE), 0);
            }
            Memory(start.cast())
        }
    }

    fn is_hole(page: usize) -> bool {
        page != 0 && page.is_multiple_of(HOLE_EVERY)
    }

    /// Puts `seed` and the position into every byte that is there.
    fn fill(&self, seed: u8, pages: Range<usize>) {
        for page in pages.filter(|&page| !Self::is_hole(page)) {
            for at in (page * PAGE..(page + 1) * PAGE).step_by(8) {
                let word = (at as u64 ^ u64::from(seed) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                // SAFETY: within a page that is there.
                unsafe { self.0.add(at).cast::<u64>().write(word) };
            }
        }
    }

    fn bytes(&self, pages: Range<usize>) -> Vec<u8> {
        let there = pages.filter(|&page| !Self::is_hole(page));
        let mut bytes = Vec::new();
        for page in there {
            // SAFETY: a page that is there.
            bytes.extend_from_slice(unsafe {
                std::slice::from_raw_parts(self.0.add(page * PAGE), PAGE)
            });
        }
        bytes
    }
}

/// Count, or errno.
type Answer = Result<usize, i32>;

fn engine(
    core: &Core,
    recent: &Recent,
    memory: *mut u8,
    len: usize,
    at: u64,
    into: bool,
) -> Answer {
    let me = core.shared.me().expect("this thread is a member");
    let stream = recent.stream(me);
    let sequential = stream.is_sequential(at, len);
    // SAFETY: faults are handled.
    let answer: Result<usize, Halt> = unsafe {
        if into {
            if quick::read(core, me, stream, memory, len, at, sequential) {
                return Ok(len);
            }
            read::read(core, me, memory, len, at, sequential)
        } else {
            let route = core.shared.route_for(std::path::Path::new("/"));
            if quick::write(core, me, stream, memory, len, at, sequential) {
                return Ok(len);
            }
            let intent = write::Intent {
                route: route.as_ref(),
                sequential,
                long: true,
                sync: false,
                at_end: false,
            };
            write::write(core, me, memory, len, at, intent)
        }
    };
    answer.map_err(|halt| Core::ended(halt).errno())
}

fn kernel(file: &std::fs::File, memory: *mut u8, len: usize, at: u64, into: bool) -> Answer {
    let (fd, at) = (file.as_raw_fd(), at as i64);
    // SAFETY: the kernel checks addresses.
    let count = unsafe {
        if into {
            libc::pread(fd, memory.cast(), len, at)
        } else {
            libc::pwrite(fd, memory.cast(), len, at)
        }
    };
    usize::try_from(count).map_err(|_| {
        std::io::Error::last_os_error()
            .raw_os_error()
            .expect("an errno")
    })
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    /// Many short ones, some of several blocks.
    fn len(&mut self) -> usize {
        match self.below(8) {
            0..3 => 1 + self.below(300),
            3..6 => 1 + self.below(3 * PAGE),
            6 => 1 + self.below(100 * PAGE),
            _ => (1 + self.below(4)) << 20,
        }
    }

    /// Near a hole, before it, in it or over it; on a page now and then.
    fn address(&mut self, len: usize) -> usize {
        let hole = (1 + self.below(PAGES / HOLE_EVERY)) * HOLE_EVERY * PAGE;
        let before = self.below(len.min(hole) + 2 * PAGE).min(hole);
        let at = (hole + PAGE - before).min(PAGES * PAGE - 1);
        if self.below(3) == 0 {
            at & !(PAGE - 1)
        } else {
            at
        }
    }
}

fn config(name: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 4 << 20;
    config.flush_after = Some(Duration::from_millis(5));
    config.flush_interval = Some(Duration::from_millis(20));
    config.session = format!("test-bad-memory-{name}-{}", std::process::id());
    config
}

#[test]
fn missing_memory_is_answered_as_the_kernel_answers_it() {
    as_the_kernel("auto", Route::Auto, 400);
}

#[test]
fn missing_memory_of_direct_writes() {
    as_the_kernel("direct", Route::Direct, 200);
    as_the_kernel("threshold", Route::Threshold, 200);
}

fn as_the_kernel(name: &str, route: Route, rounds: usize) {
    handle_faults();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut config = config(name);
    config.route = route;
    let session = Session::open(config).expect("a session");
    let managed_path = dir.path().join("managed");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .clone();
    let managed = session.open_file(&managed_path, &open).expect("a file");
    let Some(core) = managed.core() else {
        eprintln!("left to the kernel: {:?}", managed.kernel_reason());
        return;
    };
    let plain_path = dir.path().join("plain");
    let plain = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&plain_path)
        .expect("a file");
    // So that the keeper has the file's descriptors.
    managed.write_at(b"first", 0).expect("a write");
    kernel(&plain, b"first".as_ptr().cast_mut(), 5, 0, false).expect("a write");

    let (recent, memory, mut random) = (Recent::default(), Memory::new(), Random(0x9e37_79b9));
    let mut faults = [0; 2];
    for round in 0..rounds {
        let (len, into) = (random.len(), random.below(2) == 0);
        let start = random.address(len);
        let len = len.min(PAGES * PAGE - start);
        // The file grows, with holes.
        let mut at = random.below(FILE_BYTES as usize / rounds * (round + 1)) as u64;
        if random.below(3) == 0 {
            at &= !(PAGE as u64 - 1);
        }
        // SAFETY: within the mapping.
        let address = unsafe { memory.0.add(start) };
        let around = start.saturating_sub(PAGE) / PAGE..((start + len) / PAGE + 2).min(PAGES);
        memory.fill(round as u8, around.clone());
        let one = kernel(&plain, address, len, at, into);
        // SAFETY: as many bytes as have been there.
        let copied = unsafe { std::slice::from_raw_parts(address, one.unwrap_or(0)) };
        let (there, copied_there) = (memory.bytes(around.clone()), copied.to_vec());
        memory.fill(round as u8, around.clone());
        let other = engine(core, &recent, address, len, at, into);
        assert_eq!(one, other, "round {round}: {len} at {at}, reading: {into}");
        assert!(copied == copied_there, "round {round}: bytes differ");
        let torn = usize::from(one != Ok(len));
        if torn == 0 || !into {
            assert!(there == memory.bytes(around), "round {round}: bytes differ");
        }
        faults[usize::from(into)] += torn;
    }
    assert!(faults.iter().all(|&n| n > 20), "too few faults: {faults:?}");
    managed.close().expect("everything reaches the file");
    let (one, other) = (std::fs::read(&plain_path), std::fs::read(&managed_path));
    assert!(one.expect("readable") == other.expect("readable"));
    drop(session);
}

#[test]
fn nothing_torn_is_left_beyond_the_end() {
    handle_faults();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let session = Session::open(config("end")).expect("a session");
    let open = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .clone();
    let file = session
        .open_file(dir.path().join("file"), &open)
        .expect("a file");
    let Some(core) = file.core() else {
        eprintln!("left to the kernel: {:?}", file.kernel_reason());
        return;
    };
    file.write_at(&[1; PAGE], 0).expect("a write");
    file.set_len(99).expect("shorter");
    // Space is asked for again.
    file.write_at(&[1], 99).expect("a write");
    let (memory, me) = (Memory::new(), core.shared.me().expect("a member"));
    memory.fill(0, 0..PAGES);
    let recent = Recent::default();
    // SAFETY: faults are handled.
    let written = unsafe {
        let source = memory.0.add(HOLE_EVERY * PAGE - 1000);
        quick::write(core, me, recent.stream(me), source, 2000, 50, false)
    };
    assert!(!written);
    assert_eq!(file.len().expect("a length"), 100);
    file.set_len(PAGE as u64).expect("longer");
    let mut bytes = [9; PAGE];
    assert_eq!(file.read_at(&mut bytes, 0).expect("a read"), PAGE);
    assert!(bytes[50..100] != [1; 50], "the copy has not begun");
    assert!(bytes[100..] == [0; PAGE - 100], "torn bytes show");
}

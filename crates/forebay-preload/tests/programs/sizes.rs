//! Lengths: of one program, of another, by name; and errors at the limits.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use crate::scene::{Scene, said};
use crate::sys::*;

const RDWR: i32 = libc::O_RDWR | libc::O_CREAT;
const BLOCK: usize = 100_000;

fn run_self(scene_role: &str, dir: &Path) {
    // The library's own environment is inherited.
    let status = std::process::Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "role::run", "--nocapture", "--test-threads=1"])
        .env(crate::role::ROLE, scene_role)
        .env(crate::role::DIR, dir)
        .stdout(std::process::Stdio::null())
        .status()
        .expect("a program");
    assert!(status.success(), "{scene_role} has failed");
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let path = dir.join("a");
    match role {
        "size" => {
            let fd = open(&path, RDWR).expect("open");
            write(fd, &pattern(1, BLOCK)).expect("write");
            write(fd, &pattern(2, BLOCK)).expect("write");
            let size = 2 * BLOCK as i64;
            assert_eq!((size_of(fd), size_at(&path)), (size, size));
            run_self("size-seen", dir);
            run_self("size-cut", dir);
            assert_eq!((size_of(fd), size_at(&path)), (5000, 5000));
            write(fd, b"beyond").expect("write");
            assert_eq!(size_of(fd), size + 6);
            assert_eq!(pread(fd, 10, 5000), Ok(vec![0; 10]));
            run_self("size-empty", dir);
            assert_eq!(size_of(fd), 0);
            assert_eq!(pread(fd, 10, 0), Ok(Vec::new()));
            write(fd, b"again").expect("write");
            assert_eq!(size_of(fd), size + 6 + 5);
            close(fd).expect("close");
        }
        "size-seen" => {
            assert_eq!(size_at(&path), 2 * BLOCK as i64);
            let fd = open(&path, libc::O_RDONLY).expect("open");
            assert_eq!(size_of(fd), 2 * BLOCK as i64);
            let named = open(&path, libc::O_PATH).expect("open");
            assert_eq!(size_of(named), 2 * BLOCK as i64);
            close(named).expect("close");
            assert_eq!(seek(fd, 0, libc::SEEK_END), Ok(2 * BLOCK as i64));
            assert_eq!(pread(fd, BLOCK, BLOCK as i64), Ok(pattern(2, BLOCK)));
            assert_eq!(write(fd, b"x"), Err(libc::EBADF));
        }
        "size-cut" => truncate(&path, 5000).expect("truncate"),
        "size-empty" => {
            let fd = open(&path, RDWR | libc::O_TRUNC).expect("open");
            assert_eq!(size_of(fd), 0);
            close(fd).expect("close");
        }
        "errors" => errors(&path),
        "impossible" => println!("@{}", impossible(&path)),
        "truncated" => truncated(dir, argument),
        "limit" => limit(&path, argument == "ignore"),
        "limit-by" => limit_by(dir, argument),
        "limit-inside" => limit_inside(&dir.join(argument)),
        "space" => space(&path),
        "space-beyond" => space_beyond(&path, argument),
        _ => return false,
    }
    true
}

fn errors(path: &Path) {
    let fd = open(path, RDWR).expect("open");
    for turn in 0..3 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    assert_eq!(pwrite(fd, b"x", -1), Err(libc::EINVAL));
    assert_eq!(pread(fd, 1, -1), Err(libc::EINVAL));
    assert_eq!(seek(fd, -1, libc::SEEK_SET), Err(libc::EINVAL));
    assert_eq!(seek(fd, i64::MAX, libc::SEEK_END), Err(libc::EINVAL));
    assert_eq!(seek(fd, 0, 77), Err(libc::EINVAL));
    let writer = open(path, libc::O_WRONLY).expect("open");
    assert_eq!(read(writer, 1), Err(libc::EBADF));
    let reader = open(path, libc::O_RDONLY).expect("open");
    assert_eq!(write(reader, b"x"), Err(libc::EBADF));
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::ftruncate(reader, 0) }, -1);
    assert_eq!(
        std::io::Error::last_os_error().raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!(seek(fd, 0, libc::SEEK_HOLE), Ok(3 * BLOCK as i64));
    assert_eq!(seek(fd, 0, libc::SEEK_DATA), Ok(0));
    assert_eq!(
        seek(fd, 10 * BLOCK as i64, libc::SEEK_DATA),
        Err(libc::ENXIO)
    );
}

/// Requests that no file can serve, and what the answers are.
fn impossible(path: &Path) -> String {
    let fd = open(path, RDWR).expect("open");
    for turn in 0..3 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    let log = open(path, RDWR | libc::O_APPEND).expect("open");
    let reader = open(path, libc::O_RDONLY).expect("open");
    write(log, b"end").expect("write");
    let mut said = Vec::new();
    for len in [0, 1, 10, usize::MAX / 2, usize::MAX / 2 + 1, usize::MAX] {
        said.extend(impossible_lengths([fd, log, reader], len));
    }
    said.extend(impossible_parts(fd));
    said.extend(impossible_sizes([fd, reader]));
    format!("{said:?} {}", size_of(fd))
}

type Said = Result<i64, Option<i32>>;

fn answer(result: i64) -> Said {
    match result {
        -1 => Err(std::io::Error::last_os_error().raw_os_error()),
        done => Ok(done),
    }
}

const LAST: i64 = i64::MAX;

fn impossible_lengths([fd, log, reader]: [i32; 3], len: usize) -> Vec<Said> {
    let mut said = Vec::new();
    let memory = [7u8; 100];
    let to = memory.as_ptr().cast_mut().cast::<libc::c_void>();
    // SAFETY: what is valid is moved, the rest is refused.
    unsafe {
        for at in [0, -1, LAST, LAST - 5, i64::MIN] {
            for fd in [fd, reader] {
                said.push(answer(libc::pread(fd, to, len, at) as i64));
            }
            // What fits would make the file as long as can be.
            if at <= 0 || len > 100 || len as i64 > LAST - at {
                for fd in [fd, log, reader] {
                    said.push(answer(libc::pwrite(fd, to, len, at) as i64));
                }
            }
        }
        for fd in [fd, log, reader] {
            if len == 0 || len > 100 {
                said.push(answer(libc::read(fd, to, len) as i64));
                said.push(answer(libc::write(fd, to, len) as i64));
            }
        }
    }
    said
}

fn impossible_parts(fd: i32) -> Vec<Said> {
    let mut said = Vec::new();
    let memory = [7u8; 100];
    let part = |len| libc::iovec {
        iov_base: memory.as_ptr().cast_mut().cast(),
        iov_len: len,
    };
    let (large, two) = ([part(10), part(usize::MAX)], [part(10), part(10)]);
    // SAFETY: what is valid is moved, the rest is refused.
    unsafe {
        for at in [0, -1, LAST, LAST - 15] {
            said.push(answer(libc::preadv(fd, large.as_ptr(), 2, at) as i64));
            said.push(answer(libc::pwritev(fd, large.as_ptr(), 2, at) as i64));
            if at != 0 {
                said.push(answer(libc::preadv(fd, two.as_ptr(), 2, at) as i64));
                said.push(answer(libc::pwritev(fd, two.as_ptr(), 2, at) as i64));
            }
        }
    }
    said
}

fn impossible_sizes([fd, reader]: [i32; 2]) -> Vec<Said> {
    let mut said = Vec::new();
    let spaces = [
        (0, -1, 10),
        (0, 0, 0),
        (0, 0, -1),
        (0, LAST, 10),
        (0, LAST - 5, 10),
        (libc::FALLOC_FL_KEEP_SIZE, LAST, 1),
    ];
    // SAFETY: these take no memory.
    unsafe {
        for (mode, at, len) in spaces {
            said.push(answer(libc::fallocate(fd, mode, at, len).into()));
            said.push(answer(libc::fallocate(reader, mode, at, len).into()));
        }
        for len in [-1, i64::MIN] {
            said.push(answer(libc::ftruncate(fd, len).into()));
            said.push(answer(libc::ftruncate(reader, len).into()));
        }
        for at in [-1, LAST, LAST - 1, i64::MIN] {
            for whence in [libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END, 9] {
                said.push(answer(libc::lseek(fd, at, whence)));
                said.push(answer(libc::lseek(fd, 0, libc::SEEK_SET)));
            }
        }
    }
    said
}

/// Files that are cut while they become managed, in each way.
const CUT: usize = 150;

/// One cuts files in a way while another begins to manage them, by appending.
fn truncated(dir: &Path, way: &str) {
    let turns = std::sync::Barrier::new(2);
    // Nanoseconds that it last took to begin to manage a file.
    let took = AtomicU64::new(1_000_000);
    let name = |turn| dir.join(format!("f{turn}"));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for turn in 0..CUT {
                turns.wait();
                let (begun, part) = (
                    Instant::now(),
                    took.load(Relaxed) * (turn as u64 * 7 % 110) / 100,
                );
                while begun.elapsed().as_nanos() < part.into() {
                    std::hint::spin_loop();
                }
                cut(&name(turn), way);
            }
        });
        for turn in 0..CUT {
            let fd = open(&name(turn), libc::O_RDWR | libc::O_APPEND).expect("open");
            turns.wait();
            let begun = Instant::now();
            write(fd, &pattern(1, 100)).expect("write");
            took.store(begun.elapsed().as_nanos() as u64, Relaxed);
            write(fd, &pattern(1, 100)).expect("write");
            close(fd).expect("close");
        }
    });
    for turn in 0..CUT {
        let bytes = std::fs::read(name(turn)).expect("a file");
        assert!(
            [
                &[][..],
                &pattern(1, 100),
                &[pattern(1, 100), pattern(1, 100)].concat()
            ]
            .contains(&&bytes[..]),
            "file {turn}, cut {way}: {} bytes, that begin with {:?}",
            bytes.len(),
            &bytes[..bytes.len().min(8)]
        );
    }
}

/// Makes a file empty.
fn cut(path: &Path, way: &str) {
    let opened = |flags| close(open(path, flags).expect("open")).expect("close");
    match way {
        "by opening it for writing" => opened(libc::O_WRONLY | libc::O_TRUNC),
        "by opening it for reading" => opened(libc::O_RDONLY | libc::O_TRUNC),
        "by its name" => truncate(path, 0).expect("truncate"),
        // SAFETY: strings of ours, and a stream that nobody else has.
        "by opening a stream anew" => unsafe {
            let nothing = libc::fopen(c"/dev/null".as_ptr(), c"r".as_ptr());
            let stream = libc::freopen(c(path).as_ptr(), c"w".as_ptr(), nothing);
            assert!(!stream.is_null());
            assert_eq!(libc::fclose(stream), 0);
        },
        // SAFETY: the same.
        "by opening a stream of characters" => unsafe {
            let stream = libc::fopen(c(path).as_ptr(), c"w,ccs=UTF-8".as_ptr());
            assert!(!stream.is_null());
            assert_eq!(libc::fclose(stream), 0);
        },
        // SAFETY: the same.
        _ => unsafe {
            let stream = libc::fopen(c(path).as_ptr(), c"w".as_ptr());
            assert!(!stream.is_null());
            assert_eq!(libc::fclose(stream), 0);
        },
    }
}

/// The process's limit on file sizes.
fn limit(path: &Path, ignore: bool) {
    let fd = open(path, RDWR).expect("open");
    for turn in 0..2 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    let at_most = 2 * BLOCK as u64 + 100;
    set_limit(libc::RLIMIT_FSIZE, at_most, libc::RLIM_INFINITY);
    if ignore {
        // SAFETY: no handler of ours.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }
    assert_eq!(write(fd, &[7; 200]), Ok(100));
    assert_eq!(write(fd, &[7; 200]), Err(libc::EFBIG));
    assert_eq!(pwrite(fd, &[7; 200], 0), Ok(200));
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::ftruncate(fd, at_most as i64 + 1) }, -1);
    assert_eq!(size_of(fd), at_most as i64);
}

/// Ways to set the limit on file sizes that are none of `setrlimit` and `prlimit`.
const LIMITS: [&str; 4] = ["ulimit", "vlimit", "SYS_setrlimit", "SYS_prlimit64"];

unsafe extern "C" {
    fn ulimit(command: i32, ...) -> libc::c_long;
}

/// Sets the limit on file sizes to so many bytes. Whether there is such a way.
fn set_limit_by(way: &str, bytes: u64) -> bool {
    const UL_SETFSIZE: i32 = 2;
    const LIM_FSIZE: i32 = 2;
    type VLimit = unsafe extern "C" fn(i32, i32) -> i32;
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: libc::RLIM_INFINITY,
    };
    let (resource, limit) = (libc::RLIMIT_FSIZE, &raw const limit);
    // SAFETY: a limit of ours; a function of libc's that has this type.
    let set = unsafe {
        match way {
            "ulimit" => ulimit(UL_SETFSIZE, (bytes / 512) as libc::c_long),
            "vlimit" => {
                let found = libc::dlsym(libc::RTLD_DEFAULT, c"vlimit".as_ptr());
                if found.is_null() {
                    return false;
                }
                let vlimit: VLimit = std::mem::transmute(found);
                i64::from(vlimit(LIM_FSIZE, bytes as i32))
            }
            "SYS_setrlimit" => libc::syscall(libc::SYS_setrlimit, resource, limit),
            _ => {
                let none = std::ptr::null_mut::<libc::rlimit>();
                libc::syscall(libc::SYS_prlimit64, 0, resource, limit, none)
            }
        }
    };
    if set == -1 {
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((way, error), ("vlimit", Some(libc::ENOSYS)));
    }
    set != -1
}

/// A file that is as long as the limit allows which is set then.
fn limit_by(dir: &Path, way: &str) {
    const LEN: usize = 1 << 20;
    let fd = open(&dir.join(way), RDWR).expect("open");
    for part in pattern(1, LEN).chunks(1 << 16) {
        assert_eq!(write(fd, part), Ok(part.len()));
    }
    // SAFETY: no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    if set_limit_by(way, LEN as u64) {
        assert_eq!(write(fd, &[7; 4096]), Err(libc::EFBIG), "by {way}");
        assert_eq!(size_of(fd), LEN as i64);
        assert_eq!(pwrite(fd, &[7; 4096], 0), Ok(4096));
    }
    close(fd).expect("close");
}

/// Space inside of a file that is longer than a limit which the process gets later. Where the limit is in the way its signal ends the program.
fn limit_inside(path: &Path) {
    const WHOLE: i64 = 10 << 20;
    const PART: usize = 1 << 16;
    let fd = open(path, RDWR).expect("open");
    for turn in 0..WHOLE as usize / PART {
        assert_eq!(write(fd, &pattern(turn as u8, PART)), Ok(PART));
    }
    set_limit(libc::RLIMIT_FSIZE, 5 << 20, libc::RLIM_INFINITY);
    assert_eq!(allocate(fd, 0, 0, 8 << 20), Ok(()));
    assert_eq!(allocate(fd, 0, 0, WHOLE), Ok(()));
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::posix_fallocate(fd, 1 << 20, 8 << 20) }, 0);
    let zeros = libc::FALLOC_FL_ZERO_RANGE;
    assert_eq!(allocate(fd, zeros, 6 << 20, PART as i64), Ok(()));
    // SAFETY: no handler of ours.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    assert_eq!(allocate(fd, 0, 0, WHOLE + 1), Err(libc::EFBIG));
    assert_eq!(size_of(fd), WHOLE);
    for turn in 0..WHOLE as usize / PART {
        let wanted = match turn * PART {
            at if at == 6 << 20 => vec![0; PART],
            _ => pattern(turn as u8, PART),
        };
        assert!(pread(fd, PART, (turn * PART) as i64) == Ok(wanted));
    }
    close(fd).expect("close");
}

/// Space that is asked for beyond the end, and is still asked for when the file is closed unless it is cut.
fn space_beyond(path: &Path, how: &str) {
    let fd = open(path, RDWR).expect("open");
    write(fd, &pattern(1, BLOCK)).expect("write");
    allocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, 8 << 20).expect("space");
    write(fd, &pattern(2, BLOCK)).expect("write");
    if how == "cut" {
        // SAFETY: takes no memory.
        assert_eq!(unsafe { libc::ftruncate(fd, BLOCK as i64) }, 0);
        write(fd, &pattern(3, BLOCK)).expect("write");
    }
    close(fd).expect("close");
}

/// Space that is asked for ahead.
fn space(path: &Path) {
    let fd = open(path, RDWR).expect("open");
    for turn in 0..3 {
        write(fd, &pattern(turn, BLOCK)).expect("write");
    }
    // SAFETY: takes no memory.
    assert_eq!(unsafe { libc::posix_fallocate(fd, 0, 1 << 20) }, 0);
    assert_eq!(size_of(fd), 1 << 20);
    assert_eq!(pread(fd, BLOCK, 2 * BLOCK as i64), Ok(pattern(2, BLOCK)));
    assert_eq!(pread(fd, 10, 3 * BLOCK as i64), Ok(vec![0; 10]));
    allocate(fd, libc::FALLOC_FL_KEEP_SIZE, 0, 2 << 20).expect("space");
    assert_eq!(size_of(fd), 1 << 20);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    allocate(fd, punch, 4096, 8192).expect("a hole");
    assert_eq!(pread(fd, 8192, 4096), Ok(vec![0; 8192]));
    // One that the engine does not serve.
    allocate(fd, libc::FALLOC_FL_ZERO_RANGE, 0, 4096).expect("zeros");
    assert_eq!(pread(fd, 4096, 0), Ok(vec![0; 4096]));
    assert_eq!(seek(fd, 0, libc::SEEK_CUR), Ok(3 * BLOCK as i64));
    assert_eq!(pread(fd, BLOCK, 2 * BLOCK as i64), Ok(pattern(2, BLOCK)));
    close(fd).expect("close");
}

#[test]
fn sizes_are_the_same_for_all_programs() {
    for small in [0, 64 * 1024] {
        let scene = Scene::new("size", small);
        scene.play("size", "");
        assert!(scene.bytes_to_memory() > 0);
        let bytes = std::fs::read(scene.path("a")).expect("a file");
        assert_eq!(bytes.len(), 2 * BLOCK + 11);
        assert!(bytes.ends_with(b"again") && bytes[..2 * BLOCK + 6].iter().all(|&b| b == 0));
    }
}

#[test]
fn errors_are_the_kernels() {
    // Once without the library.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    errors(&dir.path().join("a"));
    let scene = Scene::new("errors", 0);
    scene.play("errors", "");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn the_limit_on_file_sizes_holds() {
    let scene = Scene::new("limit", 0);
    scene.play("limit", "ignore");
    assert!(scene.bytes_to_memory() > 0);
    // Where the signal is not ignored it ends the program.
    let scene = Scene::new("limit", 0);
    let output = scene.role("limit", "die").output().expect("a program");
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(libc::SIGXFSZ));
}

#[test]
fn the_limit_on_file_sizes_is_seen_however_it_is_set() {
    for way in LIMITS {
        let scene = Scene::new("limit-by", 0);
        scene.play("limit-by", way);
        assert!(scene.bytes_to_memory() > 0);
    }
}

#[test]
fn space_inside_a_file_that_is_longer_than_the_limit() {
    let scene = Scene::new("limit-inside", 0);
    let mut without = scene.role("limit-inside", "b");
    said(
        without
            .env_remove("LD_PRELOAD")
            .output()
            .expect("a program"),
    );
    assert_eq!(scene.bytes_to_memory(), 0);
    scene.play("limit-inside", "a");
    assert!(scene.bytes_to_memory() > 0);
}

#[test]
fn space_that_is_asked_for() {
    let scene = Scene::new("space", 0);
    scene.play("space", "");
    assert!(scene.bytes_to_memory() > 0);
}

/// What a program has reserved beyond the end is there after its close, as the kernel has it; a file that is cut gives it back.
#[test]
fn space_beyond_the_end_stays() {
    use std::os::unix::fs::MetadataExt;
    let kept = |path: &Path| std::fs::metadata(path).expect("a file").blocks() * 512;
    for how in ["kept", "cut"] {
        let scene = Scene::new("space-beyond", 0);
        scene.play("space-beyond", how);
        assert!(scene.bytes_to_memory() > 0);
        let bytes = kept(&scene.path("a"));
        assert_eq!(bytes >= 8 << 20, how == "kept", "{how}: {bytes}");
    }
}

#[test]
fn what_is_impossible_the_kernel_would_have_refused() {
    let scene = Scene::new("impossible", 0);
    let expected = impossible(&scene.path("b"));
    let said = scene.play("impossible", "");
    assert!(scene.bytes_to_memory() > 0);
    let (_, said) = said.split_once('@').expect("an answer");
    assert_eq!(said.lines().next(), Some(&expected[..]));
}

/// Whoever begins to manage a file that is just being cut has its new length.
#[test]
fn files_that_are_cut_while_they_become_managed() {
    for way in [
        "by opening it for writing",
        "by opening it for reading",
        "by its name",
        "by opening a stream",
        "by opening a stream anew",
        "by opening a stream of characters",
    ] {
        let scene = Scene::new("truncated", 0);
        for turn in 0..CUT {
            std::fs::write(scene.path(&format!("f{turn}")), pattern(9, 50_000)).expect("a file");
        }
        scene.play("truncated", way);
        assert!(scene.bytes_to_memory() > 0);
    }
}

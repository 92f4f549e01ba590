//! Lengths: of one program, of another, by name; and errors at the limits.

use std::path::Path;

use crate::scene::Scene;
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
        "limit" => limit(&path, argument == "ignore"),
        "space" => space(&path),
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
fn space_that_is_asked_for() {
    let scene = Scene::new("space", 0);
    scene.play("space", "");
    assert!(scene.bytes_to_memory() > 0);
}

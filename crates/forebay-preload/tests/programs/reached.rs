//! Files that one program reaches by the kernel when another begins to manage them: by a stream of stdio, by a mapping, by a
//! descriptor that a program without the library has inherited.
//!
//! One role holds the file in such a way and says what it sees at each step; the other writes and reads.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Instant;

use forebay::member::left::LeftFile;

use crate::scene::Scene;
use crate::sys::*;

const LEN: usize = 300_000;
const FAR: i64 = 200_000;

/// Says something, and waits for the test's word.
fn step(said: &str) {
    println!("@{said}");
    std::io::stdout().flush().expect("output");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("input");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn play(role: &str, argument: &str, dir: &Path) -> bool {
    let path = dir.join("a");
    match role {
        "reach-stream" => stream(&path, argument),
        "reach-mapping" => mapping(&path),
        "reach-shell" => shell(&path, argument),
        "reach-writer" => writer(&path),
        "reach-again" => again(&path, argument),
        "reach-unmapped" => unmapped(&path, argument),
        "reach-named" => named(dir),
        _ => return false,
    }
    true
}

/// Reads and writes through a stream that was opened before the other one came; or it "only reads", and a descriptor is written to.
fn stream(path: &Path, argument: &str) {
    let only_reads = argument == "only reads";
    let (name, mode) = (c(path), if only_reads { c"r" } else { c"r+" });
    // SAFETY: strings of ours, a stream that stays open, bytes of ours.
    unsafe {
        let stream = libc::fopen(name.as_ptr(), mode.as_ptr());
        assert!(!stream.is_null());
        step("open");
        let mut seen = [0; 5];
        assert_eq!(libc::fseek(stream, FAR, libc::SEEK_SET), 0);
        assert_eq!(libc::fread(seen.as_mut_ptr().cast(), 1, 5, stream), 5);
        step(&text(&seen));
        if only_reads {
            let fd = open(path, libc::O_WRONLY).expect("open");
            assert_eq!(pwrite(fd, b"theirs", FAR + 10), Ok(6));
            close(fd).expect("close");
            step("written");
            assert_eq!(libc::fclose(stream), 0);
            return step("closed");
        }
        assert_eq!(libc::fseek(stream, FAR + 10, libc::SEEK_SET), 0);
        assert_eq!(libc::fwrite(b"theirs".as_ptr().cast(), 1, 6, stream), 6);
        assert_eq!(libc::fflush(stream), 0);
        step("written");
        assert_eq!(libc::fclose(stream), 0);
        step("closed");
    }
}

/// The same through a mapping whose descriptor is closed.
fn mapping(path: &Path) {
    let fd = open(path, libc::O_RDWR).expect("open");
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, of which bytes within the file are read and written.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), LEN, access, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        close(fd).expect("close");
        let at = map.cast::<u8>().add(FAR as usize);
        step("open");
        step(&text(std::slice::from_raw_parts(at, 5)));
        at.add(10).copy_from_nonoverlapping(b"theirs".as_ptr(), 6);
        step("written");
        assert_eq!(libc::munmap(map, LEN), 0);
        step("closed");
    }
}

/// The same by a shell that knows nothing of the library. `argument`: "inherits" a descriptor that this process has not written
/// to, or gets it as its "standard" one by way of a duplicate.
fn shell(path: &Path, argument: &str) {
    use std::os::fd::FromRawFd;
    let script = format!(
        "echo @open; read x
         dd bs=1 skip={FAR} count=5 <&$N 2>/dev/null | sed s/^/@/; echo; read x
         dd bs=1 seek=5 count=6 conv=notrunc >&$N 2>/dev/null <<< theirs; echo @written; read x"
    );
    let fd = open(path, libc::O_RDWR).expect("open");
    let mut command = std::process::Command::new("bash");
    command.arg("-c").arg(script).env_remove("LD_PRELOAD");
    if argument == "standard" {
        let flags = libc::FD_CLOEXEC;
        // SAFETY: takes no memory; the descriptor is this process's.
        unsafe {
            assert_eq!(libc::fcntl(fd, libc::F_SETFD, flags), 0);
            command.stderr(Stdio::from_raw_fd(fd)).env("N", "2");
        }
    } else {
        command.env("N", fd.to_string());
    }
    let _ = command.status().expect("a shell");
    step("closed");
}

/// Manages the file, should it be managed at all.
fn writer(path: &Path) {
    let fd = open(path, libc::O_RDWR).expect("open");
    for part in 0..3 {
        let bytes = pattern(9, LEN / 3);
        assert_eq!(pwrite(fd, &bytes, (part * LEN / 3) as i64), Ok(LEN / 3));
    }
    assert_eq!(pwrite(fd, b"mine!", FAR), Ok(5));
    step("written");
    step(&text(&pread(fd, 6, FAR + 10).expect("read")));
    close(fd).expect("close");
    step("closed");
}

/// Managed, given to the kernel by a stream, and longer by that. `argument`: how long it is before.
fn again(path: &Path, argument: &str) {
    let fd = open(path, libc::O_RDWR).expect("open");
    let end = size_of(fd);
    assert_eq!(end.to_string(), argument);
    assert_eq!(pwrite(fd, &pattern(end as u8, LEN), 0), Ok(LEN));
    let (name, mode) = (c(path), c"a");
    // SAFETY: strings of ours, a stream that stays open, bytes of ours.
    unsafe {
        let stream = libc::fopen(name.as_ptr(), mode.as_ptr());
        assert!(!stream.is_null());
        assert_eq!(libc::fwrite(b"by them".as_ptr().cast(), 1, 7, stream), 7);
        assert_eq!(libc::fclose(stream), 0);
    }
    assert_eq!(pread(fd, 10, end), Ok(b"by them".to_vec()));
    close(fd).expect("close");
}

/// Managed, mapped and unmapped, and written once more by the same program. `argument`: how it is mapped, and whether a child of that time
/// goes on.
fn unmapped(path: &Path, argument: &str) {
    let fd = open(path, libc::O_RDWR).expect("open");
    assert_eq!(pwrite(fd, &pattern(1, LEN), 0), Ok(LEN));
    let sharing = match argument {
        "private" => libc::MAP_PRIVATE,
        _ => libc::MAP_SHARED,
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory of a file's length, of which bytes within it are written; it is unmapped in parts, and not used after that.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), LEN, access, sharing, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        map.cast::<u8>()
            .copy_from_nonoverlapping(b"mapped".as_ptr(), 6);
        close(fd).expect("close");
        if argument == "child" && libc::fork() == 0 {
            step("child");
            let at = map.cast::<u8>().add(FAR as usize);
            step(&text(std::slice::from_raw_parts(at, 4)));
            libc::_exit(0);
        }
        assert_eq!(libc::munmap(map, 8192), 0);
        assert_eq!(libc::munmap(map.byte_add(8192), LEN - 8192), 0);
    }
    if argument == "child" {
        // The child is the one that is talked to, until it ends.
        return unmapped_by_one(path);
    }
    let fd = open(path, libc::O_RDWR).expect("open");
    assert_eq!(pwrite(fd, &pattern(2, LEN), 0), Ok(LEN));
    close(fd).expect("close");
}

/// Writes while a child still has the file mapped, and says so by a file.
fn unmapped_by_one(path: &Path) {
    let fd = open(path, libc::O_RDWR).expect("open");
    assert_eq!(pwrite(fd, &pattern(2, LEN), 0), Ok(LEN));
    assert_eq!(pwrite(fd, b"seen", FAR), Ok(4));
    std::fs::write(path.with_extension("written"), "").expect("a mark");
    // SAFETY: waits for the child.
    assert!(unsafe { libc::wait(std::ptr::null_mut()) } > 0);
    close(fd).expect("close");
}

/// Files that go to the kernel, each in a way of its own.
fn named(dir: &Path) {
    let flags = libc::O_RDWR | libc::O_CREAT;
    let managed = |name: &str| {
        let fd = open(&dir.join(name), flags).expect("open");
        write(fd, &pattern(0, LEN)).expect("write");
        fd
    };
    let name = c(&dir.join("stdio"));
    // SAFETY: strings and memory of ours, in all of them.
    unsafe {
        let stream = libc::fopen(c"/dev/null".as_ptr(), c"w".as_ptr());
        let stream = libc::freopen(name.as_ptr(), c"w".as_ptr(), stream);
        assert!(!stream.is_null() && libc::fclose(stream) == 0);
        let fd = managed("mapped");
        let map = libc::mmap(std::ptr::null_mut(), LEN, 1, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::flock(managed("locked"), libc::LOCK_EX), 0);
        const FIEMAP: libc::Ioctl = 0xc020_660b;
        let mut extents = [0u64, u64::MAX, 0, 0];
        let asked = libc::ioctl(managed("asked"), FIEMAP, extents.as_mut_ptr());
        // A mounted store has none; the question counts all the same.
        assert!(asked == 0 || *libc::__errno_location() == libc::EOPNOTSUPP);
    }
    name_by_handle(managed("handle"));
    open(&dir.join("synced"), flags | libc::O_SYNC).expect("open");
    let _open = managed("inherited");
    assert!(std::process::Command::new("true").status().is_ok());
}

/// Asks for the handle of what a descriptor is of, by an empty path.
fn name_by_handle(fd: i32) {
    unsafe extern "C" {
        fn name_to_handle_at(
            dir: i32,
            path: *const libc::c_char,
            handle: *mut u32,
            mount: *mut i32,
            flags: i32,
        ) -> i32;
    }
    // How many bytes there is room for, which kind they are of, and that many.
    const ROOM: usize = 128;
    let mut handle = [0u32; 2 + ROOM / 4];
    handle[0] = ROOM as u32;
    let (mut mount, empty) = (0, c"".as_ptr());
    // SAFETY: a string and memory of ours.
    let named = unsafe {
        let to = handle.as_mut_ptr();
        name_to_handle_at(fd, empty, to, &raw mut mount, libc::AT_EMPTY_PATH)
    };
    assert_eq!(named, 0, "{}", std::io::Error::last_os_error());
}

/// A role that is talked to.
struct Talk {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Talk {
    fn start(scene: &Scene, role: &str, argument: &str) -> Self {
        let mut command = scene.role(role, argument);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        let lines = BufReader::new(child.stdout.take().expect("output")).lines();
        Talk { child, lines }
    }

    /// What it says next.
    fn hears(&mut self) -> String {
        loop {
            let line = self.lines.next().expect("a line").expect("text");
            if let Some((_, said)) = line.split_once('@') {
                return said.to_owned();
            }
        }
    }

    fn go_on(&mut self) -> String {
        self.tell();
        self.hears()
    }

    fn tell(&mut self) {
        let input = self.child.stdin.as_mut().expect("input");
        writeln!(input).expect("go on");
    }

    fn end(mut self) {
        self.tell();
        assert!(self.child.wait().expect("an end").success());
    }
}

/// The holder comes first, then the writer; each sees what the other has written, and nothing is lost.
fn check(role: &str, argument: &str) {
    let scene = Scene::new(role, 0);
    std::fs::write(scene.path("a"), pattern(1, LEN)).expect("a file");
    let mut holder = Talk::start(&scene, role, argument);
    assert_eq!(holder.hears(), "open");
    let mut writer = Talk::start(&scene, "reach-writer", "");
    assert_eq!(writer.hears(), "written");
    assert_eq!(holder.go_on(), "mine!", "what the other one has written");
    assert_eq!(holder.go_on(), "written");
    assert_eq!(writer.go_on(), "theirs", "what the holder has written");
    assert_eq!(writer.go_on(), "closed");
    writer.end();
    assert_eq!(holder.go_on(), "closed");
    let mut expected = [(); 3].map(|()| pattern(9, LEN / 3)).concat();
    expected[FAR as usize..][..5].copy_from_slice(b"mine!");
    expected[FAR as usize + 10..][..6].copy_from_slice(b"theirs");
    assert!(std::fs::read(scene.path("a")).expect("a file") == expected);
    // It ends with the holder's use of it.
    holder.end();
    until_managed(&scene, || {
        let mut writer = Talk::start(&scene, "reach-writer", "");
        assert_eq!(writer.hears(), "written");
        writer.go_on();
        writer.go_on();
        writer.end();
    });
}

/// Does it again until the engine has had the file. The kernel, asked whether anybody else has it open, may say so of programs that other
/// tests start: between fork and exec they have this process's descriptors, the keeper's among them.
fn until_managed(scene: &Scene, mut act: impl FnMut()) {
    let begun = Instant::now();
    loop {
        let before = scene.bytes_to_memory();
        act();
        if scene.bytes_to_memory() >= before + LEN as u64 {
            return;
        }
        assert!(begun.elapsed().as_secs() < 60, "it is not managed again");
    }
}

#[test]
fn a_stream_that_was_there_before() {
    check("reach-stream", "");
}

#[test]
fn a_stream_that_only_reads_was_there_before() {
    check("reach-stream", "only reads");
}

#[test]
fn a_mapping_that_was_there_before() {
    check("reach-mapping", "");
}

#[test]
fn a_descriptor_that_a_program_without_the_library_has_inherited() {
    check("reach-shell", "inherits");
}

#[test]
fn a_standard_descriptor_of_a_program_without_the_library() {
    check("reach-shell", "standard");
}

/// Every file that went to the kernel is named, with the reason.
#[test]
fn reasons_are_told() {
    let scene = Scene::new("reach-named", 0);
    scene.play("reach-named", "");
    let left = scene.session.as_ref().expect("a session").left_since(0);
    for (name, word) in [
        ("stdio", "fopen"),
        ("mapped", "mmap"),
        ("locked", "flock"),
        ("asked", "ioctl"),
        ("handle", "an option that the engine does not serve"),
        ("synced", "O_SYNC"),
        ("inherited", "inherited"),
    ] {
        let is_it = |file: &&LeftFile| file.path == scene.path(name) && file.reason.contains(word);
        assert!(left.iter().any(|file| is_it(&file)), "{name}: {left:?}");
    }
}

/// With the last of its mappings a file may be managed again, by the same program not least.
#[test]
fn what_was_unmapped_is_managed_again() {
    for how in ["shared", "private"] {
        let scene = Scene::new("reach-unmapped", 0);
        std::fs::write(scene.path("a"), "").expect("a file");
        let begun = Instant::now();
        loop {
            let before = scene.bytes_to_memory();
            scene.play("reach-unmapped", how);
            let bytes = std::fs::read(scene.path("a")).expect("a file");
            assert!(bytes == pattern(2, LEN));
            // Before, and after.
            if scene.bytes_to_memory() >= before + 2 * LEN as u64 {
                break;
            }
            assert!(begun.elapsed().as_secs() < 60, "it is not managed again");
        }
    }
}

/// The same in Python, and in numpy where that is installed.
#[test]
fn maps_of_python() {
    const SCRIPT: &str = r#"
import mmap, os, sys
f = open("p", "wb+", buffering=0)
for i in range(6): f.write(bytes([i]) * 50000)
with mmap.mmap(f.fileno(), 0) as m:
    m[100:104] = b"maps"; f.seek(200000); f.write(b"file"); print(m[200000:200004], len(m)); m.flush()
with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
    m[0:4] = b"copy"; print(m[0:4], m[100:104], os.pread(f.fileno(), 4, 0))
with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
    os.pwrite(f.fileno(), b"late", 250000); print(m.find(b"late"), m.find(b"maps"))
with mmap.mmap(f.fileno(), 300000) as m:
    m.resize(400000); m[399999] = 7
f.close()
with open("p", "rb+") as f: f.write(b"x" * 100000); f.seek(0, 2); print(f.tell())
try: import numpy
except ImportError: sys.exit()
a = numpy.memmap("n", dtype="float64", mode="w+", shape=(300, 200)); a[:] = 1.5; a[7, 7] = 8; a.flush(); del a
b = numpy.memmap("n", dtype="float64", mode="r+", shape=(300, 200)); b[0] += 1; print(b.sum())
c = numpy.memmap("n", dtype="float64", mode="r", shape=(300, 200)); b[1] = 9; print(c.sum(), c[7, 7]); del b, c
numpy.save("s.npy", numpy.arange(90000)); d = numpy.load("s.npy", mmap_mode="c"); d[5] = 1; print(d.sum())
numpy.save("s.npy", numpy.ones(90000)); print(numpy.load("s.npy").sum(), numpy.load("s.npy", mmap_mode="r").sum())
"#;
    let scene = Scene::new("reach-python", 0);
    let run = |mut command: std::process::Command| {
        crate::scene::said(command.args(["-c", SCRIPT]).output().expect("python3"))
    };
    let ours = run(scene.command("python3"));
    assert!(scene.bytes_to_memory() > LEN as u64);
    let plain = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let mut command = std::process::Command::new("python3");
    command.current_dir(plain.path());
    assert_eq!(ours, run(command));
    for entry in std::fs::read_dir(plain.path()).expect("readable").flatten() {
        let name = entry.file_name().into_string().expect("text");
        let bytes = |path| std::fs::read(path).expect("a file");
        assert!(bytes(entry.path()) == bytes(scene.path(&name)), "{name}");
    }
}

/// What a child has mapped shows what its parent writes when it has unmapped it.
#[test]
fn what_a_child_has_mapped() {
    let scene = Scene::new("reach-mapped-child", 0);
    std::fs::write(scene.path("a"), "").expect("a file");
    let mut child = Talk::start(&scene, "reach-unmapped", "child");
    assert_eq!(child.hears(), "child");
    let begun = Instant::now();
    while !scene.path("a.written").exists() {
        assert!(begun.elapsed().as_secs() < 60, "the parent does not write");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(child.go_on(), "seen");
    child.end();
    let mut expected = pattern(2, LEN);
    expected[FAR as usize..][..4].copy_from_slice(b"seen");
    assert!(std::fs::read(scene.path("a")).expect("a file") == expected);
}

#[test]
fn what_the_kernel_had_is_managed_again() {
    let scene = Scene::new("reach-again", 0);
    std::fs::write(scene.path("a"), pattern(1, LEN)).expect("a file");
    let mut by_them = 0;
    for _ in 0..3 {
        until_managed(&scene, || {
            scene.play("reach-again", &(LEN + 7 * by_them).to_string());
            by_them += 1;
        });
    }
    let bytes = std::fs::read(scene.path("a")).expect("a file");
    let last = LEN + 7 * (by_them - 1);
    assert!(bytes[..LEN] == pattern(last as u8, LEN));
    assert_eq!(&bytes[LEN..], b"by them".repeat(by_them));
}

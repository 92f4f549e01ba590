//! Why files that were managed have been given to the kernel: the codes in [`crate::memory::files::FileEntry::kernel_reason`].

/// [`crate::File::to_kernel`].
pub const BY_PROGRAM: u32 = 1;
/// It was opened by a name whose route is the kernel.
pub const ROUTE: u32 = 2;
/// It was opened by somebody for whom it cannot be managed.
pub const UNMANAGEABLE: u32 = 3;
/// Somebody reaches it past the engine; see [`crate::member::reached`].
pub const REACHED: u32 = 4;

/// Its route is the kernel, or it lies outside the directories whose files are managed.
pub const OUTSIDE: u32 = 5;
/// Its file system.
pub const FILE_SYSTEM: u32 = 6;
/// It cannot be opened for writing again.
pub const NOT_WRITABLE: u32 = 7;
/// Another session has it.
pub const CLAIMED: u32 = 8;
/// There is no room in the session's tables, or for descriptors.
pub const NO_ROOM: u32 = 9;
/// A program outside the session uses it.
pub const OUTSIDER: u32 = 10;

/// Most of its writes go into holes.
pub const HOLES: u32 = 11;

/// The session's arena has been removed.
pub const NAMELESS: u32 = 12;

/// Each write to it is to be durable when it returns.
pub const SYNCHRONOUS: u32 = 13;

/// Its path is longer than what is kept of each file.
pub const LONG_PATH: u32 = 14;

/// The names that were known of it have gone, and it has others.
pub const OTHER_NAMES: u32 = 15;

/// A front end: it was made executable, or a call had an option that the engine does not serve.
pub const MADE_EXECUTABLE: u32 = 74;

/// Those from 64 on are of front ends: the preload library's `kernel::Why`.
const REASONS: [(u32, &str); 32] = [
    (BY_PROGRAM, "the program asked for it"),
    (ROUTE, "it was opened by a name whose route is kernel"),
    (UNMANAGEABLE, "it was opened where it cannot be managed"),
    (
        REACHED,
        "another program of the session uses it through stdio, a mapping or without Forebay",
    ),
    (OUTSIDE, "its route is kernel, or it lies outside --dir"),
    (
        FILE_SYSTEM,
        "its file system (`forebay doctor DIR` says why)",
    ),
    (NOT_WRITABLE, "it cannot be opened for writing again"),
    (CLAIMED, "another session manages it"),
    (
        NO_ROOM,
        "no room in the session's tables, or for descriptors",
    ),
    (OUTSIDER, "a program outside the session uses it"),
    (
        HOLES,
        "written into its holes, or between them, again and again (`kernel_after_holes`)",
    ),
    (
        NAMELESS,
        "the session's arena was removed while it lived, so that nothing could recover it",
    ),
    (
        SYNCHRONOUS,
        "each write to it is to be durable when it returns (`mount -o sync`, `chattr +S`)",
    ),
    (
        LONG_PATH,
        "its path is longer than 1024 bytes, so that no recovery would find it",
    ),
    (
        OTHER_NAMES,
        "the names that the session knew of it were removed, so that no recovery would find it",
    ),
    (64, "a program that was executed has inherited it"),
    (65, "stdio: fopen, fdopen, freopen, or a standard stream"),
    (66, "mapped into memory: mmap"),
    (
        67,
        "sendfile, splice or copy_file_range between files of the kernel",
    ),
    (68, "ioctl"),
    (69, "a lock: flock, lockf, fcntl"),
    (
        70,
        "asynchronous I/O of the program's own: aio, libaio, io_uring",
    ),
    (71, "syscall()"),
    (72, "its descriptor was sent to another process: sendmsg"),
    (
        73,
        "the process has changed its user, root or namespace, or what it may call (seccomp, Landlock)",
    ),
    (
        MADE_EXECUTABLE,
        "made executable, or a call with an option that the engine does not serve",
    ),
    (FAILED, "the engine has failed"),
    (77, "opened with O_DIRECT, O_SYNC, O_DSYNC or O_TMPFILE"),
    (78, "a program watches it: inotify"),
    (
        79,
        "synced again and again with little to write (`kernel_after_syncs`)",
    ),
    (
        80,
        "a thread, or a child in the same memory, has descriptors of its own: CLOSE_RANGE_UNSHARE, clone",
    ),
    (
        76,
        "a process could not open it again, or had no room for descriptors",
    ),
];

/// The preload library's code for a failure of the engine's.
const FAILED: u32 = 75;

/// Whether a file may be managed again once nobody has it open any more: not where the engine has failed, or a name says so.
pub fn may_end(code: u32) -> bool {
    code != FAILED && code != ROUTE
}

/// Whether a file that is to get this mode (`chmod`) is the kernel's first, so that it owes nothing: it may be executed then, while no writable
/// descriptor is open anywhere; or has bits that the kernel takes from whatever is written; or nobody but root could open it again to write what it
/// owes, should those that have it open die.
pub fn is_due_before_mode(mode: u32) -> bool {
    const EXECUTES: u32 = 0o111;
    const PRIVILEGES: u32 = 0o6000;
    const WRITABLE: u32 = 0o200;
    mode & (EXECUTES | PRIVILEGES) != 0 || mode & WRITABLE == 0
}

/// Whether somebody may have the file open already, past the engine, for whom it is given: a program that appends there would lose what a cut takes
/// off.
pub fn comes_too_late(code: u32) -> bool {
    matches!(code, REACHED | OUTSIDER)
}

/// The code in words.
pub fn words(code: u32) -> &'static str {
    let known = REASONS.iter().find(|(known, _)| *known == code);
    known.map_or("a reason of a later version", |(_, words)| words)
}

/// The code as a sentence.
pub fn reason(code: u32) -> String {
    format!("given to the kernel: {}", words(code))
}

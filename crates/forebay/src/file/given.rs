//! Why files that were managed have been given to the kernel: the codes in [`crate::memory::files::FileEntry::kernel_reason`].

/// [`super::File::to_kernel`].
pub const BY_PROGRAM: u32 = 1;
/// It was opened by a name whose route is the kernel.
pub const ROUTE: u32 = 2;
/// It was opened by somebody for whom it cannot be managed.
pub const UNMANAGEABLE: u32 = 3;
/// Somebody reaches it past the engine; see [`crate::session::reached`].
pub const REACHED: u32 = 4;

/// Those from 64 on are of front ends: the preload library's `files::Why`.
const REASONS: [(u32, &str); 17] = [
    (BY_PROGRAM, "the program asked for it"),
    (ROUTE, "it was opened by a name whose route is kernel"),
    (UNMANAGEABLE, "it was opened where it cannot be managed"),
    (
        REACHED,
        "somebody reaches it through stdio, a mapping or another program",
    ),
    (64, "a program that was executed has inherited it"),
    (65, "it is used through stdio"),
    (66, "it is mapped into memory"),
    (67, "sendfile, splice, copy_file_range or their like"),
    (68, "an ioctl"),
    (69, "a lock is held on it"),
    (70, "the program uses asynchronous I/O of its own"),
    (71, "syscall() was used on it"),
    (72, "its descriptor was sent to another process"),
    (73, "the process has changed its user, root or namespace"),
    (74, "a call had an option that the engine does not serve"),
    (FAILED, "the engine has failed"),
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

/// The code in words.
pub fn reason(code: u32) -> String {
    match REASONS.iter().find(|(known, _)| *known == code) {
        Some((_, reason)) => format!("given to the kernel: {reason}"),
        None => format!("given to the kernel, code {code}"),
    }
}

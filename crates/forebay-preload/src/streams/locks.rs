//! Streams lock for single bytes only in programs with threads, as libc's own do.
//!
//! libc's streams take no lock for `getc` and `putc` until the first thread is made. Then libc goes through its list of all streams,
//! once for ever, and marks each; streams that are opened later begin with the mark. A stream of `fopencookie` has it from the
//! beginning, so each byte costs two atomic exchanges. `ed`, which reads and writes its lines so, took 1.6 times as long.
//! What this does not do: it never takes the mark from a stream that exists already.

use std::ffi::c_int;

use super::Stream;

/// In `flags`: libc's list of all streams has it.
const LINKED: c_int = 0x80;
/// In `flags2`: calls for single bytes lock the stream.
const NEEDS_LOCK: c_int = 0x80;

unsafe extern "C" {
    static mut _IO_2_1_stdin_: Stream;
    static mut _IO_2_1_stdout_: Stream;
    static mut _IO_2_1_stderr_: Stream;
}

/// Takes the mark from a stream that was made just now, if libc has not made a thread yet.
///
/// It is in libc's list, so the first thread's making gives it the mark back.
pub(super) fn unlock_if_alone(new: &mut Stream) {
    if has_one_thread() {
        new.flags2 &= !NEEDS_LOCK;
    }
}

/// Whether libc has not made a thread yet, in this process and those that it was forked from: by a standard stream that is in the list,
/// as it was from the start. One that was closed is not in it; if all are, the answer is no.
fn has_one_thread() -> bool {
    let standard = [
        &raw const _IO_2_1_stdin_,
        &raw const _IO_2_1_stdout_,
        &raw const _IO_2_1_stderr_,
    ];
    let linked = standard.iter().find_map(|&stream| {
        // SAFETY: libc's own variables, initialised and there as long as the process. Another thread may write to them at the same time,
        // so they are read once each, as whole words. Only a thread can do so, and the mark has been there since before it was made.
        let (flags, flags2) = unsafe {
            (
                (&raw const (*stream).flags).read_volatile(),
                (&raw const (*stream).flags2).read_volatile(),
            )
        };
        (flags & LINKED != 0).then_some(flags2)
    });
    linked.is_some_and(|flags2| flags2 & NEEDS_LOCK == 0)
}

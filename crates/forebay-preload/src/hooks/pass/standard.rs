//! The standard streams, of which stdio reads and writes the descriptors by itself: their first use.
//!
//! A managed file may be moved onto descriptor 0 or 1, for programs that read and write there by calls of their own. A stream
//! that nobody uses does no harm; with its first use the file goes to the kernel. Descriptor 2 is not such a one: libc writes
//! messages to it by ways of its own.

mod calls;

use libc::FILE;

use super::{Args, stdio};
use crate::files::{self, Why};
use crate::inside::Inside;
use crate::{streams, table};

/// Which stream a call uses.
#[derive(Clone, Copy)]
enum Stream {
    /// The standard input.
    Input,
    /// The standard output.
    Output,
    /// The one in this argument.
    Argument(usize),
}

unsafe extern "C" {
    static stdin: *mut FILE;
    static stdout: *mut FILE;
}

/// A stream is about to be used for wide characters.
fn used_wide(args: &Args, stream: Stream) {
    if let Stream::Argument(at) = stream
        && !Inside::is()
    {
        streams::widen(std::ptr::with_exposed_provenance_mut(args[at] as usize));
    }
    used(args, stream);
}

/// `fwide(stream, mode)`: one that is to be of bytes is.
fn oriented(args: &Args, stream: Stream) {
    match args[1] as libc::c_int {
        0.. => used_wide(args, stream),
        _ if Inside::is() => {}
        _ => streams::of_bytes(std::ptr::with_exposed_provenance_mut(args[0] as usize)),
    }
}

/// A stream is about to be used.
fn used(args: &Args, stream: Stream) {
    if !table::has_standard() || Inside::is() {
        return;
    }
    // SAFETY: libc's variables, which the function behind reads, too.
    let stream = unsafe {
        match stream {
            Stream::Input => stdin,
            Stream::Output => stdout,
            Stream::Argument(at) => std::ptr::with_exposed_provenance_mut(args[at] as usize),
        }
    };
    let fd = stdio::descriptor(stream);
    if (0..=1).contains(&fd) && files::is_known(fd) {
        files::stdio_uses(fd, Why::Stdio);
    }
    table::look_at_standard();
}

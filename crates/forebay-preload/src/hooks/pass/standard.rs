//! The standard streams, of which stdio reads and writes the descriptors by itself: their first use.
//!
//! A managed file may be moved onto descriptor 0 or 1, for programs that read and write there by calls of their own. A stream
//! that nobody uses does no harm; with its first use the file goes to the kernel. Descriptor 2 is not such a one: libc writes
//! messages to it by ways of its own.

mod calls;

use libc::FILE;

use std::ffi::CStr;

use super::{Args, minus_one, stdio, zero};
use crate::files::{self, Given, Why};
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
fn used_wide(args: &Args, stream: Stream) -> Given {
    if let Stream::Argument(at) = stream
        && !Inside::is()
    {
        streams::widen(std::ptr::with_exposed_provenance_mut(args[at] as usize));
    }
    used(args, stream)
}

/// `fwide(stream, mode)`: one that is to be of bytes is.
fn oriented(args: &Args, stream: Stream) -> Given {
    match args[1] as libc::c_int {
        0.. => return used_wide(args, stream),
        _ if Inside::is() => {}
        _ => streams::of_bytes(std::ptr::with_exposed_provenance_mut(args[0] as usize)),
    }
    Ok(())
}

/// A stream is about to be used.
fn used(args: &Args, stream: Stream) -> Given {
    if !table::has_standard() || Inside::is() {
        return Ok(());
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
        files::stdio_uses(fd, Why::Stdio)?;
    }
    table::look_at_standard();
    Ok(())
}

/// What a call fails with: most return -1, those of these names a pointer or how much they have done.
fn instead(name: &CStr) -> extern "C" fn() -> isize {
    const ZERO: [&[u8]; 9] = [
        b"gets",
        b"fgets",
        b"fread",
        b"fwrite",
        b"sgetn",
        b"getline_info",
        b"getpass",
        b"getmntent",
        b"fget",
    ];
    let name = name.to_bytes();
    let name = name.strip_prefix(b"_IO_").unwrap_or(name);
    let name = name.strip_prefix(b"__").unwrap_or(name);
    let characters = [&b"fgetc"[..], b"fgetwc", b"fgetpos"];
    let begins = |begin: &&[u8]| name.starts_with(begin);
    if ZERO.iter().any(begins) && !characters.iter().any(begins) {
        zero
    } else {
        minus_one
    }
}

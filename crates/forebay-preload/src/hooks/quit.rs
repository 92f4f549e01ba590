//! Ending at once: what the program has left open is written, as a close would have done.

use libc::c_int;

use crate::files;
use crate::real;

export! {
    /// `_exit`.
    fn _exit | _Exit(status: c_int) -> () {
        files::at_end();
        // SAFETY: takes no memory. Does not return.
        unsafe { real::_exit(status) };
    }
}

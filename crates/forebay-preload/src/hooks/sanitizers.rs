//! What the runtimes of sanitizers ask of programs.

use libc::c_char;

/// What that of `-fsanitize=address` takes as its options, should the program not say: it must not insist on being the first library of
/// all, since one that is preloaded is.
#[unsafe(no_mangle)]
pub extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

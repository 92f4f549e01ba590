//! Which Linux this is, where what a call promises depends on it and nothing else tells.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// Whether the kernel is Linux of this version or of a later one. No, where it does not say.
pub fn is_kernel_from(major: u32, minor: u32) -> bool {
    static FOUND: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    FOUND
        .get_or_init(find)
        .is_some_and(|found| found >= (major, minor))
}

fn find() -> Option<(u32, u32)> {
    let mut names = MaybeUninit::<libc::utsname>::uninit();
    // SAFETY: the kernel writes a structure of this type; it is ours, and lives during the call.
    super::check(unsafe { libc::uname(names.as_mut_ptr()) }).ok()?;
    // SAFETY: the call has gone well, so that all of it is written.
    let names = unsafe { names.assume_init() };
    // SAFETY: each name ends with a zero, and the array lives until it is parsed.
    let release = unsafe { CStr::from_ptr(names.release.as_ptr()) };
    parsed(release.to_str().ok()?)
}

/// The version that a release is of: `6.16-rc3` and `6.16.0-12-generic` are both 6.16.
pub fn parsed(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{is_kernel_from, parsed};

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parsed("6.18.44-generic"), Some((6, 18)));
        assert_eq!(parsed("6.16-rc3"), Some((6, 16)));
        assert_eq!(parsed("7.0"), Some((7, 0)));
        assert_eq!(parsed("6.x"), None);
        assert!(parsed("6.9.1") < parsed("6.16.0") && parsed("6.16") < parsed("10.0"));
        assert!(is_kernel_from(4, 0) && !is_kernel_from(1000, 0));
    }
}

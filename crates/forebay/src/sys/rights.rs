//! What this process may do.

use super::check;

/// Whether modes of files are nothing to this process (`CAP_DAC_OVERRIDE`, in effect now): it opens what it has had open once more, whatever has become
/// of the file's mode.
pub fn overrides_modes() -> bool {
    const VERSION_3: u32 = 0x2008_0522;
    const DAC_OVERRIDE: u32 = 1;
    let head = [VERSION_3, 0];
    // Effective, permitted, inheritable; twice.
    let mut sets = [0_u32; 6];
    // SAFETY: both are this function's own, of the sizes that this version of the call asks for; the kernel writes the second one alone.
    let asked = unsafe { libc::syscall(libc::SYS_capget, head.as_ptr(), sets.as_mut_ptr()) };
    check(asked as libc::c_int).is_ok() && sets[0] & (1 << DAC_OVERRIDE) != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn root_opens_what_nobody_may_read() {
        let path = tempfile::NamedTempFile::new().unwrap();
        let none = std::os::unix::fs::PermissionsExt::from_mode(0o000);
        std::fs::set_permissions(path.path(), none).unwrap();
        let opens = std::fs::File::open(path.path()).is_ok();
        assert_eq!(super::overrides_modes(), opens);
    }
}

//! Mounted file systems, as `/proc/self/mountinfo` lists them.
//!
//! Chosen over `/proc/self/mounts` because it names the device of each mount: a mount point that
//! another mount covers is recognised by comparing, and the root of a cgroup mount is there at all.
//! Parsing is a pure function of the text.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// One mount, as seen by this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device number of the file system: (major, minor).
    pub device: (u32, u32),
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Options of the mount (`ro`, `nosuid`...), comma-separated.
    pub options: String,
    /// Name of the file system: "tmpfs", "cgroup2".
    pub kind: String,
    /// Options of the file system (`size=`, `huge=`, v1 controllers), comma-separated.
    pub super_options: String,
}

impl Mount {
    /// The value of an option of the file system: `"always"` for `huge`, `""` for one without value.
    pub fn super_option(&self, name: &str) -> Option<&str> {
        self.super_options
            .split(',')
            .find_map(|option| match option.split_once('=') {
                Some((key, value)) => (key == name).then_some(value),
                None => (option == name).then_some(""),
            })
    }

    /// Whether nothing can be written here.
    pub fn is_read_only(&self) -> bool {
        let read_only = |options: &str| options.split(',').any(|option| option == "ro");
        read_only(&self.options) || read_only(&self.super_options)
    }
}

/// The mounts in a mountinfo text, in mounting order. Lines that do not parse are left out: the
/// kernel may add fields.
pub fn parse_mountinfo(text: &str) -> Vec<Mount> {
    parse_mountinfo_of(text, |_| true)
}

/// Those whose file system has a name that is wanted. The others cost little.
pub fn parse_mountinfo_of(text: &str, wanted: impl Fn(&str) -> bool) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| parse_line(line, &wanted))
        .collect()
}

fn parse_line(line: &str, wanted: impl Fn(&str) -> bool) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    if !wanted(right.split(' ').next()?) {
        return None;
    }
    let mut left = left.split(' ').skip(2);
    let (major, minor) = left.next()?.split_once(':')?;
    let (root, point, options) = (left.next()?, left.next()?, left.next()?);
    let mut right = right.splitn(3, ' ');
    let (kind, _source, super_options) = (right.next()?, right.next()?, right.next()?);
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: unescape(root),
        point: unescape(point),
        options: options.to_owned(),
        kind: kind.to_owned(),
        super_options: super_options.to_owned(),
    })
}

/// Undoes the kernel's `\040` form for blanks, tabs, newlines and backslashes.
fn unescape(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(octal);
        rest = if code.is_some() { &tail[3..] } else { tail };
        plain.push(code.unwrap_or(first));
    }
    PathBuf::from(OsString::from_vec(plain))
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_line_in_all_its_parts() {
        let text = "25 24 0:23 / /dev/shm rw,nosuid shared:4 master:1 - tmpfs none rw,size=64k,huge=advise\n\
                    33 31 0:31 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                    nonsense\n";
        let mounts = parse_mountinfo(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(mounts[0].device, (0, 23));
        assert_eq!(mounts[0].point, Path::new("/dev/shm"));
        assert_eq!(mounts[0].super_option("huge"), Some("advise"));
        assert_eq!(mounts[0].super_option("hug"), None);
        assert!(!mounts[0].is_read_only());
        assert_eq!(mounts[1].root, Path::new("/docker/ab"));
        assert_eq!(mounts[1].super_option("memory"), Some(""));
        assert!(mounts[1].is_read_only());
    }

    #[test]
    fn mounts_of_a_kind() {
        let text =
            "25 24 0:23 / /dev/shm rw - tmpfs none rw\n33 31 0:31 / /b rw - ext4 /dev/vda rw\n";
        let mounts = parse_mountinfo_of(text, |kind| kind == "tmpfs");
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].kind, "tmpfs");
    }

    #[test]
    fn blanks_in_paths() {
        assert_eq!(unescape("/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape("/odd\\9"), Path::new("/odd\\9"));
        assert_eq!(unescape("/end\\"), Path::new("/end\\"));
    }
}

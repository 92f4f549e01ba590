//! Whether this machine can mount, for `forebay mount`. Nothing else needs it, so nothing here is a warning.

use std::path::Path;

use forebay_fuse::points::HELPER;

use super::{Check, kernel, text_of};

const DEVICE: &str = "/dev/fuse";
/// From these versions of Linux on a mount's files can be mapped for others to see; the kernel can pass calls on by itself; requests
/// may go by io_uring.
const MAPS: (u32, u32) = (6, 6);
const PASSES: (u32, u32) = (6, 9);
const BY_IO_URING: (u32, u32) = (6, 14);
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// All checks of this module.
pub fn all() -> Vec<Check> {
    vec![fuse()]
}

fn fuse() -> Check {
    const WHY: &str = "`forebay mount` shows directories to programs that cannot have the library: static ones, Go's, those in containers";
    let check = |found: String| Check::ok("fuse", WHY, found);
    if !Path::new(DEVICE).exists() {
        return check(format!("no {DEVICE}"))
            .hint("for `forebay mount`: `modprobe fuse`, or give the container that device");
    }
    let found = kernel_has(
        kernel::release().unwrap_or((0, 0)),
        text_of(SWITCH).as_deref(),
    );
    if rustix::process::geteuid().is_root() {
        return check(found);
    }
    match forebay_fuse::points::helper_works() {
        true => check(found),
        false => check(format!("{found}; no {HELPER}"))
            .hint("for `forebay mount` by other users than root: install the package fuse3"),
    }
}

fn kernel_has(version: (u32, u32), uring: Option<&str>) -> String {
    let mut words = vec!["mounts can be served".to_owned()];
    words.push(match version >= MAPS {
        true => "shared mappings work".into(),
        false => format!("shared mappings need Linux {}.{}", MAPS.0, MAPS.1),
    });
    if version >= PASSES {
        words.push("the kernel has passthrough, which is not used".into());
    }
    if version >= BY_IO_URING {
        let is_on = uring.is_some_and(|word| word == "Y" || word == "1");
        words.push(match is_on {
            true => "requests go by io_uring where a mount is a group of its own to the scheduler (`--daemon`)".into(),
            false => format!("requests could go by io_uring (as root: `echo Y > {SWITCH}`)"),
        });
    }
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_say_what_they_have() {
        let old = kernel_has((5, 10), None);
        assert!(
            old.contains("need Linux 6.6") && !old.contains("passthrough"),
            "{old}"
        );
        let new = kernel_has((6, 18), Some("N"));
        assert!(
            new.contains("passthrough") && new.contains("echo Y"),
            "{new}"
        );
        let on = kernel_has((6, 18), Some("Y"));
        assert!(
            on.contains("go by io_uring") && !on.contains("echo"),
            "{on}"
        );
        assert!(!old.contains("io_uring"), "{old}");
    }
}

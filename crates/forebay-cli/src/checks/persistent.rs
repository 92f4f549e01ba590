//! Whether this machine has persistent memory, for `forebay pmem`. Stores lie in any file, so nothing here is a warning.

use std::path::Path;

use super::Check;

/// All checks of this module.
pub fn all() -> Vec<Check> {
    vec![memory(
        Path::new("/dev"),
        forebay_pmem::medium::flush_by().name(),
    )]
}

fn memory(devices: &Path, flushed_by: &str) -> Check {
    const WHY: &str = "a store (`forebay pmem create`) in persistent memory is durable by the CPU's own instructions, and by `fdatasync` in any other file";
    let check = |found: String| Check::ok("persistent_memory", WHY, found);
    let found = named(devices, &["dax", "pmem"]);
    if found.is_empty() {
        return check("none; stores lie in files".into());
    }
    let found = found.join(", ");
    if flushed_by == "nothing" {
        return check(format!(
            "{found}; this CPU's way of writing lines back is not known"
        ))
        .hint("for `forebay pmem`: make stores in files of a file system without DAX");
    }
    check(format!("{found}; lines are written back by {flushed_by}"))
        .hint("for `forebay pmem create`: a `dax` device itself, or a file on ext4 or XFS mounted with `-o dax` on a `pmem` device")
}

/// Devices of these kinds, in order of name: the kind, and a number (`dax0.0`, `pmem1`).
fn named(devices: &Path, kinds: &[&str]) -> Vec<String> {
    let is_one = |name: &str| {
        let rest = kinds.iter().find_map(|kind| name.strip_prefix(kind));
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let entries = std::fs::read_dir(devices).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut found: Vec<String> = names
        .filter(|name| is_one(name))
        .map(|name| devices.join(name).display().to_string())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::memory;

    #[test]
    fn devices_are_named_with_what_the_cpu_has_for_them() {
        let dir = tempfile::tempdir().expect("a directory");
        let none = memory(dir.path(), "clwb");
        assert!(
            none.found.starts_with("none") && none.remedy.is_none(),
            "{none:?}"
        );
        for name in ["dax0.0", "pmem1", "daxctl", "pmem"] {
            std::fs::write(dir.path().join(name), []).expect("a file");
        }
        let at = |name: &str| dir.path().join(name).display().to_string();
        let both = memory(dir.path(), "clwb");
        let devices = format!("{}, {};", at("dax0.0"), at("pmem1"));
        assert!(both.found.starts_with(&devices), "{}", both.found);
        assert!(both.found.ends_with("by clwb") && both.remedy.is_some());
        let unknown = memory(dir.path(), "nothing");
        assert!(unknown.found.contains("not known"), "{}", unknown.found);
    }
}

//! Limits on this process, and what the system does when its user logs out.

use std::fs;
use std::path::{Path, PathBuf};

use forebay::memory::place::dir::user_id;
use rustix::process::{Resource, Rlimit, getrlimit};

use super::Check;
use crate::output::bytes;

/// Files in a session's table, two descriptors each, and some for the keeper itself.
const DESCRIPTORS_WANTED: u64 = 2 * 4096 + 64;
/// Users below this number are the system's own; nothing is removed at their logout.
const FIRST_PERSON: u32 = 1000;

/// All checks of this module, for an arena of so many bytes.
pub fn all(arena_bytes: u64) -> Vec<Check> {
    vec![
        descriptors(),
        file_size(arena_bytes),
        address_space(arena_bytes),
        locked_memory(),
        logout(),
    ]
}

fn shown(limit: Option<u64>, unit: fn(u64) -> String) -> String {
    limit.map_or("unlimited".to_owned(), unit)
}

fn is_below(limit: Option<u64>, wanted: u64) -> bool {
    limit.is_some_and(|limit| limit < wanted)
}

fn descriptors() -> Check {
    const WHY: &str = "the keeper holds two descriptors for each file that is managed";
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let plain = |limit: u64| limit.to_string();
    let found = format!(
        "limit {}, at most {}; the daemon takes the most",
        shown(current, plain),
        shown(maximum, plain)
    );
    let check = Check::ok("limit_nofile", WHY, found);
    if is_below(maximum, DESCRIPTORS_WANTED) {
        check.warn(format!(
            "`ulimit -Hn {DESCRIPTORS_WANTED}`, or LimitNOFILE={DESCRIPTORS_WANTED} in the service"
        ))
    } else {
        check
    }
}

fn file_size(arena_bytes: u64) -> Check {
    const WHY: &str = "the arena is one file; above this limit it cannot be made";
    let Rlimit { current, .. } = getrlimit(Resource::Fsize);
    let check = Check::ok("limit_fsize", WHY, shown(current, bytes));
    if is_below(current, arena_bytes) {
        check.fail(format!(
            "`ulimit -f unlimited`, or set memory to less than {}",
            shown(current, bytes)
        ))
    } else {
        check
    }
}

fn address_space(arena_bytes: u64) -> Check {
    const WHY: &str = "every program of a session maps the whole arena";
    let Rlimit { current, .. } = getrlimit(Resource::As);
    let check = Check::ok("limit_as", WHY, shown(current, bytes));
    // A mapping is aligned by reserving more first, and the program needs some for itself.
    if is_below(
        current,
        arena_bytes.saturating_add(arena_bytes / 8 + (64 << 20)),
    ) {
        check.fail(format!(
            "`ulimit -v unlimited`, or set memory to much less than {}",
            shown(current, bytes)
        ))
    } else {
        check
    }
}

fn locked_memory() -> Check {
    const WHY: &str = "kernels before 5.12 count the rings of io_uring against it; pools lock no memory, since their bytes go by TCP";
    let Rlimit { current, .. } = getrlimit(Resource::Memlock);
    let check = Check::ok("limit_memlock", WHY, shown(current, bytes));
    if is_below(current, 64 << 10) {
        check.warn("`ulimit -l 1024`")
    } else {
        check
    }
}

fn logout() -> Check {
    const WHY: &str = "RemoveIPC=yes removes a user's arenas when the last of the user's logins ends, also those of \
                       sessions that are at work";
    let check = |found: String| Check::ok("remove_ipc", WHY, found);
    if !Path::new("/run/systemd/system").exists() {
        return check("no systemd here".into());
    }
    if user_id() < FIRST_PERSON {
        return check(format!(
            "user {} is one of the system's, and exempt",
            user_id()
        ));
    }
    match remove_ipc(&logind_files()) {
        Some(false) => check("RemoveIPC=no".into()),
        Some(true) => check("RemoveIPC=yes".into()).warn(REMOVE_IPC_REMEDY),
        None => check("RemoveIPC is not set, which means yes".into()).warn(REMOVE_IPC_REMEDY),
    }
}

const REMOVE_IPC_REMEDY: &str = "set RemoveIPC=no in /etc/systemd/logind.conf, or `loginctl enable-linger`, or keep the \
                                 arena on hugetlbfs";

/// The texts of logind's configuration, the weakest first. What cannot be read says nothing.
fn logind_files() -> Vec<String> {
    let roots = [
        "/usr/lib/systemd",
        "/usr/local/lib/systemd",
        "/run/systemd",
        "/etc/systemd",
    ];
    let mut main = Vec::new();
    let mut drop_ins: Vec<PathBuf> = Vec::new();
    for root in roots.map(Path::new) {
        main.push(root.join("logind.conf"));
        let entries = fs::read_dir(root.join("logind.conf.d"))
            .into_iter()
            .flatten()
            .flatten();
        drop_ins.extend(
            entries
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|e| e == "conf")),
        );
    }
    // Drop-ins are laid over the main file, in the order of their names, wherever they are.
    drop_ins.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    main.into_iter()
        .chain(drop_ins)
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect()
}

/// The last word on `RemoveIPC`.
fn remove_ipc(texts: &[String]) -> Option<bool> {
    let lines = texts.iter().flat_map(|text| text.lines());
    let mut values = lines.filter_map(|line| {
        let (key, value) = line.trim().split_once('=')?;
        (key.trim() == "RemoveIPC").then(|| value.trim().to_ascii_lowercase())
    });
    values.next_back().and_then(|value| match value.as_str() {
        "yes" | "true" | "on" | "1" => Some(true),
        "no" | "false" | "off" | "0" => Some(false),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts_and_comments_do_not() {
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(remove_ipc(&texts(&["[Login]\n#RemoveIPC=no\n"])), None);
        assert_eq!(
            remove_ipc(&texts(&["RemoveIPC=yes\n", "RemoveIPC = no\n"])),
            Some(false)
        );
        assert_eq!(remove_ipc(&texts(&["RemoveIPC=Yes"])), Some(true));
    }
}

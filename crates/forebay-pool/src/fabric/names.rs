//! How endpoints are called, and the names that `shm` leaves in shared memory.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process;
use std::sync::Once;

use super::bindings as raw;

/// No address of a provider is longer.
pub(super) const ADDRESS_MAX: usize = 256;

/// Where `shm` has its names.
const SHARED: &str = "/dev/shm";

/// What ours begin with.
const PREFIX: &str = "forebay-fabric";

/// How a provider's addresses look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `sockaddr_in`.
    V4,
    /// `sockaddr_in6`.
    V6,
    /// A string that ends with a zero.
    Text,
}

impl Form {
    pub(super) fn of(format: u32) -> Option<Form> {
        match format {
            raw::FI_SOCKADDR_IN => Some(Form::V4),
            raw::FI_SOCKADDR_IN6 => Some(Form::V6),
            raw::FI_ADDR_STR => Some(Form::Text),
            _ => None,
        }
    }

    /// Whether bytes that somebody has sent are an address of this form. Texts name shared memory: a name is no path.
    pub(super) fn fits(self, bytes: &[u8]) -> bool {
        let family = |family: i32, length| {
            bytes.len() == length && bytes.get(..2) == Some(&(family as u16).to_ne_bytes()[..])
        };
        match self {
            Form::V4 => family(libc::AF_INET, size_of::<libc::sockaddr_in>()),
            Form::V6 => family(libc::AF_INET6, size_of::<libc::sockaddr_in6>()),
            Form::Text => {
                let Some((0, text)) = bytes.split_last() else {
                    return false;
                };
                let name = text.strip_prefix(b"fi_shm://").unwrap_or_default();
                let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b":-".contains(byte);
                bytes.len() < ADDRESS_MAX && !name.is_empty() && name.iter().all(is_of_name)
            }
        }
    }
}

/// Processes have the same numbers in other namespaces.
fn namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino())
}

/// What this process's names begin with. libfabric puts the user, and a number, behind it.
pub(super) fn own() -> String {
    format!("{PREFIX}-{}-{}", namespace(), process::id())
}

/// Removes what processes of this user's have left that were killed. What cannot be removed stays. This one's go when it ends.
pub(super) fn sweep() {
    static AT_EXIT: Once = Once::new();
    // SAFETY: the function takes nothing, and lives as long as the process.
    AT_EXIT.call_once(|| unsafe {
        // Where there is no room for it, another process sweeps.
        libc::atexit(leave);
    });
    remove(is_dead);
}

/// Connections that have not ended by then have names still. A forked child has a number of its own, and removes nothing of its parent's.
extern "C" fn leave() {
    let own = process::id();
    remove(|number| u32::try_from(number) == Ok(own));
}

/// Removes the names of processes with such numbers.
fn remove(goes: impl Fn(i32) -> bool) {
    let ours = format!("{PREFIX}-{}-", namespace());
    let Ok(all) = fs::read_dir(SHARED) else {
        return;
    };
    for name in all.flatten().map(|entry| entry.file_name()) {
        let number = { name.to_str() }
            .and_then(|name| name.strip_prefix(&ours)?.split(':').next())
            .and_then(|number| number.parse().ok());
        if number.is_some_and(&goes) {
            // Another process may have removed it.
            let _ = fs::remove_file(Path::new(SHARED).join(&name));
        }
    }
}

fn is_dead(number: i32) -> bool {
    // SAFETY: no signal is sent.
    let found = number <= 0 || unsafe { libc::kill(number, 0) } == 0;
    !found && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

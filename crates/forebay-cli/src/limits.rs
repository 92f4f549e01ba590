//! Limits of a process that writes files for others: as high as they may be, and no end of it where they are met.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The keeper holds two descriptors for each file that is managed, a pool's server some for each member, and both write files that may be longer than
/// those of the process that started them.
pub fn raise() {
    for resource in [Resource::Nofile, Resource::Fsize] {
        let limit = getrlimit(resource);
        let raised = Rlimit {
            current: limit.maximum,
            ..limit
        };
        // Without it the limit is as it was, and `forebay doctor` says what that means.
        let _ = setrlimit(resource, raised);
    }
    // What is beyond the limit nevertheless is an error of one file, and no end of the session.
    forebay::sys::signals::outlive_long_files();
}

//! What a test says that can do nothing here.

use std::fmt::Display;
use std::io::Write;

/// Says that the calling test can do nothing here, and why. `scripts/lib.sh` counts the line, one a test, and takes the
/// test off those that have passed.
pub fn skipped(reason: impl Display) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed").replace(' ', "-");
    let reason = reason.to_string().replace('\n', " | ");
    // Not `eprintln!`: the test runner shows nothing that a passing test prints by it. On a line of its own, whatever
    // else is being written.
    let line = format!("\nskipped: {name}: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

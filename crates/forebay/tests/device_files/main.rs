//! Real files on real file systems: the same checks in every directory given.
//!
//! `FOREBAY_TEST_DIRS` names directories, separated by colons; one on the file system of the build is
//! always added. `tests/run.d/10-file-systems.sh` makes a set of them and runs this. Where a directory
//! cannot be managed, the reason is checked instead, and the other checks pass over it. What a check
//! cannot do here (no root, no second file system) it says with a line that begins with "skip".

mod bytes;
mod opening;
mod places;
mod space;
#[cfg(feature = "keeper")]
mod stalls;

//! Real files on real file systems: the same checks in every directory given.
//!
//! `FOREBAY_TEST_DIRS` names directories, separated by colons; one on the file system of the build is
//! always added. `tests/run.d/10-file-systems.sh` makes a set of them and runs this. Where a directory
//! cannot be managed, the reason is checked instead, and the other checks pass over it. What a check
//! cannot do in one of them it says with a line that begins with "skip"; a test that can do nothing at all is skipped.

mod bytes;
mod descriptions;
#[cfg(feature = "keeper")]
#[path = "../disks/mod.rs"]
mod disks;
#[path = "../here/mod.rs"]
mod here;
mod opening;
mod places;
mod space;
#[cfg(feature = "keeper")]
mod stalls;

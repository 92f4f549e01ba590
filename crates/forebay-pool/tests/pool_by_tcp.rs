//! The tests of files and of processes once more, where servers lend their blocks by libfabric's provider `tcp`; and that these are read so.

#![allow(
    clippy::duplicate_mod,
    reason = "each of the modules below has its own"
)]

mod common;
#[path = "files.rs"]
mod files;
#[path = "common/passing.rs"]
mod passing;
#[path = "processes.rs"]
mod processes;

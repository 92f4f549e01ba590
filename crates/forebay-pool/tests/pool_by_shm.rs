//! The tests of files and of processes once more, with bytes that libfabric's provider `shm` moves; and that it does.

#![allow(
    clippy::duplicate_mod,
    reason = "each of the modules below has its own"
)]

mod common;
#[path = "files.rs"]
mod files;
#[path = "common/pools.rs"]
mod pools;
#[path = "processes.rs"]
mod processes;

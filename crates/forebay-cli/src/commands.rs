//! The commands, one file each.

pub mod completions;
pub mod config;
pub mod daemon;
pub mod doctor;
pub mod evict;
pub mod guard;
pub mod man;
pub mod mount;
pub mod pmem;
pub mod recover;
pub mod run;
pub mod serve;
pub mod stat;
pub mod top;
pub mod umount;

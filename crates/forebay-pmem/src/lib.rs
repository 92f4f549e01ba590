//! A file system in persistent memory, after FlacFS (FAST '24).
//!
//! A [`Store`] lies in a DAX device, in a file on a DAX file system, or in any file. What it stores where is
//! said in [`layout`], what is promised in `docs/pmem.md`. It knows nothing of kernels and mounts: callers
//! hand in inode numbers and names, and get attributes and bytes; [`files`] has them by paths.
//!
//! ```text
//! files        files by paths, for a process that has the store open itself
//! store        the calls; who waits for whom; the flusher
//! operations   what each call changes
//! directory    names by hash        map  pages of a file        check  is it all in order?
//! state        what the lock guards: free space, fresh blocks, the running batch
//! pages        metadata blocks and their versions               log    batches, durable as a whole
//! layout       what lies where                                  medium stores, flushes, fences
//! ```

pub mod check;
mod directory;
mod errno;
pub mod files;
pub mod layout;
mod log;
mod map;
pub mod medium;
mod operations;
mod pages;
mod space;
mod state;
mod store;
#[cfg(test)]
mod tests;
mod types;

pub use check::{Finding, Report, check};
pub use errno::{Errno, OpenError, Result};
pub use layout::BLOCK;
pub use store::{
    Information, Store, View, Whole, Window, create, create_with, information, is_store,
};
pub use types::{
    Attributes, Changes, CreateOptions, Creator, Entry, FLUSH_INTERVAL_DEFAULT, FLUSH_INTERVAL_MIN,
    LINKS_MAX, NAME_MAX, OnExisting, OpenOptions, ROOT, SIZE_MAX, SetTime, Statistics, Time,
    Whence,
};

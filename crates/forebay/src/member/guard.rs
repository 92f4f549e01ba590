//! What a session's processes know of its guard, which watches for outsiders (`keeper::outsiders`).
//!
//! The guard itself is the keeper's; what lies below it asks by [`Guarding`].

use std::any::Any;
use std::os::fd::BorrowedFd;

use crate::ids::FileId;

/// [`crate::memory::superblock::Superblock::guard`]: nobody watches.
pub const NONE: u32 = 0;
/// Outsiders are heard of.
pub const HEARS: u32 = 1;
/// Outsiders wait.
pub const HOLDS: u32 = 2;

/// The guard of a keeper, as its process's files ask it.
pub trait Guarding: Any + Send + Sync {
    /// Sees to it that the guard hears of those that open the file. Whether it does.
    fn watch(&self, file: BorrowedFd<'_>) -> bool;
    /// As [`Guarding::watch`], for a file that the keeper has just been handed.
    fn watch_taken(&self, id: FileId, file: BorrowedFd<'_>);
    /// Whether a program outside the session has the file open.
    fn is_used_outside(&self, file: BorrowedFd<'_>) -> bool;
    /// Whether nobody outside has the file of this device and inode open, as a lease has told.
    fn is_alone(&self, inode: (u64, u64)) -> bool;
    /// That is not known any more.
    fn is_not_alone(&self, inode: (u64, u64));
    /// Whether somebody from outside is on its way in, and is held up until the file is as it shall be.
    fn holds_up(&self, inode: (u64, u64)) -> bool;
}

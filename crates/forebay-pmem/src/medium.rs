//! The medium: memory that keeps what is stored to it, as the store sees it.
//!
//! Stores reach a CPU's cache first and the medium at any time later, each line of 64 bytes for itself, in
//! any order. [`Medium::flush`] begins to write lines back, [`Medium::fence`] and [`Medium::sync`] wait. Two
//! kinds differ in who waits for what:
//!
//! | | DAX | any file |
//! |---|---|---|
//! | `write` | store; durable after `flush` and a fence of the same thread | store to the kernel's page cache |
//! | `stream` | non-temporal store; durable after a fence of the same thread | the same |
//! | `flush` | `clwb`, `clflushopt`, `clflush` or `dc cvac`, whichever there is | nothing |
//! | `fence` | `sfence` | nothing |
//! | `sync` | `sfence` | `fdatasync`, which covers every thread's stores |
//!
//! Every thread that stores data fences before it lets go of the store's lock, so `sync(For::Data)` of the
//! committing thread has nothing left to wait for on DAX. A committing thread fences what it has written to where it belongs, so
//! neither has `sync(For::Home)` of a later commit. Each call says what it is [`For`]: the tests leave
//! out one kind at a time and see whether the loss is found.

pub(crate) mod changes;
mod faulted;
pub(crate) mod machine;
mod mapped;

pub use machine::flush_by;
pub use mapped::Mapped;
pub(crate) use mapped::holds_bytes;

use crate::errno::Result;

/// Bytes of a line: what a CPU writes back at once.
pub const LINE: usize = 64;

/// What stores, flushes and fences are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum For {
    /// Bytes of files.
    Data,
    /// Bytes of files that a program has stored into a window.
    Window,
    /// A record of the log.
    Log,
    /// Metadata where it belongs, after its record.
    Home,
    /// Where the log begins.
    Tail,
    /// What was a store's superblock, and is to be none.
    Unmark,
    /// A new, empty store.
    Create,
    /// The superblock of a new store, which makes it one.
    Mark,
}

/// How what is stored becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durability {
    /// By the CPU alone: a DAX device, or a file mapped with `MAP_SYNC`.
    Dax,
    /// By `fdatasync` of the file.
    Fdatasync,
}

/// Memory that keeps what is stored to it. Offsets and lengths are in bytes; whoever passes one beyond
/// the end has a bug of his own, and panics.
pub trait Medium: Send + Sync {
    /// Bytes.
    fn length(&self) -> u64;
    /// How it keeps them.
    fn durability(&self) -> Durability;
    /// Where these bytes lie in this process's memory, until the medium is dropped. `writable`: they are about to be stored to.
    fn address(&self, at: u64, length: usize, writable: bool) -> *mut u8;
    /// Copies out what was stored last, durable or not.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Stores by way of the CPU's cache.
    fn write(&self, at: u64, bytes: &[u8]);
    /// Stores past the CPU's cache: nothing is left to be flushed.
    fn stream(&self, at: u64, bytes: &[u8], purpose: For);
    /// Begins to write back the lines that these bytes touch.
    fn flush(&self, at: u64, length: u64, purpose: For);
    /// Waits for what this thread has streamed and flushed, as far as the CPU has it in its hands.
    fn fence(&self, purpose: For);
    /// Returns when what was streamed and flushed is durable.
    fn sync(&self, purpose: For) -> Result<()>;
    /// Keeps whole blocks out of children that are forked from now on, or lets them have these again. Where they cannot be kept out alone, all is.
    fn keep_from_children(&self, _at: u64, _length: u64, _keeps: bool) {}
}

//! Every fixed number of the engine, in one place, with what it follows from.
//!
//! Sizes are bytes unless the name says otherwise. What a user may choose is in `config`; what is
//! here is part of the arena's layout or a bound that the code relies on.

/// A page of a file: the unit of validity, dirtiness and small frames.
pub const PAGE_BYTES: usize = 4096;
/// A block of a file and a frame of the arena: the paper's scrap-page data zone (WSBuffer 3.2).
pub const BLOCK_BYTES: usize = 256 * 1024;
/// Pages in a block. The validity maps of a header are one `u64` each, so this must be 64.
pub const BLOCK_PAGES: usize = BLOCK_BYTES / PAGE_BYTES;
/// Frames are backed with memory in batches of this size (WSBuffer 3.2: 32 scrap pages at once).
pub const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Frames in a batch.
pub const BATCH_FRAMES: usize = BATCH_BYTES / BLOCK_BYTES;
/// The huge page that batches are aligned to.
pub const HUGE_BYTES: usize = 2 * 1024 * 1024;
/// Frames in a huge page: the least that is backed or given back.
pub const HUGE_FRAMES: u32 = (HUGE_BYTES / BLOCK_BYTES) as u32;
/// Regions of free frames at most, one for each core (StreamCache 4.3).
pub const REGIONS_MAX: u32 = 64;
/// Block indices are 32 bits wide, so this is the end of what a managed file can hold: 1 PiB.
pub const FILE_BYTES_MAX: u64 = (u32::MAX as u64) * BLOCK_BYTES as u64;
/// Longest path remembered for a file, so that a successor can find it again.
pub const PATH_BYTES_MAX: usize = 1024;
/// Most threads that may take part in a session at once, slot 0 (nobody) included.
pub const THREADS_MAX: u32 = 1024;
/// Requests at least this long are worth sending to the device at once (WSBuffer 3.3: 1 MiB).
pub const DIRECT_BYTES_MIN: usize = 1024 * 1024;
/// Longest stretch that is read ahead of a stream: 32 blocks, as many as a file's asks.
pub const READ_AHEAD_BYTES: u64 = 8 * 1024 * 1024;
/// A device is busy while more bytes than this are in flight to it (WSBuffer 3.4: 4 MB).
pub const BUSY_BYTES: u64 = 4 * 1024 * 1024;
/// A file that was so long when it was opened is managed once the kernel's writes to it have taken [`MANAGED_LIFE_NS`], and for smaller bounds from
/// the second call that writes to it on. A new one is managed once [`CALLS_A_SMALL_FILE`] calls have written a fourth of this.
pub const SMALL_FILE_BYTES: u64 = 1024 * 1024;
/// Requests of a file's writes that are this large on average gain nothing from being managed while there is room for them in
/// the kernel's cache: it copies as fast, and a page costs it little beside the copy.
pub const LARGE_REQUEST_BYTES: u64 = 64 * 1024;
/// Syncs of a file written by such requests, after which it is managed: the kernel would write the same pages again and again.
pub const LARGE_SYNCS: u32 = 3;
/// Syncs in a row with little to write, after which a file is better left to the kernel.
pub const KERNEL_AFTER_SYNCS: u32 = 16;
/// Writes into holes, beyond those into space, after which a file is left to the kernel.
pub const KERNEL_AFTER_HOLES: u32 = 64;
/// Calls that must have written to a new file before it is managed, for [`SMALL_FILE_BYTES`]; for other bounds as many more or fewer. To
/// manage a file and to close it takes as long as some 100 calls of the kernel's that write 4,000 bytes; with ten times as many the loss of a
/// file that ends just then is a tenth.
pub const CALLS_A_SMALL_FILE: u64 = 1024;
/// What it takes to manage a file and to close it, nanoseconds, about, beside its writes.
pub const MANAGED_LIFE_NS: u64 = 250_000;
/// Bytes that go into the kernel's cache at most when a file is closed or given to the kernel.
pub const PASSED_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// What a file must owe for its close to leave it to the keeper, bytes: less goes into the kernel's cache.
pub const CLOSE_BEHIND_BYTES: u64 = PASSED_BYTES_MAX;

const _: () = assert!(BLOCK_PAGES == 64);
const _: () =
    assert!(BATCH_BYTES.is_multiple_of(HUGE_BYTES) && HUGE_BYTES.is_multiple_of(BLOCK_BYTES));

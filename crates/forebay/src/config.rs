//! What a user may choose, where the choices come from, and which one wins.
//!
//! Every option has one key, used in all three places, the stronger last: the file ([`locate`] says
//! which), the environment (`FOREBAY_` and the key in capitals), and the embedding program or
//! command line ([`Options`]). A key that does not exist is an error wherever it stands, with the
//! nearest one that does: a misspelt limit must not silently be no limit.
//!
//! [`Config`] is the outcome: plain values, complete and checked against each other, and for each
//! where it came from. It does not change while a session lives.

mod check;
mod error;
pub(crate) mod glob;
pub mod interval;
pub mod locate;
pub mod options;
pub mod resolve;
pub mod routes;
pub mod size;

pub use error::ConfigError;
pub use options::{Explained, Options, Origin, Origins};
pub use resolve::Builder;
pub use routes::{Route, RouteRule, RouteTable};

pub use crate::memory::regions::Allocator;

use crate::limits::{BLOCK_BYTES, HUGE_BYTES};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How requests reach the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IoEngine {
    /// io_uring where the kernel lets us, else threads.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// A pool of threads that block.
    Threads,
}

/// How it is known which parts of files owe bytes (StreamCache 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirtyTracking {
    /// By the marks in each file's slots alone.
    Page = 0,
    /// By streams as well, for the whole session.
    #[default]
    Stream = 1,
}

/// In which order what is owed is written, and what is clean evicted (StreamCache 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlushOrder {
    /// File by file, each from its beginning; eviction in the order of the header table.
    Page,
    /// The coldest stream first.
    #[default]
    Stream,
}

/// What programs outside the session see, and how the session learns what they write (`docs/semantics.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coherence {
    /// The strongest of the others that the keeper may have.
    #[default]
    Auto,
    /// An outsider that opens a file waits until it is with the kernel (fanotify), or an error.
    Strict,
    /// The keeper hears of openings and changes (inotify), and goes after them.
    Notify,
    /// Bytes are written after `flush_interval` at the latest.
    Interval,
    /// Bytes are written when files are closed or synced.
    Close,
}

/// All options of the engine. Durations are `None` where the user said "never".
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of memory the session may hold: frames, headers and tables. A multiple of nothing in
    /// particular; at least 2 MiB.
    pub memory: u64,
    /// Bytes that may be dirty in the whole session. Writers wait above it.
    pub dirty_bytes_max: u64,
    /// Dirty bytes of the session from which on the keeper writes back without being asked.
    pub dirty_background: u64,
    /// Bytes that may be dirty in one file; `None` for no limit but the session's.
    pub file_dirty_bytes_max: Option<u64>,
    /// Bytes of memory that may hold what the device has as well, about; `None` for no limit but `memory`.
    pub clean_bytes_max: Option<u64>,
    /// The route of requests that no rule of `routes` names.
    pub route: Route,
    /// Routes by path; the first rule that matches wins.
    pub routes: Vec<RouteRule>,
    /// Only files below one of these are managed; empty for all. Without links where the directory exists.
    pub dirs: Vec<PathBuf>,
    /// Requests of at least this many bytes may go to the device at once (WSBuffer 3.3).
    pub direct_min: u64,
    /// Longest stretch that is read ahead of a stream, bytes; 0 for none.
    pub read_ahead: u64,
    /// A device with more bytes than this in flight is busy (WSBuffer 3.4).
    pub busy_bytes: u64,
    /// How long a full frame is left alone before it is written back.
    pub flush_after: Option<Duration>,
    /// How long any byte may stay dirty while there is nothing else to do.
    pub flush_interval: Option<Duration>,
    /// The directory for the arena's file, before all others.
    pub arena_dir: Option<PathBuf>,
    /// Name of the session, as [`crate::memory::place::is_session_name`] has it.
    pub session: String,
    /// How long a session does nothing before it gives memory back.
    pub idle_after: Option<Duration>,
    /// Requests in flight to one device, 1 to 4096.
    pub queue_depth: u32,
    /// How requests reach the device.
    pub io_engine: IoEngine,
    /// How dirty parts of files are known; decided when the arena is made.
    pub dirty_tracking: DirtyTracking,
    /// In which order they are written; decided when the arena is made.
    pub flush_order: FlushOrder,
    /// Where recovery keeps bytes that cannot be written back.
    pub kept_dir: PathBuf,
    /// A file that has had no more than this written to it by a program stays with the kernel: the preload library manages
    /// it from then on.
    pub small_file_bytes: u64,
    /// The same for a file that is written by requests of 64 KiB and more on average, and is not synced again and again: the
    /// kernel takes these as fast while it has room. No less than `small_file_bytes` counts.
    pub large_file_bytes: u64,
    /// A file that owes at least so many bytes when a program closes it is written after the close, by the keeper: the
    /// preload library waits for less.
    pub close_behind_bytes: u64,
    /// Syncs in a row with little to write, after which the preload library leaves a file to the kernel, 1 to 255; 0: never.
    pub kernel_after_syncs: u32,
    /// So many more writes for which space was looked for in vain, or has to be looked for again, than others leave a file to the kernel; 0: never.
    pub kernel_after_holes: u32,
    /// Whether files of mounted stores are managed, or left to the kernel as those of other file systems that a process serves. One choice for
    /// all sessions of a process.
    pub manage_stores: bool,
    /// How free memory is found.
    pub allocator: Allocator,
    /// What programs outside the session see.
    pub coherence: Coherence,
    /// The arena lies on the heap of this process instead of in a file: for tests.
    pub heap_backed: bool,
    /// What programs with the library for Rust, C or Python open by the system is let in at once, as the engine's own: for tests that
    /// look at what the device has. No option sets it.
    #[doc(hidden)]
    pub trusts_members: bool,
    /// Where each value came from, at the time the configuration was made.
    pub origins: Origins,
}

impl Config {
    /// The configuration of this process: file, environment, defaults.
    ///
    /// # Errors
    /// [`ConfigError`], naming what is wrong, where, and what to write instead.
    pub fn load() -> Result<Self, ConfigError> {
        Self::load_with(Options::default())
    }

    /// [`Config::load`] with options that are stronger than file and environment.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_with(options: Options) -> Result<Self, ConfigError> {
        Builder::of_this_process()?.options(options).build()
    }

    /// [`Config::load_with`] for a process that joins a session that is there; see [`Builder::joining`].
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn load_to_join(options: Options) -> Result<Self, ConfigError> {
        Builder::of_this_process()?
            .options(options)
            .joining()
            .build()
    }

    /// Defaults and nothing else to begin with: for embedding programs that read no file.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A configuration so small that a file of six blocks already evicts, flushes and splits, for
    /// tests: 8 frames of memory, half of it dirty at most, nothing driven by time, on the heap.
    pub fn tiny() -> Self {
        let frames = |count: u64| count * BLOCK_BYTES as u64;
        Self {
            memory: HUGE_BYTES as u64,
            dirty_bytes_max: frames(4),
            dirty_background: frames(2),
            file_dirty_bytes_max: None,
            clean_bytes_max: None,
            route: Route::Auto,
            routes: Vec::new(),
            dirs: Vec::new(),
            direct_min: frames(2),
            read_ahead: frames(2),
            busy_bytes: frames(2),
            flush_after: None,
            flush_interval: None,
            arena_dir: None,
            session: "tiny".to_owned(),
            idle_after: None,
            queue_depth: 4,
            io_engine: IoEngine::Threads,
            dirty_tracking: DirtyTracking::Stream,
            flush_order: FlushOrder::Stream,
            kept_dir: std::env::temp_dir().join("forebay-kept"),
            small_file_bytes: 0,
            large_file_bytes: 0,
            close_behind_bytes: 0,
            kernel_after_syncs: 0,
            kernel_after_holes: 0,
            manage_stores: true,
            allocator: Allocator::default(),
            coherence: Coherence::Close,
            heap_backed: true,
            trusts_members: true,
            origins: Origins::default(),
        }
    }

    /// The same with another way to track what is owed, and the order of flushes that it has.
    #[must_use]
    pub fn with_tracking(self, dirty_tracking: DirtyTracking) -> Self {
        Self {
            dirty_tracking,
            flush_order: match dirty_tracking {
                DirtyTracking::Stream => FlushOrder::Stream,
                DirtyTracking::Page => FlushOrder::Page,
            },
            ..self
        }
    }

    /// Each value and where it came from, in the order of the documentation. Values are written as
    /// the configuration file would have them.
    pub fn explain(&self) -> Vec<Explained> {
        options::explain(&self.as_options(), &self.origins)
    }

    /// Whether a file lies where files are managed. Its path begins with `/` and has no links in it, as
    /// `/proc/self/fd` gives it.
    pub fn manages(&self, path: &Path) -> bool {
        self.dirs.is_empty() || self.dirs.iter().any(|dir| path.starts_with(dir))
    }

    /// The routes by path, ready to be asked.
    ///
    /// # Errors
    /// [`ConfigError::Value`] for a pattern that is none; a loaded configuration has none such.
    pub fn route_table(&self) -> Result<RouteTable, ConfigError> {
        RouteTable::new(self.route, &self.routes)
    }
}

#[cfg(test)]
mod tests;

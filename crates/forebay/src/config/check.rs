//! The values of a configuration against each other and against what the engine can do.
//!
//! Each rule names the one option to change and what to write there. Rules about the machine (how
//! much memory there is) are where the machine is asked, in [`super::resolve`].

use super::size::Size;
use super::{Coherence, Config, ConfigError, DirtyTracking, FlushOrder};
use crate::limits::{BLOCK_BYTES, HUGE_BYTES, PAGE_BYTES};
use crate::memory::files::SMALL_SYNCS_MAX;
use crate::memory::place::is_session_name;

/// Requests in flight to one device at most; the largest ring that every kernel gives.
const QUEUE_DEPTH_MAX: u32 = 4096;

/// Smallest number of dirty bytes that lets a write finish.
const DIRTY_BYTES_MIN: u64 = PAGE_BYTES as u64;

impl Config {
    /// Checks the values. Those of a loaded configuration have been; those that a program changed
    /// afterwards have not.
    ///
    /// # Errors
    /// [`ConfigError::Value`], naming the first option that cannot be.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_bytes()?;
        self.check_names()?;
        let orders = self.flush_order == FlushOrder::Stream;
        self.rule(
            self.dirty_tracking == DirtyTracking::Stream || !orders,
            "flush_order",
            "stream",
            || "give page, or dirty_tracking = stream: only then are there streams".to_owned(),
        )?;
        self.rule(
            self.coherence != Coherence::Interval || self.flush_interval.is_some(),
            "coherence",
            "interval",
            || "give flush_interval a duration, or set coherence to close".to_owned(),
        )?;
        let depth = self.queue_depth;
        self.rule(
            (1..=QUEUE_DEPTH_MAX).contains(&depth),
            "queue_depth",
            depth,
            || format!("give 1 to {QUEUE_DEPTH_MAX}"),
        )?;
        self.rule(
            self.kernel_after_syncs <= SMALL_SYNCS_MAX,
            "kernel_after_syncs",
            self.kernel_after_syncs,
            || format!("give 1 to {SMALL_SYNCS_MAX}, or 0 for never"),
        )
    }

    fn check_bytes(&self) -> Result<(), ConfigError> {
        let text = Size::Bytes;
        let (memory, dirty) = (self.memory, self.dirty_bytes_max);
        let least = HUGE_BYTES as u64;
        self.rule(memory >= least, "memory", text(memory), || {
            format!("give {} or more", text(least))
        })?;
        let fits = (DIRTY_BYTES_MIN..=memory).contains(&dirty);
        self.rule(fits, "dirty_bytes_max", text(dirty), || {
            format!("give 4KiB or more, up to memory, which is {}", text(memory))
        })?;
        let background = self.dirty_background;
        self.rule(
            background <= dirty,
            "dirty_background",
            text(background),
            || format!("give at most dirty_bytes_max, which is {}", text(dirty)),
        )?;
        let file = self.file_dirty_bytes_max.unwrap_or(dirty);
        self.rule(
            file >= DIRTY_BYTES_MIN,
            "file_dirty_bytes_max",
            text(file),
            || "give 4KiB or more, or none".to_owned(),
        )?;
        let clean = self.clean_bytes_max.unwrap_or(memory);
        let one = BLOCK_BYTES as u64;
        self.rule(clean >= one, "clean_bytes_max", text(clean), || {
            "give 256KiB or more, or none".to_owned()
        })?;
        let direct = self.direct_min;
        self.rule(
            direct >= PAGE_BYTES as u64,
            "direct_min",
            text(direct),
            || {
                "give 4KiB or more; to send nothing to the device at once, set route to scrap"
                    .to_owned()
            },
        )
    }

    fn check_names(&self) -> Result<(), ConfigError> {
        self.rule(
            is_session_name(&self.session),
            "session",
            &self.session,
            || "give 1 to 64 letters, digits, dots, underscores and hyphens".to_owned(),
        )?;
        let dirs = self.dirs.iter().map(|dir| ("dirs", dir));
        let arena_dir = self.arena_dir.iter().map(|dir| ("arena_dir", dir));
        for (key, dir) in dirs.chain(arena_dir).chain([("kept_dir", &self.kept_dir)]) {
            self.rule(dir.is_absolute(), key, dir.display(), || {
                "write it from / on".to_owned()
            })?;
        }
        Ok(())
    }

    fn rule(
        &self,
        holds: bool,
        key: &str,
        value: impl ToString,
        remedy: impl FnOnce() -> String,
    ) -> Result<(), ConfigError> {
        if holds {
            return Ok(());
        }
        Err(ConfigError::Value {
            key: key.to_owned(),
            value: value.to_string(),
            origin: self.origins.of(key).to_string(),
            remedy: remedy(),
        })
    }
}

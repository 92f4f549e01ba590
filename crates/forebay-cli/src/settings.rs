//! The engine's options as flags, one for each key of the configuration, and the way to a [`Config`].
//!
//! Values are read by the engine, as it reads those of the environment, so that messages and rules are the same.

use std::path::PathBuf;

use clap::Args;
use forebay::config::{ConfigError, Options};
use forebay::{Config, Error};

use crate::failure::Failure;

macro_rules! settings {
    ($($(#[$attribute:meta])* $key:ident,)*) => {
        /// Every option of the configuration. Stronger than the environment, which is stronger than the file.
        #[derive(Args, Clone, Debug, Default)]
        #[command(next_help_heading = "Settings (stronger than environment and configuration file)")]
        pub struct Settings {
            $($(#[$attribute])* #[arg(long)] pub $key: Option<String>,)*
        }

        impl Settings {
            /// The options that were given.
            ///
            /// # Errors
            /// The first that cannot be read, with what to write instead.
            pub fn options(&self) -> Result<Options, ConfigError> {
                let mut options = Options::default();
                $(if let Some(text) = &self.$key {
                    options.set(stringify!($key), text)?;
                })*
                Ok(options)
            }

            /// The options that were given, as text.
            pub fn given(&self) -> Vec<(&'static str, String)> {
                let all = [$((stringify!($key), &self.$key)),*];
                let given = all.into_iter();
                given.filter_map(|(key, text)| Some((key, text.clone()?))).collect()
            }
        }

        #[cfg(test)]
        const FLAGS: &[&str] = &[$(stringify!($key)),*];
    };
}

settings! {
    /// Memory of the session: a size (4GiB), or a share of what this process may use (25%)
    #[arg(value_name = "SIZE", visible_alias = "mem")]
    memory,
    /// Bytes that may be dirty; writers wait above it. A size, or a share of the memory
    #[arg(value_name = "SIZE")]
    dirty_bytes_max,
    /// Dirty bytes from which on writeback starts
    #[arg(value_name = "SIZE")]
    dirty_background,
    /// Bytes that may be dirty in one file: a size, or none
    #[arg(value_name = "SIZE")]
    file_dirty_bytes_max,
    /// Bytes of memory that may hold what the device has as well: a size, or none
    #[arg(value_name = "SIZE")]
    clean_bytes_max,
    /// Route of requests without a rule: auto, threshold, lustre, direct, scrap or kernel
    #[arg(value_name = "ROUTE")]
    route,
    /// Routes by path, the first match wins: '/scratch/**=direct;*.log=kernel'
    #[arg(value_name = "GLOB=ROUTE;...")]
    routes,
    /// Directories whose files are managed; others are left to the kernel
    #[arg(value_name = "DIR:DIR...")]
    dirs,
    /// Smallest request that may go to the device at once
    #[arg(value_name = "SIZE")]
    direct_min,
    /// Longest stretch that is read ahead of a stream of reads; 0 for none
    #[arg(value_name = "SIZE")]
    read_ahead,
    /// Bytes in flight above which a device is busy
    #[arg(value_name = "SIZE")]
    busy_bytes,
    /// How long a full frame is left alone before it is written back: a duration (500ms), or never
    #[arg(value_name = "DURATION")]
    flush_after,
    /// How long a byte may stay dirty: a duration (5s), or never
    #[arg(value_name = "DURATION")]
    flush_interval,
    /// Directory for the arena's file, on tmpfs or hugetlbfs
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    arena_dir,
    /// Name of the session
    #[arg(value_name = "NAME")]
    session,
    /// Idle time after which memory is given back: a duration (30s), or never
    #[arg(value_name = "DURATION")]
    idle_after,
    /// Requests in flight to a device, 1 to 4096
    #[arg(value_name = "NUMBER")]
    queue_depth,
    /// How requests reach the device: auto, io_uring or threads
    #[arg(value_name = "ENGINE")]
    io_engine,
    /// How dirty parts of files are known: page or stream
    #[arg(value_name = "WAY")]
    dirty_tracking,
    /// In which order they are written: page or stream
    #[arg(value_name = "ORDER")]
    flush_order,
    /// Where recovery keeps bytes that cannot be written back
    #[arg(value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    kept_dir,
    /// Bytes that a program must have written to a file before it is managed
    #[arg(value_name = "SIZE")]
    small_file_bytes,
    /// The same where it is written by requests of 64 KiB and more; a share is of the session's memory
    #[arg(value_name = "SIZE")]
    large_file_bytes,
    /// Bytes that a file must owe for its close not to wait for them
    #[arg(value_name = "SIZE")]
    close_behind_bytes,
    /// Small syncs in a row after which a file stays with the kernel, 1 to 255; 0 for never
    #[arg(value_name = "NUMBER")]
    kernel_after_syncs,
    /// Writes into holes and between them after which a file stays with the kernel; 0 for never
    #[arg(value_name = "NUMBER")]
    kernel_after_holes,
    /// Manage files of mounted stores: true or false
    #[arg(value_name = "BOOL")]
    manage_stores,
    /// How free memory is found: regions or regions+stock
    #[arg(value_name = "ALLOCATOR")]
    allocator,
    /// What programs outside the session see of its files: auto, strict, notify, interval or close
    #[arg(value_name = "WHEN")]
    coherence,
}

impl Settings {
    /// The configuration with these options on top.
    ///
    /// # Errors
    /// [`Failure::Usage`], naming the option, the variable or the file.
    pub fn config(&self) -> Result<Config, Failure> {
        load(self.options()?)
    }
}

/// The configuration with these options on top.
///
/// # Errors
/// [`Failure::Usage`], naming the option, the variable or the file.
pub fn load(options: Options) -> Result<Config, Failure> {
    Config::load_with(options).map_err(|error| Failure::from(Error::from(error)))
}

/// As [`load`], for a command that joins a session which is there, mostly.
///
/// # Errors
/// As for [`load`].
pub fn load_to_join(options: Options) -> Result<Config, Failure> {
    Config::load_to_join(options).map_err(|error| Failure::from(Error::from(error)))
}

/// Which sessions a command is about, and where arenas may lie.
#[derive(Args, Clone, Debug, Default)]
pub struct Whose {
    /// This session alone
    #[arg(long, value_name = "NAME")]
    pub session: Option<String>,
    /// A directory that may hold arenas, besides the memory file systems that are mounted
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    pub arena_dir: Option<PathBuf>,
}

impl Whose {
    /// The configuration with these options on top.
    ///
    /// # Errors
    /// [`Failure::Usage`], naming the option, the variable or the file.
    pub fn config(&self) -> Result<Config, Failure> {
        load(Options {
            session: self.session.clone(),
            arena_dir: self.arena_dir.clone(),
            ..Options::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session that others join cannot lie on a heap, so that option has no flag.
    #[test]
    fn every_option_has_a_flag() {
        let keys = forebay::config::options::KEYS.iter().copied();
        let keys: Vec<_> = keys.filter(|&key| key != "heap_backed").collect();
        assert_eq!(keys, FLAGS);
    }

    #[test]
    fn options_are_read_as_the_engine_reads_them() {
        let settings = Settings {
            memory: Some("64MiB".into()),
            flush_after: Some("never".into()),
            ..Settings::default()
        };
        let config = settings.config().expect("a configuration");
        assert_eq!((config.memory, config.flush_after), (64 << 20, None));
        let settings = Settings {
            memory: Some("lots".into()),
            ..Settings::default()
        };
        assert!(
            matches!(settings.config(), Err(Failure::Usage(message)) if message.contains("4GiB"))
        );
    }
}

//! From what was said in several places to one configuration.

use super::interval::Interval;
use super::locate::{ConfigFile, Environment, config_file, kept_dir};
use super::options::{Options, Origin, Origins};
use super::routes::RouteTable;
use super::size::{Limit, Size};
use super::{Config, ConfigError, DirtyTracking, FlushOrder};
use crate::limits::{
    BUSY_BYTES, CLOSE_BEHIND_BYTES, DIRECT_BYTES_MIN, HUGE_BYTES, KERNEL_AFTER_HOLES,
    KERNEL_AFTER_SYNCS, READ_AHEAD_BYTES, SMALL_FILE_BYTES,
};
use crate::memory::cgroup::{self, Limits};
use crate::memory::place::dir::user_id;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Before the key of every variable.
const PREFIX: &str = "FOREBAY_";
/// Variables with the prefix that are no options: what [`config_file`] reads, and what programs read.
const NOT_OPTIONS: [&str; 5] = [
    "FOREBAY_CONFIG",
    "FOREBAY_LOG",
    "FOREBAY_POOLS",
    "FOREBAY_PRELOAD",
    "FOREBAY_REPORT",
];
/// `/dev/null`, by which people say that there is to be no configuration.
const NULL_DEVICE: u64 = libc::makedev(1, 3);
/// What the parts of a session tell each other through the environment begins like this.
const INTERNAL_PREFIX: &str = "FOREBAY__";

/// Collects options from places of growing strength and makes the configuration.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    file: Option<(PathBuf, Options)>,
    environment: Options,
    options: Options,
    /// What this process may use; asked from the system when not given.
    limits: Option<Limits>,
    joins: bool,
    kept_dir: Option<PathBuf>,
}

impl Builder {
    /// Reads this process's environment, and the configuration file where there is one.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn of_this_process() -> Result<Self, ConfigError> {
        Self::of_environment(&std::env::vars_os().collect())
    }

    /// Reads the given environment, and the configuration file that it leads to.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn of_environment(environment: &Environment) -> Result<Self, ConfigError> {
        let mut builder = Self {
            kept_dir: Some(kept_dir(environment, user_id())),
            ..Self::default()
        };
        builder = match config_file(environment) {
            ConfigFile::Named(path) => builder.file(&path)?,
            ConfigFile::FirstOf(paths) => match paths.iter().find(|path| path.exists()) {
                Some(path) => builder.file(path)?,
                None => builder,
            },
        };
        builder.environment(environment)
    }

    /// Takes the options of a file, instead of any file taken before.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn file(mut self, path: &Path) -> Result<Self, ConfigError> {
        let unreadable = |error: io::Error| ConfigError::Unreadable {
            path: path.to_owned(),
            why: error.to_string(),
        };
        let text = text_of(path).map_err(unreadable)?;
        self.file = Some((path.to_owned(), Options::from_toml(&text, path)?));
        Ok(self)
    }

    /// Takes the options among the environment's variables.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn environment(mut self, environment: &Environment) -> Result<Self, ConfigError> {
        for (name, value) in environment {
            let Some(name) = name.to_str() else { continue };
            let Some(key) = option_key(name) else {
                continue;
            };
            if value.is_empty() {
                continue;
            }
            let origin = Origin::Environment {
                name: name.to_owned(),
            };
            let text = value.to_str().ok_or_else(|| ConfigError::Value {
                key: key.clone(),
                value: value.to_string_lossy().into_owned(),
                origin: origin.to_string(),
                remedy: "write it in UTF-8".to_owned(),
            })?;
            self.environment.set_from(&origin, &key, text)?;
        }
        Ok(self)
    }

    /// Takes options that are stronger than file and environment.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets one of the strongest options from text.
    ///
    /// # Errors
    /// As [`Options::set`].
    pub fn set(mut self, key: &str, text: &str) -> Result<Self, ConfigError> {
        self.options.set(key, text)?;
        Ok(self)
    }

    /// Says how much memory there is, instead of asking the system.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = Some(limits);
        self
    }

    /// For a process that joins a session that is there: what memory there is, which takes a hundred system calls to find out, is
    /// asked only where something was said of memory. Without that, what is said of memory means nothing.
    pub fn joining(mut self) -> Self {
        self.joins = true;
        self
    }

    /// The configuration: the strongest word on each option, defaults for the rest.
    ///
    /// # Errors
    /// [`ConfigError::Value`] where values do not fit together or this machine.
    pub fn build(self) -> Result<Config, ConfigError> {
        let mut origins = Origins::default();
        let mut said = Options::default();
        if let Some((path, options)) = self.file {
            said.overlay(options, &mut origins, |_| Origin::File {
                path: path.clone(),
            });
        }
        said.overlay(self.environment, &mut origins, |key| Origin::Environment {
            name: format!("{PREFIX}{}", key.to_ascii_uppercase()),
        });
        said.overlay(self.options, &mut origins, |_| Origin::Option);
        no_shares_of_nothing(&said, &origins)?;
        let limits = match self.limits {
            Some(limits) => limits,
            None if self.joins && !says_of_memory(&said) => Limits::unknown(),
            None => cgroup::available(),
        };
        let kept_dir = self
            .kept_dir
            .unwrap_or_else(|| kept_dir(&Environment::new(), user_id()));
        let config = complete(said, origins, limits.total_bytes, kept_dir);
        enough_memory(&config, &limits)?;
        config.check()?;
        RouteTable::new(config.route, &config.routes)?;
        Ok(config)
    }
}

/// What a plain file holds, or a device that has nothing. Anything else could have it waited for, for ever: each process of a session reads it.
fn text_of(path: &Path) -> io::Result<String> {
    let mut options = OpenOptions::new();
    let mut file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)?;
    let kind = file.metadata()?;
    if !kind.is_file() && kind.rdev() != NULL_DEVICE {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// The key that a variable's name stands for, unless it is none of ours.
fn option_key(name: &str) -> Option<String> {
    if NOT_OPTIONS.contains(&name) || name.starts_with(INTERNAL_PREFIX) {
        return None;
    }
    Some(name.strip_prefix(PREFIX)?.to_ascii_lowercase())
}

/// Puts defaults where nobody said anything.
fn complete(said: Options, origins: Origins, available: u64, kept_dir: PathBuf) -> Config {
    let quarter = (available / 4).max(HUGE_BYTES as u64);
    let memory = said.memory.map_or(quarter, |size| size.of(available));
    let dirty_bytes_max = said
        .dirty_bytes_max
        .map_or(memory / 2, |size| size.of(memory));
    let background = (memory / 4).min(dirty_bytes_max);
    let Limit(file_dirty) = said.file_dirty_bytes_max.unwrap_or(Limit(None));
    let Limit(clean) = said.clean_bytes_max.unwrap_or(Limit(None));
    let plain = |size: Option<Size>, default: u64| size.map_or(default, |size| size.of(0));
    let interval = |said: Option<Interval>, milliseconds| {
        said.unwrap_or(Interval(Some(Duration::from_millis(milliseconds))))
            .0
    };
    let dirty_tracking = said.dirty_tracking.unwrap_or_default();
    let by_tracking = match dirty_tracking {
        DirtyTracking::Page => FlushOrder::Page,
        DirtyTracking::Stream => FlushOrder::Stream,
    };
    Config {
        memory,
        dirty_bytes_max,
        dirty_background: said
            .dirty_background
            .map_or(background, |size| size.of(memory)),
        file_dirty_bytes_max: file_dirty.map(|size| size.of(memory)),
        clean_bytes_max: clean.map(|size| size.of(memory)),
        route: said.route.unwrap_or_default(),
        routes: said.routes.unwrap_or_default(),
        dirs: without_links(said.dirs.unwrap_or_default()),
        direct_min: plain(said.direct_min, DIRECT_BYTES_MIN as u64),
        read_ahead: plain(said.read_ahead, READ_AHEAD_BYTES),
        busy_bytes: plain(said.busy_bytes, BUSY_BYTES),
        flush_after: interval(said.flush_after, 500),
        flush_interval: interval(said.flush_interval, 5_000),
        arena_dir: said.arena_dir,
        session: said.session.unwrap_or_else(|| "default".to_owned()),
        idle_after: interval(said.idle_after, 30_000),
        queue_depth: said.queue_depth.unwrap_or(32),
        io_engine: said.io_engine.unwrap_or_default(),
        dirty_tracking,
        flush_order: said.flush_order.unwrap_or(by_tracking),
        kept_dir: said.kept_dir.unwrap_or(kept_dir),
        small_file_bytes: plain(said.small_file_bytes, SMALL_FILE_BYTES),
        large_file_bytes: said
            .large_file_bytes
            .map_or(memory / 2, |size| size.of(memory)),
        close_behind_bytes: plain(said.close_behind_bytes, CLOSE_BEHIND_BYTES),
        kernel_after_syncs: said.kernel_after_syncs.unwrap_or(KERNEL_AFTER_SYNCS),
        kernel_after_holes: said.kernel_after_holes.unwrap_or(KERNEL_AFTER_HOLES),
        manage_stores: said.manage_stores.unwrap_or(true),
        allocator: said.allocator.unwrap_or_default(),
        coherence: said.coherence.unwrap_or_default(),
        heap_backed: said.heap_backed.unwrap_or(false),
        trusts_members: false,
        origins,
    }
}

/// Whether what memory there is makes a difference to what was said.
fn says_of_memory(said: &Options) -> bool {
    said.memory.is_some()
        || said.dirty_bytes_max.is_some()
        || said.dirty_background.is_some()
        || said.file_dirty_bytes_max.is_some()
        || said.clean_bytes_max.is_some()
        || said.large_file_bytes.is_some()
}

/// Paths of files are compared as the kernel has them. A directory that is not there yet stays as it was written.
fn without_links(dirs: Vec<PathBuf>) -> Vec<PathBuf> {
    let plain = |dir: PathBuf| std::fs::canonicalize(&dir).unwrap_or(dir);
    dirs.into_iter().map(plain).collect()
}

/// Options of bytes that are not part of anything cannot be a share.
fn no_shares_of_nothing(said: &Options, origins: &Origins) -> Result<(), ConfigError> {
    for (key, size) in [
        ("direct_min", said.direct_min),
        ("read_ahead", said.read_ahead),
        ("busy_bytes", said.busy_bytes),
        ("small_file_bytes", said.small_file_bytes),
        ("close_behind_bytes", said.close_behind_bytes),
    ] {
        if let Some(share @ Size::Share(_)) = size {
            return Err(ConfigError::Value {
                key: key.to_owned(),
                value: share.to_string(),
                origin: origins.of(key).to_string(),
                remedy: "give it in bytes, such as 1MiB".to_owned(),
            });
        }
    }
    Ok(())
}

/// A budget above what the process may use is a promise that only the kernel's killer would keep.
fn enough_memory(config: &Config, limits: &Limits) -> Result<(), ConfigError> {
    if limits.total_bytes == 0 || config.memory <= limits.total_bytes {
        return Ok(());
    }
    Err(ConfigError::Value {
        key: "memory".to_owned(),
        value: Size::Bytes(config.memory).to_string(),
        origin: config.origins.of("memory").to_string(),
        remedy: format!(
            "{} allows {} MiB; give less, or a share such as 25%",
            limits.source,
            limits.total_bytes >> 20
        ),
    })
}

//! The options as they are written, before defaults: one list, from which everything else follows.
//!
//! The list at [`Options`] is the only place that names all keys; reading a file, reading the
//! environment, laying one source over another and explaining the outcome are derived from it.

use super::interval::Interval;
use super::routes::{Route, RouteRule};
use super::size::{Limit, Size};
use super::{Allocator, Coherence, Config, ConfigError, DirtyTracking, FlushOrder, IoEngine};
use serde::de::IntoDeserializer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a value came from. Later ones are stronger.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(tag = "from", rename_all = "lowercase")]
pub enum Origin {
    /// Nobody said anything.
    #[default]
    Default,
    /// The configuration file.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// The environment.
    Environment {
        /// Name of the variable.
        name: String,
    },
    /// The command line or the embedding program.
    Option,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => write!(f, "default"),
            Self::File { path } => write!(f, "{}", path.display()),
            Self::Environment { name } => write!(f, "environment variable {name}"),
            Self::Option => write!(f, "option"),
        }
    }
}

/// The origin of each value that is not a default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(BTreeMap<&'static str, Origin>);

impl Origins {
    /// Where the option's value came from.
    pub fn of(&self, key: &str) -> Origin {
        self.0.get(key).cloned().unwrap_or_default()
    }
}

/// One line of [`Config::explain`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The option.
    pub key: &'static str,
    /// Its value as the file would have it; "none" for an option that is not set.
    pub value: String,
    /// Where the value came from.
    pub origin: Origin,
}

/// A type that options have: read from and shown as text.
trait Written: Sized {
    /// Reads a text of the environment or command line; the error says what to write.
    fn read(text: &str) -> Result<Self, String>;
    /// The text that reads as this value.
    fn show(&self) -> String;
}

macro_rules! options {
    ($($(#[$doc:meta])* $key:ident: $type:ty,)*) => {
        /// What someone has said about the options; `None` where they said nothing.
        /// [`Config`] documents what each means.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Options {
            $($(#[$doc])* pub $key: Option<$type>,)*
        }

        /// All options, in the order of the documentation.
        pub const KEYS: &[&str] = &[$(stringify!($key)),*];

        impl Options {
            /// Sets an option from text, as the environment and the command line do. `Ok(false)`
            /// when there is no such option.
            fn read(&mut self, key: &str, text: &str) -> Result<bool, String> {
                match key {
                    $(stringify!($key) => self.$key = Some(<$type as Written>::read(text)?),)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Sets an option from a value of a file. `Ok(false)` when there is no such option.
            fn take(&mut self, key: &str, value: toml::Value) -> Result<bool, toml::de::Error> {
                match key {
                    $(stringify!($key) => self.$key = Some(value.try_into()?),)*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            /// Lays stronger options over these, noting where each came from.
            pub(super) fn overlay(
                &mut self,
                stronger: Self,
                origins: &mut Origins,
                origin: impl Fn(&str) -> Origin,
            ) {
                $(if stronger.$key.is_some() {
                    self.$key = stronger.$key;
                    origins.0.insert(stringify!($key), origin(stringify!($key)));
                })*
            }

            /// The text of each option.
            fn texts(&self) -> Vec<(&'static str, Option<String>)> {
                vec![$((stringify!($key), self.$key.as_ref().map(Written::show)),)*]
            }
        }
    };
}

options! {
    /// Memory of the session; shares are of what this process may use. Default: 25%.
    memory: Size,
    /// Dirty bytes of the session; shares are of `memory`. Default: 50%.
    dirty_bytes_max: Size,
    /// Dirty bytes that start writeback; shares are of `memory`. Default: 25%, and at most
    /// `dirty_bytes_max`.
    dirty_background: Size,
    /// Dirty bytes of one file; shares are of `memory`. Default: none.
    file_dirty_bytes_max: Limit,
    /// Clean bytes of the session; shares are of `memory`. Default: none.
    clean_bytes_max: Limit,
    /// Route of requests without a rule. Default: auto.
    route: Route,
    /// Routes by path: tables of `glob` and `route`; as text, `GLOB=ROUTE;GLOB=ROUTE`.
    routes: Vec<RouteRule>,
    /// Directories whose files are managed, those of all others being left to the kernel; as text, `DIR:DIR`. Default:
    /// empty, which stands for all.
    dirs: Vec<PathBuf>,
    /// Smallest request that may go to the device at once. Default: 1MiB.
    direct_min: Size,
    /// Longest stretch that is read ahead of a stream; 0 for none. Default: 8MiB.
    read_ahead: Size,
    /// Bytes in flight above which a device is busy. Default: 4MiB.
    busy_bytes: Size,
    /// How long a full frame is left alone. Default: 500ms.
    flush_after: Interval,
    /// How long a byte may stay dirty. Default: 5s.
    flush_interval: Interval,
    /// Directory of the arena's file. Default: none, the best place there is.
    arena_dir: PathBuf,
    /// Name of the session. Default: default.
    session: String,
    /// Idle time after which memory is given back. Default: 30s.
    idle_after: Interval,
    /// Requests in flight to a device. Default: 32.
    queue_depth: u32,
    /// auto, io_uring or threads. Default: auto.
    io_engine: IoEngine,
    /// page or stream. Default: stream.
    dirty_tracking: DirtyTracking,
    /// page or stream. Default: that of `dirty_tracking`.
    flush_order: FlushOrder,
    /// Where recovery keeps what cannot be written back. Default: $XDG_STATE_HOME/forebay/kept.
    kept_dir: PathBuf,
    /// Bytes that a file must have had written to it before the preload library manages it. Default: 1MiB.
    small_file_bytes: Size,
    /// Bytes that a file must have had written to it by large requests before the preload library manages it. Default: 50%.
    large_file_bytes: Size,
    /// Bytes that a file must owe for its close to leave it to the keeper. Default: 16MiB.
    close_behind_bytes: Size,
    /// Small syncs in a row after which a file stays with the kernel. Default: 16.
    kernel_after_syncs: u32,
    /// Writes into holes and between them after which a file stays with the kernel. Default: 64.
    kernel_after_holes: u32,
    /// Whether files of mounted stores are managed. Default: true.
    manage_stores: bool,
    /// system, regions or regions+stock. Default: regions+stock.
    allocator: Allocator,
    /// auto, strict, notify, interval or close. Default: auto.
    coherence: Coherence,
    /// The arena on the heap, for tests. Default: false.
    heap_backed: bool,
}

impl Options {
    /// Sets one option from text, for `--set KEY=VALUE` and embedding programs.
    ///
    /// # Errors
    /// [`ConfigError::UnknownKey`] and [`ConfigError::Value`].
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        self.set_from(&Origin::Option, key, text)
    }

    /// [`Options::set`], with the source that messages name.
    pub(super) fn set_from(
        &mut self,
        origin: &Origin,
        key: &str,
        text: &str,
    ) -> Result<(), ConfigError> {
        match self.read(key, text) {
            Ok(true) => Ok(()),
            Ok(false) => Err(unknown(key, origin)),
            Err(remedy) => Err(wrong(key, text.to_owned(), origin, remedy)),
        }
    }

    /// The options in the text of a configuration file.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::UnknownKey`] and [`ConfigError::Value`].
    pub fn from_toml(text: &str, path: &std::path::Path) -> Result<Self, ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let why = error.to_string().trim_end().to_owned();
            ConfigError::Syntax {
                path: path.to_owned(),
                why,
            }
        })?;
        let origin = Origin::File {
            path: path.to_owned(),
        };
        let mut options = Self::default();
        for (key, value) in table {
            let written = value.to_string();
            match options.take(&key, value) {
                Ok(true) => (),
                Ok(false) => return Err(unknown(&key, &origin)),
                Err(error) => {
                    let remedy = error.message().to_owned();
                    return Err(wrong(&key, written, &origin, remedy));
                }
            }
        }
        Ok(options)
    }
}

impl Config {
    /// The configuration as options that would make it again.
    pub(super) fn as_options(&self) -> Options {
        let size = |bytes| Some(Size::Bytes(bytes));
        let interval = |duration| Some(Interval(duration));
        Options {
            memory: size(self.memory),
            dirty_bytes_max: size(self.dirty_bytes_max),
            dirty_background: size(self.dirty_background),
            file_dirty_bytes_max: Some(Limit(self.file_dirty_bytes_max.map(Size::Bytes))),
            clean_bytes_max: Some(Limit(self.clean_bytes_max.map(Size::Bytes))),
            route: Some(self.route),
            routes: Some(self.routes.clone()),
            dirs: Some(self.dirs.clone()),
            direct_min: size(self.direct_min),
            read_ahead: size(self.read_ahead),
            busy_bytes: size(self.busy_bytes),
            flush_after: interval(self.flush_after),
            flush_interval: interval(self.flush_interval),
            arena_dir: self.arena_dir.clone(),
            session: Some(self.session.clone()),
            idle_after: interval(self.idle_after),
            queue_depth: Some(self.queue_depth),
            io_engine: Some(self.io_engine),
            dirty_tracking: Some(self.dirty_tracking),
            flush_order: Some(self.flush_order),
            kept_dir: Some(self.kept_dir.clone()),
            small_file_bytes: size(self.small_file_bytes),
            large_file_bytes: size(self.large_file_bytes),
            close_behind_bytes: size(self.close_behind_bytes),
            kernel_after_syncs: Some(self.kernel_after_syncs),
            kernel_after_holes: Some(self.kernel_after_holes),
            manage_stores: Some(self.manage_stores),
            allocator: Some(self.allocator),
            coherence: Some(self.coherence),
            heap_backed: Some(self.heap_backed),
        }
    }
}

/// See [`Config::explain`].
pub(super) fn explain(options: &Options, origins: &Origins) -> Vec<Explained> {
    let line = |(key, text): (&'static str, Option<String>)| Explained {
        key,
        value: text.unwrap_or_else(|| "none".to_owned()),
        origin: origins.of(key),
    };
    options.texts().into_iter().map(line).collect()
}

fn wrong(key: &str, value: String, origin: &Origin, remedy: String) -> ConfigError {
    ConfigError::Value {
        key: key.to_owned(),
        value,
        origin: origin.to_string(),
        remedy,
    }
}

fn unknown(key: &str, origin: &Origin) -> ConfigError {
    let nearest = nearest_key(key);
    ConfigError::UnknownKey {
        key: key.to_owned(),
        origin: origin.to_string(),
        nearest,
    }
}

/// The option spelt most like the key; one that has all the key's words comes first.
fn nearest_key(key: &str) -> &'static str {
    let key = key.to_ascii_lowercase().replace('-', "_");
    let lacks_words = |known: &str| {
        !key.split('_')
            .all(|word| known.split('_').any(|w| w == word))
    };
    let distance = |known: &&str| (lacks_words(known), edits(&key, known));
    KEYS.iter()
        .copied()
        .min_by_key(distance)
        .unwrap_or_default()
}

/// Letters to insert, delete or replace to turn one word into the other.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

/// Types that say themselves how they are read and shown.
macro_rules! written_by_name {
    ($($type:ty: $remedy:expr),*) => {$(
        impl Written for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.trim().parse().map_err(|_| $remedy.to_owned())
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
written_by_name!(u32: "write a whole number", bool: "write true or false");

macro_rules! written_with_reasons {
    ($($type:ty),*) => {$(
        impl Written for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.parse()
            }
            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
written_with_reasons!(Size, Limit, Interval);

/// Words that serde knows.
macro_rules! written_as_word {
    ($($type:ty),*) => {$(
        impl Written for $type {
            fn read(text: &str) -> Result<Self, String> {
                let word: serde::de::value::StrDeserializer<'_, serde::de::value::Error> =
                    text.trim().into_deserializer();
                Self::deserialize(word).map_err(|error| error.to_string())
            }
            fn show(&self) -> String {
                match serde_json::to_value(self) {
                    Ok(serde_json::Value::String(word)) => word,
                    other => unreachable!("a word, not {other:?}"),
                }
            }
        }
    )*};
}
written_as_word!(
    Route,
    IoEngine,
    Allocator,
    Coherence,
    DirtyTracking,
    FlushOrder
);

impl Written for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Written for PathBuf {
    fn read(text: &str) -> Result<Self, String> {
        Ok(Self::from(text))
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Written for Vec<PathBuf> {
    fn read(text: &str) -> Result<Self, String> {
        let dirs = text.split(':').filter(|dir| !dir.is_empty());
        Ok(dirs.map(PathBuf::from).collect())
    }
    fn show(&self) -> String {
        let dirs: Vec<_> = self.iter().map(|dir| dir.display().to_string()).collect();
        dirs.join(":")
    }
}

impl Written for Vec<RouteRule> {
    fn read(text: &str) -> Result<Self, String> {
        let rules = text
            .split(';')
            .map(str::trim)
            .filter(|rule| !rule.is_empty());
        let rule = |rule: &str| {
            let (glob, route) = rule
                .rsplit_once('=')
                .ok_or("write GLOB=ROUTE;GLOB=ROUTE".to_owned())?;
            Ok(RouteRule {
                glob: glob.trim().to_owned(),
                route: Route::read(route)?,
            })
        };
        rules.map(rule).collect()
    }
    fn show(&self) -> String {
        let rule = |rule: &RouteRule| format!("{}={}", rule.glob, rule.route.show());
        self.iter().map(rule).collect::<Vec<_>>().join(";")
    }
}

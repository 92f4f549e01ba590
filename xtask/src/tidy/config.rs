//! The data of the rules, read from `xtask/tidy.toml`. Every exception in it carries its reason.

use serde::Deserialize;

/// What `xtask/tidy.toml` holds.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Files and folders of the root.
    pub root: Vec<String>,
    /// Module order of the engine.
    pub order: Order,
    /// Where `unsafe` may stand.
    #[serde(rename = "unsafe")]
    pub unsafety: Vec<UnsafeModule>,
}

/// Who may import whom.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Order {
    /// Modules that anyone may import. Among themselves they may import one another.
    pub common: Vec<String>,
    /// All other modules, highest rank first. A module may import those of lower ranks.
    pub ranks: Vec<Rank>,
    /// Imports allowed against the order. Each turns the order round for its pair.
    pub exceptions: Vec<Exception>,
}

/// Modules of the same height.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rank {
    /// Their names.
    pub modules: Vec<String>,
    /// Whether they may import one another.
    #[serde(default)]
    pub each_other: bool,
}

/// One import that the order forbids and the project allows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exception {
    /// The module that imports.
    pub from: String,
    /// The module imported.
    pub to: String,
    /// Why this is right.
    pub why: String,
}

/// A module that may hold `unsafe`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UnsafeModule {
    /// Path without `.rs`: `a/b` stands for `a/b.rs` and for everything in `a/b/`.
    pub module: String,
    /// What makes it need `unsafe`.
    pub why: String,
}

impl Config {
    /// Reads the text of `tidy.toml`.
    pub fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error| error.to_string())?;
        let whys = config
            .unsafety
            .iter()
            .map(|entry| (&entry.module, &entry.why));
        let exceptions = config
            .order
            .exceptions
            .iter()
            .map(|entry| (&entry.from, &entry.why));
        match whys
            .chain(exceptions)
            .find(|(_, why)| why.trim().is_empty())
        {
            Some((name, _)) => Err(format!("the entry for {name} has no reason in `why`")),
            None => Ok(config),
        }
    }
}

impl Order {
    /// Height of a module in the order: 0 is the lowest. `None` for an unknown or common one.
    pub fn height(&self, module: &str) -> Option<usize> {
        self.ranks
            .iter()
            .rev()
            .position(|rank| rank.modules.iter().any(|name| name == module))
    }

    /// Whether anyone may import it.
    pub fn is_common(&self, module: &str) -> bool {
        self.common.iter().any(|name| name == module)
    }

    fn is_exception(&self, from: &str, to: &str) -> bool {
        let mut entries = self.exceptions.iter();
        entries.any(|entry| entry.from == from && entry.to == to)
    }

    /// Whether `from` may import `to`. Both must be known; `from` may be common.
    pub fn allows(&self, from: &str, to: &str) -> bool {
        if self.is_exception(to, from) {
            return false;
        }
        if from == to || self.is_exception(from, to) || self.is_common(to) {
            return true;
        }
        match (self.height(from), self.height(to)) {
            (Some(from), Some(to)) if from == to => self
                .ranks
                .iter()
                .rev()
                .nth(from)
                .is_some_and(|rank| rank.each_other),
            (Some(from), Some(to)) => from > to,
            _ => false,
        }
    }
}

impl UnsafeModule {
    /// Whether the file belongs to this module.
    pub fn holds(&self, path: &str) -> bool {
        match path.strip_prefix(self.module.as_str()) {
            Some(rest) => rest == ".rs" || rest.starts_with('/'),
            None => false,
        }
    }
}

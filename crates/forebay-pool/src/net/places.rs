//! Where the configurations of pools lie, so that a name is enough to say which is meant.
//!
//! `NAME` is `NAME.toml` in the directory that `FOREBAY_POOLS` names. Where that is not set it is in `$XDG_CONFIG_HOME/forebay/pools`
//! (`~/.config/forebay/pools`), or else in `/etc/forebay/pools`. A name with a `/` in it is a path.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;

use super::{Config, Wrong};

/// Names the directory of configurations, in place of the usual ones.
pub const DIRECTORY: &str = "FOREBAY_POOLS";

impl Config {
    /// The configuration of a pool by its name.
    ///
    /// # Errors
    /// Where it was looked for, or what is wrong with it.
    pub fn of_name(name: &str) -> Result<Config, Wrong> {
        let all = candidates(name);
        if let Some(path) = all.iter().find(|path| path.exists()) {
            return Config::load(path);
        }
        let all: Vec<String> = { all.iter() }
            .map(|path| path.display().to_string())
            .collect();
        Err(Wrong::Value(format!(
            "no pool is called {name}: there is no {}",
            all.join(" and no ")
        )))
    }
}

/// All configurations that have a name: what a name leads to, by name. Regular files alone: whoever opens a pipe may wait for ever.
pub fn named() -> BTreeMap<String, PathBuf> {
    let mut all = BTreeMap::new();
    let listed = directories()
        .into_iter()
        .filter_map(|at| at.read_dir().ok());
    for entry in listed.flatten().flatten() {
        let path = entry.path();
        let is_one = path.extension().is_some_and(|end| end == "toml") && path.is_file();
        if let Some(name) = { path.file_stem() }.filter(|_| is_one) {
            let name = name.to_string_lossy().into_owned();
            all.entry(name).or_insert(path);
        }
    }
    all
}

fn candidates(name: &str) -> Vec<PathBuf> {
    if name.contains('/') {
        return vec![PathBuf::from(name)];
    }
    { directories().into_iter() }
        .map(|directory| directory.join(format!("{name}.toml")))
        .collect()
}

/// Where they are looked for, in this order.
pub fn directories() -> Vec<PathBuf> {
    let directory = |name: &str| { env::var_os(name) }.filter(|value| !value.is_empty());
    match directory(DIRECTORY) {
        Some(only) => vec![PathBuf::from(only)],
        None => {
            let home = directory("HOME").map(|home| PathBuf::from(home).join(".config"));
            let own = directory("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
            let own = own.map(|own| own.join("forebay/pools"));
            own.into_iter()
                .chain([PathBuf::from("/etc/forebay/pools")])
                .collect()
        }
    }
}

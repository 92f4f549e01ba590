//! Where the configurations of pools lie, so that a name is enough to say which is meant.
//!
//! `NAME` is `NAME.toml` in the directory that `FOREBAY_POOLS` names. Where that is not set it is in `$XDG_CONFIG_HOME/forebay/pools`
//! (`~/.config/forebay/pools`), or else in `/etc/forebay/pools`. A name with a `/` in it is a path.

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

fn candidates(name: &str) -> Vec<PathBuf> {
    if name.contains('/') {
        return vec![PathBuf::from(name)];
    }
    let directory = |name: &str| { env::var_os(name) }.filter(|value| !value.is_empty());
    let directories = match directory(DIRECTORY) {
        Some(only) => vec![PathBuf::from(only)],
        None => {
            let home = directory("HOME").map(|home| PathBuf::from(home).join(".config"));
            let own = directory("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
            let own = own.map(|own| own.join("forebay/pools"));
            own.into_iter()
                .chain([PathBuf::from("/etc/forebay/pools")])
                .collect()
        }
    };
    { directories.into_iter() }
        .map(|directory| directory.join(format!("{name}.toml")))
        .collect()
}

//! Where the configuration file and the kept bytes are, by the XDG rules.
//!
//! Pure functions of the environment. As those rules have it, a variable that is empty or holds a
//! relative path counts as not set.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment's variables.
pub type Environment = BTreeMap<OsString, OsString>;

/// The file for the whole machine.
const MACHINE_FILE: &str = "/etc/forebay.toml";

/// The file that holds the configuration, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigFile {
    /// Named by `FOREBAY_CONFIG`: must be readable.
    Named(PathBuf),
    /// The first of these that exists.
    FirstOf(Vec<PathBuf>),
}

/// Where to look: `$FOREBAY_CONFIG`, else `$XDG_CONFIG_HOME/forebay/config.toml`, else
/// `~/.config/forebay/config.toml`, else `/etc/forebay.toml`.
pub fn config_file(environment: &Environment) -> ConfigFile {
    if let Some(named) = environment.get(&OsString::from("FOREBAY_CONFIG"))
        && !named.is_empty()
    {
        return ConfigFile::Named(PathBuf::from(named));
    }
    let users = [
        dir(environment, "XDG_CONFIG_HOME"),
        home_dir(environment, ".config"),
    ];
    let users = users
        .into_iter()
        .flatten()
        .map(|dir| dir.join("forebay/config.toml"));
    ConfigFile::FirstOf(users.chain([PathBuf::from(MACHINE_FILE)]).collect())
}

/// Where recovery keeps what it cannot write back: `$XDG_STATE_HOME/forebay/kept`, else
/// `~/.local/state/forebay/kept`, else, for a user without a home, a directory that survives a
/// restart.
pub fn kept_dir(environment: &Environment, uid: u32) -> PathBuf {
    dir(environment, "XDG_STATE_HOME")
        .or_else(|| home_dir(environment, ".local/state"))
        .map(|state| state.join("forebay/kept"))
        .unwrap_or_else(|| Path::new("/var/tmp").join(format!("forebay-{uid}/kept")))
}

fn home_dir(environment: &Environment, below: &str) -> Option<PathBuf> {
    Some(dir(environment, "HOME")?.join(below))
}

fn dir(environment: &Environment, name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(environment.get(&OsString::from(name))?);
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        pairs
            .iter()
            .map(|&(name, value)| (name.into(), value.into()))
            .collect()
    }

    #[test]
    fn the_order_of_places() {
        let all = environment(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]);
        let expected = [
            "/x/forebay/config.toml",
            "/h/.config/forebay/config.toml",
            MACHINE_FILE,
        ];
        let expected = ConfigFile::FirstOf(expected.iter().map(PathBuf::from).collect());
        assert_eq!(config_file(&all), expected);
        let odd = environment(&[("XDG_CONFIG_HOME", "relative"), ("FOREBAY_CONFIG", "")]);
        assert_eq!(
            config_file(&odd),
            ConfigFile::FirstOf(vec![MACHINE_FILE.into()])
        );
        let named = environment(&[("FOREBAY_CONFIG", "here.toml")]);
        assert_eq!(config_file(&named), ConfigFile::Named("here.toml".into()));
    }

    #[test]
    fn kept_bytes_survive_a_restart() {
        let state = environment(&[("XDG_STATE_HOME", "/s"), ("HOME", "/h")]);
        assert_eq!(kept_dir(&state, 7), Path::new("/s/forebay/kept"));
        let home = environment(&[("HOME", "/h")]);
        assert_eq!(
            kept_dir(&home, 7),
            Path::new("/h/.local/state/forebay/kept")
        );
        assert_eq!(
            kept_dir(&environment(&[]), 7),
            Path::new("/var/tmp/forebay-7/kept")
        );
    }
}

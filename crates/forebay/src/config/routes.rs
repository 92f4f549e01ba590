//! Routes by path: which rule names a file.
//!
//! Patterns are globs over the whole absolute path: `*` and `?` stay within one name, `**` crosses
//! directories, `{a,b}` are alternatives. A pattern without a slash matches the file's name in any
//! directory, as in `.gitignore`.

use super::ConfigError;
use super::glob::Glob;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What is preferred for the requests of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// The way predicted to be faster, per request.
    #[default]
    Auto,
    /// By size alone: at least `direct_min` goes to the device at once, the rest to memory
    /// (WSBuffer 3.3).
    Threshold,
    /// A whole request to the device if it is long enough and aligned, else through the kernel's cache (AutoIO).
    Lustre,
    /// To the device at once wherever alignment allows.
    Direct,
    /// To memory, always.
    Scrap,
    /// Not managed: the kernel answers.
    Kernel,
}

impl Route {
    /// The name, as configuration and [`crate::route::by_name`] have it.
    pub fn name(self) -> &'static str {
        match self {
            Route::Auto => "auto",
            Route::Threshold => "threshold",
            Route::Lustre => "lustre",
            Route::Direct => "direct",
            Route::Scrap => "scrap",
            Route::Kernel => "kernel",
        }
    }
}

/// A route for some paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRule {
    /// Which paths; see the module's documentation.
    pub glob: String,
    /// Their route.
    pub route: Route,
}

/// All rules, compiled.
#[derive(Clone, Debug)]
pub struct RouteTable {
    rules: Vec<(Glob, Route)>,
    otherwise: Route,
}

impl RouteTable {
    /// Compiles the rules; `otherwise` is for paths that none names.
    ///
    /// # Errors
    /// [`ConfigError::Value`] with the pattern that is none.
    pub fn new(otherwise: Route, rules: &[RouteRule]) -> Result<Self, ConfigError> {
        let wrong = |glob: &str, reason: &str| ConfigError::Value {
            key: "routes".to_owned(),
            value: glob.to_owned(),
            origin: "routes".to_owned(),
            remedy: format!("{reason}; write a pattern such as /scratch/**/*.ckpt"),
        };
        let compile = |rule: &RouteRule| match compile_glob(&rule.glob) {
            Ok(glob) => Ok((glob, rule.route)),
            Err(reason) => Err(wrong(&rule.glob, &reason)),
        };
        let rules = rules.iter().map(compile).collect::<Result<_, _>>()?;
        Ok(Self { rules, otherwise })
    }

    /// The route of a file, by its absolute path: the first rule that matches.
    pub fn route_of(&self, path: &Path) -> Route {
        let first = self.rules.iter().find(|(glob, _)| glob.is_match(path));
        first.map_or(self.otherwise, |&(_, route)| route)
    }
}

/// One pattern, as this module and `route::Overrides` read it; the error is the reason.
pub(crate) fn compile_glob(glob: &str) -> Result<Glob, String> {
    let anywhere = !glob.contains('/');
    let whole = ["/", "**/", "{"]
        .iter()
        .any(|start| glob.starts_with(start));
    let pattern = match (anywhere, whole) {
        (true, _) => format!("**/{glob}"),
        (false, true) => glob.to_owned(),
        (false, false) => {
            return Err("it matches no absolute path, which begins with / or **/".to_owned());
        }
    };
    Glob::new(&pattern)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_can_be_configured() {
        for name in crate::route::NAMES {
            let route: Result<Route, _> = serde_json::from_value(name.into());
            assert_eq!(route.map(Route::name).ok(), Some(name));
        }
    }

    fn table(rules: &[(&str, Route)]) -> RouteTable {
        let rules: Vec<_> = rules
            .iter()
            .map(|&(glob, route)| RouteRule {
                glob: glob.to_owned(),
                route,
            })
            .collect();
        RouteTable::new(Route::Auto, &rules).unwrap()
    }

    #[test]
    fn the_first_match_wins() {
        let table = table(&[
            ("*.log", Route::Kernel),
            ("/scratch/keep/**", Route::Scrap),
            ("/scratch/**", Route::Direct),
            ("/data/*.bin", Route::Threshold),
        ]);
        let cases = [
            ("/scratch/a.log", Route::Kernel),
            ("/scratch/keep/x/y", Route::Scrap),
            ("/scratch/x/y", Route::Direct),
            ("/data/a.bin", Route::Threshold),
            ("/data/deep/a.bin", Route::Auto),
            ("/home/x", Route::Auto),
        ];
        for (path, route) in cases {
            assert_eq!(table.route_of(Path::new(path)), route, "{path}");
        }
    }

    #[test]
    fn a_broken_pattern_is_named() {
        for glob in ["/a/[", "a/*.log"] {
            let rule = RouteRule {
                glob: glob.to_owned(),
                route: Route::Auto,
            };
            let error = RouteTable::new(Route::Auto, &[rule]).unwrap_err();
            assert!(error.to_string().contains(glob), "{error}");
        }
    }
}

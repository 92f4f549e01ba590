//! Routes by path: a list of (glob, route name), of which the first that matches decides.
//!
//! Not from a paper: WSBuffer has one threshold for everything (3.3). But checkpoints and logs of
//! one program may want different routes, and their names tell them apart.
//!
//! Globs are matched against whole absolute paths: `*` and `?` stay within one component, `**`
//! crosses them, `{a,b}` and `[a-z]` are alternatives, and case counts. A glob without a slash is a name
//! in any directory; any other must begin with `/`, `**/` or `{`: one that could never match is an
//! error, not a rule that silently does nothing. Paths need not be UTF-8: a byte that is part of no character counts as one.
//! Globs are compiled where the configuration checks them, `config::routes`.
//!
//! Asked once for each open file, not for each request; matching allocates. Symbolic links and `..`
//! are not resolved here, and a file with several names has the route of the name it was opened by.

use std::path::Path;
use std::sync::Arc;

use crate::config::glob::Glob;
use crate::config::routes;

use super::{Route, RouteOptions, UnknownRoute, by_name};

/// A rule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// The glob is not one.
    #[error("the glob {glob:?} cannot be read: {reason}")]
    Syntax {
        /// The glob as given.
        glob: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The glob's route does not exist.
    #[error("the glob {glob:?} asks for a route that is not there: {source}")]
    Route {
        /// The glob as given.
        glob: String,
        /// The name and the ones that exist.
        source: UnknownRoute,
    },
}

/// Compiled rules, in the order given.
#[derive(Debug, Default)]
pub struct Overrides {
    rules: Vec<(Glob, Arc<dyn Route>)>,
}

impl Overrides {
    /// Compiles (glob, route name) rules. The first bad rule is the error, and names its glob.
    pub fn compile<G, N>(rules: &[(G, N)], options: &RouteOptions) -> Result<Self, GlobError>
    where
        G: AsRef<str>,
        N: AsRef<str>,
    {
        let rules = rules.iter().map(|(glob, name)| {
            let (glob, name) = (glob.as_ref(), name.as_ref());
            Ok((
                compile_glob(glob)?,
                Arc::from(route_of(glob, name, options)?),
            ))
        });
        Ok(Overrides {
            rules: rules.collect::<Result<_, _>>()?,
        })
    }

    /// The route of the first rule that matches an absolute path; `None` where none does, and for
    /// relative paths.
    pub fn route_for(&self, path: &Path) -> Option<&Arc<dyn Route>> {
        if !path.is_absolute() {
            return None;
        }
        let first = self.rules.iter().find(|(glob, _)| glob.is_match(path));
        first.map(|(_, route)| route)
    }

    /// Number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// No rules: every file has the default route.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

fn compile_glob(glob: &str) -> Result<Glob, GlobError> {
    routes::compile_glob(glob).map_err(|reason| GlobError::Syntax {
        glob: glob.to_owned(),
        reason,
    })
}

fn route_of(glob: &str, name: &str, options: &RouteOptions) -> Result<Box<dyn Route>, GlobError> {
    by_name(name, options).map_err(|source| GlobError::Route {
        glob: glob.to_owned(),
        source,
    })
}

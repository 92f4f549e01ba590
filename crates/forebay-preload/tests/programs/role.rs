//! What this program is when it has been started again under the library.

use std::path::PathBuf;

/// The role, what it is given, and where its files are.
pub const ROLE: &str = "FOREBAY__TEST_ROLE";
pub const ARGUMENT: &str = "FOREBAY__TEST_ARGUMENT";
pub const DIR: &str = "FOREBAY__TEST_DIR";

/// Plays the role; without one, a test that has nothing to do.
#[test]
fn run() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let argument = std::env::var(ARGUMENT).unwrap_or_default();
    let dir = PathBuf::from(std::env::var_os(DIR).expect("a directory"));
    let role = role.as_str();
    let played = crate::model::play(role, &argument, &dir)
        || crate::appends::play(role, &argument, &dir)
        || crate::attributes::play(role, &argument, &dir)
        || crate::begins::play(role, &argument, &dir)
        || crate::closing::play(role, &argument, &dir)
        || crate::deaths::play(role, &argument, &dir)
        || crate::finished::play(role, &argument, &dir)
        || crate::forks::play(role, &argument, &dir)
        || crate::full::play(role, &argument, &dir)
        || crate::hints::play(role, &argument, &dir)
        || crate::idle::play(role, &argument, &dir)
        || crate::leaving::play(role, &argument, &dir)
        || crate::taken_back::play(role, &argument, &dir)
        || crate::many::play(role, &argument, &dir)
        || crate::marks::play(role, &argument, &dir)
        || crate::names::play(role, &argument, &dir)
        || crate::numbers::play(role, &argument, &dir)
        || crate::outsiders::play(role, &argument, &dir)
        || crate::overflow::play(role, &argument, &dir)
        || crate::own_tables::play(role, &argument, &dir)
        || crate::parting::play(role, &argument, &dir)
        || crate::past::play(role, &argument, &dir)
        || crate::reached::play(role, &argument, &dir)
        || crate::replaced::play(role, &argument, &dir)
        || crate::rights::play(role, &argument, &dir)
        || crate::room::play(role, &argument, &dir)
        || crate::rotated::play(role, &argument, &dir)
        || crate::closed::play(role, &argument, &dir)
        || crate::sharing::play(role, &argument, &dir)
        || crate::sizes::play(role, &argument, &dir)
        || crate::slow::play(role, &argument, &dir)
        || crate::switches::play(role, &argument, &dir)
        || crate::spawned::play(role, &argument, &dir)
        || crate::stalls::play(role, &argument, &dir)
        || crate::sparse::play(role, &argument, &dir)
        || crate::synced::play(role, &argument, &dir)
        || crate::syncs::play(role, &argument, &dir)
        || crate::standard::play(role, &argument, &dir)
        || crate::stops::play(role, &argument, &dir)
        || crate::stripes::play(role, &argument, &dir)
        || crate::threads::play(role, &argument, &dir)
        || crate::untold::play(role, &argument, &dir);
    #[cfg(feature = "sim")]
    let played = played || crate::faults::play(role, &argument, &dir);
    assert!(played, "there is no role {role}");
}

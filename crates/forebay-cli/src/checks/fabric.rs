//! What libfabric offers for pools.

use forebay_pool::fabric::{Provider, offered};

use super::Check;

const WHY: &str = "it can move the bytes of pools (docs/pool.md); no pool needs it";

/// Which providers there are, and how much memory those may lock that want to.
pub fn all() -> Vec<Check> {
    let offered = match offered() {
        Ok(offered) => offered,
        Err(why) => {
            let found = format!("not there: {why}");
            return vec![Check::ok("fabric", WHY, found)];
        }
    };
    let is_there = |wanted: Provider| {
        let mut all = offered.providers.iter();
        all.any(|(provider, is_there)| *provider == wanted && is_there.is_ok())
    };
    let names: Vec<&str> = { Provider::ALL.into_iter() }
        .filter(|provider| is_there(*provider))
        .map(Provider::name)
        .collect();
    let (major, minor) = offered.version;
    let found = format!("libfabric {major}.{minor}: {}", names.join(", "));
    let check = Check::ok("fabric", WHY, found);
    if !is_there(Provider::Verbs) {
        return vec![check];
    }
    vec![check, memory()]
}

/// Adapters read and write memory that is locked.
fn memory() -> Check {
    const WHY: &str = "verbs locks the memory that it moves, up to some MiB for each connection";
    const ENOUGH: u64 = 64 << 20;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match limit {
        Some(bytes) if bytes < ENOUGH => {
            let found = format!("RLIMIT_MEMLOCK is {} KiB", bytes >> 10);
            let check = Check::ok("fabric-memory", WHY, found);
            check.warn("raise it: LimitMEMLOCK= in the unit, or `memlock` in limits.conf")
        }
        Some(bytes) => {
            let found = format!("RLIMIT_MEMLOCK is {} MiB", bytes >> 20);
            Check::ok("fabric-memory", WHY, found)
        }
        None => Check::ok("fabric-memory", WHY, "RLIMIT_MEMLOCK is unlimited"),
    }
}

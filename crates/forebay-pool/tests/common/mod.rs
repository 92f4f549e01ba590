//! What tests of pools share: addresses, and how long they wait.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use forebay_model::skipped;
use forebay_pool::fabric::offered;
use forebay_pool::net::Config;

/// Nothing takes so long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses that no other process uses: loopback has sixteen million, and a part of them is this process's number.
pub fn addresses(count: u16) -> Vec<SocketAddr> {
    // A program may have this module several times.
    static PORT: AtomicU16 = AtomicU16::new(7400 + 100 * module_path!().len() as u16);
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x40, c, d);
    let first = PORT.fetch_add(count, Ordering::Relaxed);
    { first..first + count }
        .map(|port| SocketAddr::from((host, port)))
        .collect()
}

/// The same pool with blocks that are lent by what the test program is called by (`pool_by_...`); else as it is.
#[allow(dead_code, reason = "not all tests that have this module want it")]
pub fn by_fabric(config: Config) -> Config {
    let program = std::env::current_exe().unwrap();
    let name = program.file_name().unwrap().to_string_lossy().into_owned();
    let Some(rest) = name.strip_prefix("pool_by_") else {
        return config;
    };
    let way = rest.split('-').next().unwrap_or_default();
    if let Err(why) = offered() {
        skipped(format!("{why} (scripts/install-test-deps.sh does it)"));
        return config;
    }
    Config {
        fabric: toml::Value::from(way).try_into().unwrap(),
        fabric_trusted: true,
        ..config
    }
}

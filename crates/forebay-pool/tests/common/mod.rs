//! What tests of pools share: addresses, and how long they wait.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

/// Nothing takes so long, however busy the machine is.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Addresses that no other process uses: loopback has sixteen million, and a part of them is this process's number.
pub fn addresses(count: u16) -> Vec<SocketAddr> {
    static PORT: AtomicU16 = AtomicU16::new(7400);
    let [a, b, c, d] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, (a ^ b) | 0x40, c, d);
    let first = PORT.fetch_add(count, Ordering::Relaxed);
    { first..first + count }
        .map(|port| SocketAddr::from((host, port)))
        .collect()
}

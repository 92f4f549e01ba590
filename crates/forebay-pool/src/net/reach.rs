//! How a client reads past servers: an endpoint for each of them, made when it is first used.
//!
//! Whatever fails goes by messages, and so does all else for a while: an endpoint that somebody has not answered may answer nobody (`shm`), and one
//! whose connection has ended makes another (`tcp`). The more often one fails, the longer it is left alone.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::process::locked;
use crate::fabric::{Fabric, Peer};
use crate::ids::Server;
use crate::loans::{Endpoint, LIMIT};
use crate::located::Wanted;

/// How long a server's endpoint is left alone when it has failed once, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// This side of a server's endpoint.
struct Open {
    fabric: Fabric,
    peer: Peer,
}

/// A server's endpoint, as this client sees it.
#[derive(Default)]
struct Way {
    endpoint: Option<Endpoint>,
    open: Option<Arc<Open>>,
    /// How often it has failed one after the other, and until when it is left alone.
    failures: u32,
    rests_until: Option<Instant>,
}

/// All of them.
pub(super) struct Reach {
    servers: Vec<SocketAddr>,
    limit: Duration,
    ways: Mutex<BTreeMap<Server, Arc<Mutex<Way>>>>,
    reads: AtomicU64,
    failures: AtomicU64,
}

impl Reach {
    /// To the servers of this list. What an operation reads so takes a quarter of a term at most: others may wait for what it keeps.
    pub fn to(servers: &[SocketAddr], term: Duration) -> Reach {
        Reach {
            servers: servers.to_vec(),
            limit: LIMIT.min(term / 4),
            ways: Mutex::default(),
            reads: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Requests that were read past servers, and those that were tried and went by messages.
    pub fn counts(&self) -> (u64, u64) {
        let [reads, failures] = [&self.reads, &self.failures];
        (
            reads.load(Ordering::Relaxed),
            failures.load(Ordering::Relaxed),
        )
    }

    /// Until when an operation that begins now reads past servers.
    pub fn until(&self) -> Instant {
        Instant::now() + self.limit
    }

    /// Reads what is wanted; nothing if it is to go by messages.
    pub fn read(&self, wanted: &Wanted, until: Instant) -> Option<Vec<u8>> {
        let way = Arc::clone(locked(&self.ways).entry(wanted.server).or_default());
        let open = self.open(&way, wanted)?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let parts = wanted.parts.iter().filter(|part| part.2 > 0);
        let parts = parts.copied().collect();
        let read = open.fabric.gather(&open.peer, parts, left);
        match read {
            // The server keeps for a while what has ended since. What has come after that may be anything.
            Ok(bytes) if Instant::now() < until => {
                locked(&way).failures = 0;
                self.reads.fetch_add(1, Ordering::Relaxed);
                Some(bytes)
            }
            _ => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                locked(&way).fails(&open);
                None
            }
        }
    }

    /// This side of a server's endpoint, a new one if need be.
    fn open(&self, way: &Mutex<Way>, wanted: &Wanted) -> Option<Arc<Open>> {
        // Who comes while another one makes it does not wait for that.
        let mut way = way.try_lock().ok()?;
        if way.endpoint.as_ref() != Some(&wanted.endpoint) {
            *way = Way {
                endpoint: Some(wanted.endpoint.clone()),
                ..Way::default()
            };
        }
        if way.rests_until.is_some_and(|until| Instant::now() < until) {
            return None;
        }
        if way.open.is_none() {
            let made = Open::to(&wanted.endpoint, self.address_of(wanted.server));
            match made {
                Some(open) => way.open = Some(Arc::new(open)),
                None => way.rest(),
            }
        }
        way.open.clone()
    }

    /// Numbers of servers go round in the list.
    fn address_of(&self, server: Server) -> Option<SocketAddr> {
        let index = server.0.checked_sub(1)? as usize % self.servers.len().max(1);
        self.servers.get(index).copied()
    }
}

impl Way {
    fn fails(&mut self, with: &Arc<Open>) {
        // Another thread may have met the same, and there may be a new one.
        if let Some(open) = &self.open
            && Arc::ptr_eq(open, with)
        {
            self.open = None;
            self.rest();
        }
    }

    fn rest(&mut self) {
        let pause = PAUSES.0 * 2_u32.pow(self.failures.min(10));
        self.failures += 1;
        self.rests_until = Some(Instant::now() + pause.min(PAUSES.1));
    }
}

impl Open {
    fn to(endpoint: &Endpoint, server: Option<SocketAddr>) -> Option<Open> {
        let fabric = Fabric::open(endpoint.provider, server.and_then(own_address)).ok()?;
        let peer = fabric.peer(&endpoint.address).ok()?;
        Some(Open { fabric, peer })
    }
}

/// By which address of its own this host reaches another: nothing is sent for that.
fn own_address(other: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match other {
        SocketAddr::V4(_) => [0; 4].into(),
        SocketAddr::V6(_) => [0; 16].into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(other).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

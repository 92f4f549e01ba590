//! Bytes of a connection's messages by libfabric: the messages go by the connection, and say by which keys their bytes are to be had.
//!
//! The sender lends the bytes, each message's by keys of its own, and the receiver reads them into memory of his own before anything is done with the
//! message. Then he says so, and the keys are good no more. Nobody writes into another one's memory: what a member that was given up has sent is refused
//! as without a fabric, by the key of its epoch, and lands nowhere. Whatever fails ends the connection, and is sent again on the next one.
//!
//! Each connection has endpoints of its own: one that has failed harms no other.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::link::{hear, say};
use super::stream::Stream;
use super::{Config, Ended};
use crate::fabric::{Error, Fabric, Key, Peer, Provider, Region, offered};
use crate::wire::{Lend, Take};

/// Connections of a process that have failed by their fabric, one after the other, before it does without.
const FAILURES_MAX: u32 = 3;

/// What moves the bytes of blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// The connection.
    #[default]
    None,
    /// `shm` on one host, else `verbs` if both sides have it, else the connection.
    Auto,
    /// libfabric, by sockets.
    Tcp,
    /// libfabric, by shared memory: all on one host.
    Shm,
    /// libfabric, by InfiniBand, RoCE or iWARP.
    Verbs,
}

impl Way {
    /// The provider for a connection that has this address on this host.
    fn provider(self, at: IpAddr) -> Option<Provider> {
        match self {
            Way::None => None,
            Way::Auto if at.is_loopback() => Some(Provider::Shm),
            Way::Auto | Way::Verbs => Some(Provider::Verbs),
            Way::Tcp => Some(Provider::Tcp),
            Way::Shm => Some(Provider::Shm),
        }
    }

    /// Whether this host has what it names.
    pub(super) fn check(self) -> Result<(), Ended> {
        let wanted = match self {
            Way::None | Way::Auto => return Ok(()),
            Way::Tcp => Provider::Tcp,
            Way::Shm => Provider::Shm,
            Way::Verbs => Provider::Verbs,
        };
        let all = offered().map_err(Ended::Fabric)?.providers.into_iter();
        let found =
            { all }.find_map(|(provider, is_there)| (provider == wanted).then_some(is_there));
        found.unwrap_or(Ok(())).map_err(Ended::Fabric)
    }
}

/// How a process's connections move bytes.
#[derive(Clone)]
pub(super) struct Moving {
    way: Way,
    from: u64,
    limit: Duration,
    failures: Arc<AtomicU32>,
    /// Bytes that have come.
    taken: Arc<AtomicU64>,
}

/// What one side of a connection says: its endpoint, if it has one.
type Offer = Option<(Provider, Vec<u8>)>;

impl Moving {
    pub fn of(config: &Config) -> Moving {
        Moving {
            way: config.fabric,
            from: config.fabric_from,
            // Who does not answer for so long is given up soon.
            limit: Duration::from_millis(config.term_ms / 2),
            failures: Arc::default(),
            taken: Arc::default(),
        }
    }

    /// Bytes that have come by a fabric since the process began.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Agrees with the other side on a new connection: both say what they have.
    pub fn agree(&self, stream: &mut Stream) -> io::Result<Option<Arc<Mover>>> {
        let at = stream.local_address()?;
        let may = self.failures.load(Ordering::Relaxed) < FAILURES_MAX;
        let provider = self.way.provider(at).filter(|_| may);
        // What cannot be had now is done without; what was never there was told when the process began.
        let fabric = provider.and_then(|provider| Fabric::open(provider, Some(at)).ok());
        let own: Offer = { fabric.as_ref() }.map(|own| (own.provider(), own.address().to_vec()));
        say(stream, &own)?;
        let theirs: Offer = hear(stream)?;
        let (Some(fabric), Some((provider, address))) = (fabric, theirs) else {
            return Ok(None);
        };
        if provider != fabric.provider() {
            return Ok(None);
        }
        let peer = fabric.peer(&address).map_err(|why| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            io::Error::other(why)
        })?;
        Ok(Some(Arc::new(Mover {
            fabric,
            peer,
            lent: Mutex::default(),
            tickets: AtomicU64::new(1),
            moving: self.clone(),
        })))
    }
}

/// A connection's part in libfabric.
pub(super) struct Mover {
    // Regions go before the endpoint does.
    lent: Mutex<BTreeMap<u64, Vec<Region>>>,
    fabric: Fabric,
    peer: Peer,
    tickets: AtomicU64,
    moving: Moving,
}

impl Mover {
    fn lend_all(&self, pieces: &[&Bytes]) -> Result<(u64, Vec<Key>), Error> {
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        let lent: Vec<_> = pieces
            .map(|piece| self.fabric.register(Bytes::clone(piece)))
            .collect::<Result<_, _>>()?;
        let (regions, keys) = lent.into_iter().unzip();
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let mut all = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(ticket, regions);
        Ok((ticket, keys))
    }

    /// The other side has read what this ticket was for.
    pub fn taken(&self, ticket: u64) {
        let mut all = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        all.remove(&ticket);
    }
}

impl Lend for Mover {
    fn lend(&self, pieces: &[&Bytes]) -> Option<(u64, Vec<Key>)> {
        let all: usize = pieces.iter().map(|piece| piece.len()).sum();
        if all == 0 || (all as u64) < self.moving.from {
            return None;
        }
        // There may be no room; the connection takes them then.
        self.lend_all(pieces).ok()
    }
}

impl Take for Mover {
    fn take(&self, keys: &[Key], is_one: bool) -> io::Result<Vec<Bytes>> {
        let wanted = keys.iter().map(|key| (*key, 0, key.len() as usize));
        let (peer, limit) = (&self.peer, self.moving.limit);
        let taken = if is_one {
            let taken = self.fabric.gather(peer, wanted.collect(), limit);
            taken.map(|bytes| vec![bytes.into()])
        } else {
            let wanted = wanted.map(|(key, at, length)| (key, at, vec![0; length]));
            let taken = self.fabric.read_all(peer, wanted.collect(), limit);
            taken.map(|all| all.into_iter().map(Bytes::from).collect())
        };
        let failures = &self.moving.failures;
        match taken {
            Ok(bytes) => {
                failures.store(0, Ordering::Relaxed);
                let count = bytes.iter().map(|piece: &Bytes| piece.len() as u64).sum();
                self.moving.taken.fetch_add(count, Ordering::Relaxed);
                Ok(bytes)
            }
            Err(why) => {
                failures.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::other(why))
            }
        }
    }
}

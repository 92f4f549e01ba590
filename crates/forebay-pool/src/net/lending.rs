//! What lends a server's blocks: memory that libfabric lets others read.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;

use super::process::locked;
use crate::fabric::{Error, Fabric, Provider, Region};
use crate::loans::{Endpoint, KEPT, Lender, Lent, Loan};

/// Blocks that are lent at once. Providers find each by its key.
const LOANS_MAX: usize = 1 << 16;

/// Bytes of loans that have ended, beyond which nothing new is lent for a while.
const ENDED_MAX: usize = if cfg!(test) { 1 << 20 } else { 256 << 20 };

/// What loans that have ended leave: their bytes stay as they are for a while, and when they ended.
#[derive(Default)]
struct Ended {
    all: VecDeque<(Instant, Bytes)>,
    bytes: usize,
}

/// A loan of these bytes.
struct Open {
    region: Option<Region>,
    bytes: Bytes,
    ended: Arc<Mutex<Ended>>,
    open: Arc<AtomicUsize>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // The key opens nothing any more after this.
        self.region = None;
        self.open.fetch_sub(1, Ordering::Relaxed);
        let mut ended = locked(&self.ended);
        ended.bytes += self.bytes.len();
        let bytes = std::mem::take(&mut self.bytes);
        ended.all.push_back((Instant::now(), bytes));
    }
}

/// A server's endpoint.
pub(super) struct Lending {
    fabric: Fabric,
    open: Arc<AtomicUsize>,
    ended: Arc<Mutex<Ended>>,
}

impl Lending {
    /// An endpoint at this address of the host's.
    pub fn begin(provider: Provider, at: IpAddr) -> Result<Lending, Error> {
        Ok(Lending {
            fabric: Fabric::open(provider, Some(at))?,
            open: Arc::default(),
            ended: Arc::default(),
        })
    }
}

impl fmt::Debug for Lending {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut to = to.debug_struct("Lending");
        to.field("endpoint", &self.endpoint())
            .finish_non_exhaustive()
    }
}

impl Lender for Lending {
    fn endpoint(&self) -> Endpoint {
        Endpoint {
            provider: self.fabric.provider(),
            address: self.fabric.address().to_vec(),
        }
    }

    fn lend(&self, bytes: Bytes) -> Option<(Loan, Lent)> {
        self.tidy();
        let is_full = locked(&self.ended).bytes > ENDED_MAX;
        if is_full || self.open.load(Ordering::Relaxed) >= LOANS_MAX {
            return None;
        }
        // Where there is no room for more the block is read by messages.
        let (region, lent) = self.fabric.register(bytes.clone()).ok()?;
        self.open.fetch_add(1, Ordering::Relaxed);
        let loan = Open {
            region: Some(region),
            bytes,
            ended: Arc::clone(&self.ended),
            open: Arc::clone(&self.open),
        };
        Some((Arc::new(loan), lent))
    }

    fn tidy(&self) {
        let mut ended = locked(&self.ended);
        while let Some((at, bytes)) = ended.all.front()
            && at.elapsed() > KEPT
        {
            ended.bytes -= bytes.len();
            ended.all.pop_front();
        }
    }
}

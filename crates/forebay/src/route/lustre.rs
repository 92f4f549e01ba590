//! `lustre`: the AutoIO rule, as WSBuffer implements it to compare with (4.1 and 4.2, XFS-AutoIO).
//!
//! All or nothing: a request that is long enough and aligned goes to the device whole, any other is
//! buffered whole, which in the paper's baseline means by the kernel's page cache. So it pays
//! read-before-write for ragged requests of any length, which is what the comparison is to show.
//!
//! Left out: Lustre's own inputs of lock contention and memory limits, which the paper's copy
//! leaves out too. Changed: the paper makes long unaligned requests fit by reading the missing ends
//! first; here a direct part is whole blocks without exception, so they are buffered.

use super::{Plan, Route, Situation, Way, WriteRequest};
use crate::limits::BLOCK_BYTES;

/// The rule with its threshold.
#[derive(Clone, Copy, Debug)]
pub struct Lustre {
    direct_bytes_min: u64,
    buffered: Way,
}

impl Lustre {
    /// Sends aligned requests of at least `direct_bytes_min` bytes to the device, others to the
    /// kernel's page cache.
    pub fn new(direct_bytes_min: u64) -> Self {
        Lustre {
            direct_bytes_min,
            buffered: Way::Kernel,
        }
    }

    /// The same rule over the engine's own memory instead of the kernel's page cache: what AutoIO
    /// would gain from scrap pages alone.
    pub fn over_scrap(direct_bytes_min: u64) -> Self {
        Lustre {
            direct_bytes_min,
            buffered: Way::SCRAP,
        }
    }

    fn fits_device(&self, request: &WriteRequest) -> bool {
        let block = BLOCK_BYTES as u64;
        request.len >= self.direct_bytes_min
            && request.memory_aligned
            && request.offset.is_multiple_of(block)
            && request.len.is_multiple_of(block)
    }
}

impl Route for Lustre {
    fn name(&self) -> &'static str {
        "lustre"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        let way = if self.fits_device(request) {
            Way::Direct
        } else {
            self.buffered
        };
        Plan::whole(request, way)
    }

    fn quick_scrap_below(&self) -> u64 {
        match self.buffered {
            Way::Scrap { eager: false } => self.direct_bytes_min,
            _ => 0,
        }
    }
}

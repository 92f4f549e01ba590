//! `threshold`: WSBuffer's own rule (section 3.3, Algorithm 1).
//!
//! A request shorter than the threshold goes to memory. A longer one is split: whole blocks to the
//! device, ragged ends to memory. The paper's threshold is 1 MiB, the size from which its devices
//! beat its scrap buffer; a higher one buffers more (Table 4). The situation plays no part, which is
//! what `auto` adds.
//!
//! A long request that holds no whole block (possible with a threshold under 512 KiB) goes to memory
//! whole. Nothing is flushed eagerly: the paper leaves flushing to OTflush (3.4).

use super::{Plan, Route, Situation, Way, WriteRequest};

/// The rule with its threshold.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    direct_bytes_min: u64,
}

impl Threshold {
    /// Splits requests of at least `direct_bytes_min` bytes.
    pub fn new(direct_bytes_min: u64) -> Self {
        Threshold { direct_bytes_min }
    }
}

impl Route for Threshold {
    fn name(&self) -> &'static str {
        "threshold"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        let split = if request.len >= self.direct_bytes_min {
            Plan::split(request)
        } else {
            None
        };
        split.unwrap_or_else(|| Plan::whole(request, Way::SCRAP))
    }

    fn quick_scrap_below(&self) -> u64 {
        self.direct_bytes_min
    }
}

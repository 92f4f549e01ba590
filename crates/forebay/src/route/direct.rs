//! `direct`: whatever can go to the device does.
//!
//! Every request that holds a whole block is split as WSBuffer splits long ones (3.3); ragged ends
//! and requests without a whole block go to memory. It is the lower end of the threshold's range in
//! the paper's Table 4 (256 KiB), and the baseline that shows what memory is worth: unlike the
//! paper's XFS-direct (4.2) it never reads before it writes.

use super::{Plan, Route, Situation, Way, WriteRequest};
use crate::limits::BLOCK_BYTES;

/// The rule; it has no settings.
#[derive(Clone, Copy, Debug)]
pub struct Direct;

impl Route for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        Plan::split(request).unwrap_or_else(|| Plan::whole(request, Way::SCRAP))
    }

    fn quick_scrap_below(&self) -> u64 {
        BLOCK_BYTES as u64
    }
}

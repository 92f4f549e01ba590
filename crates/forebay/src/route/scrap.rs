//! `scrap`: everything to memory.
//!
//! The scrap buffer of WSBuffer 3.2 alone, without the direct path of 3.3: the baseline that shows
//! what the device's bandwidth is worth, and the right rule where the device is much slower than
//! memory.
//!
//! Requests of a block and more are flushed eagerly, so that copying overlaps with the device; a
//! shorter one may well be written again before it is worth a device write.

use super::{Plan, Route, Situation, Way, WriteRequest};
use crate::limits::BLOCK_BYTES;

/// The rule; it has no settings.
#[derive(Clone, Copy, Debug)]
pub struct Scrap;

impl Route for Scrap {
    fn name(&self) -> &'static str {
        "scrap"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        Plan::whole(
            request,
            Way::Scrap {
                eager: request.len >= self.quick_scrap_below(),
            },
        )
    }

    fn quick_scrap_below(&self) -> u64 {
        BLOCK_BYTES as u64
    }
}

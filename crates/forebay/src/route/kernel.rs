//! `kernel`: everything by plain system calls.
//!
//! The baseline every other route is compared with, and the way out for files that the engine cannot
//! help (promise 6: never slower than the kernel by more than a tenth). A file whose
//! route this is needs no frames, and a front end may as well put it in kernel mode for good.

use super::{Plan, Route, Situation, Way, WriteRequest};

/// The rule; it has no settings.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Route for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn plan(&self, request: &WriteRequest, _: &Situation) -> Plan {
        Plan::whole(request, Way::Kernel)
    }

    fn quick_scrap_below(&self) -> u64 {
        0
    }
}

//! Blocks that a server lends: others read them where they lie, past its process.
//!
//! What is lent never changes: a block that is written has other bytes, at another place. A loan ends, and its key opens nothing any more, before the
//! server says that the block is another one or goes, and before it looks at anything of another epoch. So a key opens what a message to the server
//! would have brought at that moment, or nothing.
//!
//! Nobody writes that way. A provider that has begun to take bytes for a region goes on with that after the region was closed (`tcp` does), so that
//! a write could land late.

#[cfg(test)]
pub(crate) mod table;

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::fabric::{self, Provider};

/// How long reads past servers may take at most. What comes later does not count, so that the memory behind a loan need not stay for longer.
pub const LIMIT: Duration = Duration::from_millis(500);

/// How long the memory behind a loan stays as it was when the loan has ended: a provider that had found it may still send it. It is twice the time
/// in which anybody believes what comes, since clocks may run at different rates.
pub const KEPT: Duration = Duration::from_millis(1000);

/// By what a lent block is read.
pub type Lent = fabric::Key;

/// Where a server's loans are reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// By what.
    pub provider: Provider,
    /// Its address there.
    pub address: Vec<u8>,
}

/// A loan. It has ended when it has been dropped.
pub type Loan = Arc<dyn Any + Send + Sync>;

/// What lends a server's blocks.
pub trait Lender: Debug + Send + Sync {
    /// Where others reach them.
    fn endpoint(&self) -> Endpoint;

    /// Lends these bytes; nothing if there is no room for more.
    fn lend(&self, bytes: Bytes) -> Option<(Loan, Lent)>;

    /// Time has passed.
    fn tidy(&self) {}
}

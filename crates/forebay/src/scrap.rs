//! Which bytes of a page are in memory: pure logic, no device, no locks.
//!
//! A write lands in a page of memory without reading the page first, so a page can be *ragged*: some
//! of its bytes are in memory and are the newest, the rest are on the device. This is the
//! merge-friendly placement of WSBuffer 3.2. The paper keeps a list of segments for each block; we
//! keep one word for each page ([`PageWord`]), because a word changes with one store and a list does
//! not, and a client may die between any two stores. What one word cannot say, several runs in one
//! page, is said by a bitmap in a small frame of its own ([`ByteMap`]).
//!
//! ```text
//!   none --write--> run --write that touches--> run ... --> whole (the header's `valid` bit)
//!                     `---write elsewhere-----> map ... --> whole
//! ```
//!
//! A map never turns back into a run, even when its bits have grown together: they fill the page
//! soon, or the flush does.
//!
//! [`split`] cuts a request into blocks and pages. Nothing here decides where the bytes lie, and
//! nothing here touches a header; `valid` and `dirty` are words of the header.

pub mod absorb;
pub mod cut;
pub mod give;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod model;
pub mod own;
pub mod split;
#[cfg(test)]
mod tests;

pub use crate::frame::map::{self, ByteMap};
pub use crate::frame::page::{self, Merge, PageWord, Ragged, clip, holes, merge, runs};
pub use split::{PageSpan, Segment, mask, runs_of, segments};

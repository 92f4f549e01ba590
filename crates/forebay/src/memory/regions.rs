//! The owner of each frame, small frame, header and node, and how a free one is found.
//!
//! One owner word each is the truth; taking is one compare-and-swap of it. Bitmaps of free ones are hints
//! beside it: a bit that is wrong costs a look, never a frame, and every rebuild makes them anew. No lock, no list,
//! so a death anywhere leaves at most a thing that is *held* by the dead.
//!
//! ```text
//! arena     regions: a map and a count each, one for each core; huge pages are shared out among them in turn
//!   frame     taken from the own core's region, stolen from the others when that is empty; goes back to its own
//!     carved frame   a word of its free parts; the same, by maps of those that have some
//!       stock          of a file: up to 32 parts of one half of a carved frame, fetched with one access
//! ```
//!
//! Source: StreamCache 4.3 (two-layer memory management), WSBuffer 3.2 (batch allocation of frames). Ours differs in that the
//! lists of free pages are maps without locks, that a frame is 64 pages, and that a stock is of small frames only:
//! `docs/decisions/0014-two-layer-memory.md` has the measurements. Which of this is done is the session's
//! [`Allocator`].

mod allocator;
mod frames;
mod hints;
mod owner;
mod shortage;
mod small;
mod stock;

pub use allocator::Allocator;
pub use frames::{
    FreeFrames, free_frame, link_frame, regions_for, shows_free, take_first_of_run, take_frame,
    take_frame_at, take_run, take_run_at,
};
pub use hints::{FrameHints, Hints, Shares};
pub use owner::Owner;
pub use shortage::{LOW_PARTS, Shortage, URGENT_PARTS, look};
pub use small::{free_small, link_small, small_of, take_small};
pub use stock::{STOCK_HIGH, STOCK_LOW, Stock, give_all_back, halve_all};

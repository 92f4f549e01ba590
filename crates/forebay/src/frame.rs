//! Headers and slots: what is in memory of each block, and how it is found.
//!
//! [`header`] is the truth (states in `docs/states.md`, rights in `docs/locking.md`); [`slots`] is the index. [`page`] and
//! [`map`] say which bytes of one page are in memory; what a write or a read makes of that is `scrap`'s.

pub mod header;
pub mod map;
pub mod page;
pub mod slots;

//! Headers and slots: what is in memory of each block, and how it is found.
//!
//! [`header`] is the truth (states in `docs/states.md`, rights in `docs/locking.md`); [`slots`] is the index.

pub mod header;
pub mod slots;

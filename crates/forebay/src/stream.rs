//! Streams of reads: which they are, and what is to be read ahead of them.
//!
//! [`pattern`] recognises streams among the reads of an open description; it knows nothing of the arena. The words of a file's
//! entry by which readers ask the keeper, and see what it is reading, are `memory::asks`. Asking and waiting are in
//! `file::read`, reading ahead is in `keeper::ahead`.

pub mod pattern;
pub mod tracking;
pub mod tree;

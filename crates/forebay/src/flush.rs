//! Flushing: from owed bytes in memory to bytes on the device (WSBuffer 3.4, OTflush).
//!
//! [`cost`] decides whether a ragged block is filled whole or page by page; [`select`] picks what of a header may go and
//! moves it in flight, [`due`] whether there is any; [`flusher`] keeps requests under way and carries out their ends; [`errors`] remembers
//! failures for those that must hear of them; [`busy`] counts bytes in flight per device and keeps its
//! [`speeds`]; [`limit`] is where writers and flushers meet when too much is owed; [`ring`] carries hints from
//! writers to the keeper. It makes no difference which thread flushes: a keeper's, or a client's that syncs or has hit a limit.

pub mod busy;
pub mod cost;
pub mod due;
pub mod errors;
pub mod flusher;
pub mod limit;
pub mod ring;
pub mod select;
pub mod speeds;

pub use flusher::{Flusher, Outcome, Scope};

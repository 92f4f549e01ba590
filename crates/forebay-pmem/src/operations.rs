//! What the calls of a store do to its state: one function for each, which changes everything or fails.
//!
//! A function that fails may have changed half; whoever called it undoes that ([`State::undo`]).

pub mod attributes;
pub mod bytes;
pub mod files;
pub mod names;
pub mod orphans;

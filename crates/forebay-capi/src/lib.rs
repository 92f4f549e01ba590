//! Forebay's C library.
//!
//! Every function is a few lines over the engine's [`forebay::Session`] and [`forebay::File`]. [`border`] is what all of them pass: errors
//! become -1 or `NULL` with `errno` and a text, panics end there. [`session`], [`mod@file`], [`mod@view`], [`mod@window`], [`mod@pool`], [`mod@store`] and [`stats`] are the functions, and the
//! source of `forebay.h` (`tests/header.rs` makes it). `docs/c.md` is for users.
//!
//! A handle belongs to the process that opened it: a forked child that uses one gets an error ([`forebay::sys::forks`]).

pub mod border;
pub mod file;
pub mod pool;
pub mod session;
pub mod stats;
pub mod store;
pub mod view;
pub mod window;

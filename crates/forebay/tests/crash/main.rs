//! Deaths: whatever a client does, it is killed before each of its shared accesses in turn; somebody else repairs, and
//! everything acknowledged is there, in memory and on the device, and the arena's books balance.
//!
//! Long operations are sampled in everyday runs (a stride, and an offset from a fresh seed that a failure
//! prints; `FOREBAY_SEED` brings it back); the ignored tests try every access.
#![cfg(feature = "sim")]

mod canaries;
#[path = "../common/mod.rs"]
mod common;
mod deaths;
mod repairs;
mod scene;
mod scenes;
mod streams;
mod two;
mod views;
mod windows;

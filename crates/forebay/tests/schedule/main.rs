//! Schedules explored: the engine's threads as coroutines that may switch at every shared access.
//!
//! Everyday runs take a few seconds a scenario; the ones that are ignored take minutes. Seeds are
//! printed; a failing schedule is replayed with `SHUTTLE_RANDOM_SEED`, see [`explore`]. Shuttle is
//! sequentially consistent: what weaker memory may do is reasoned about where orderings are chosen.
#![cfg(feature = "shuttle")]

mod explore;
mod history;
mod stepped;
mod stocks;
mod world;

mod ahead;
mod appends;
mod canaries;
mod deaths;
mod direct;
mod flushing;
mod gates;
mod readers;
mod streams;
mod tables;
mod views;
mod windows;

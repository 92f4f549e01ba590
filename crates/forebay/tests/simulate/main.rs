//! Whole sessions from a seed: clients, a keeper and a device with latencies and errors in one thread, with a clock of their own, dying
//! and coming back (`docs/decisions/0015-simulation.md`).
//!
//! Everyday runs take fixed seeds and some fresh ones; `SOAK_CASES` of them in a soak. A seed that fails is printed with a
//! line that runs it again.
#![cfg(feature = "sim")]

#[path = "../here/mod.rs"]
mod here;

mod audit;
mod canaries;
mod change;
mod client;
mod crowded;
mod everyday;
mod fate;
mod ledger;
mod outsider;
mod promise;
mod scenes;
mod swarm;
mod value;
mod world;

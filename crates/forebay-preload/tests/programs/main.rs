//! Programs under the preload library, against the reference model and directed cases.
//!
//! A program is this test program, started again with the library loaded: the test `role::run` of it, told by its environment
//! what to be. The test itself hosts the session's keeper, is not under the library, and so sees files as outsiders do.

mod appends;
mod attributes;
mod begins;
mod closed;
mod closing;
mod compiled;
mod deaths;
#[path = "../../../forebay/tests/disks/mod.rs"]
mod disks;
mod environments;
#[cfg(feature = "sim")]
mod faults;
mod finished;
mod forks;
mod frozen;
mod full;
#[path = "../../../forebay/tests/here/mod.rs"]
mod here;
mod hints;
mod idle;
mod keepers;
mod leaving;
mod many;
mod marks;
mod model;
mod names;
mod numbers;
mod outsiders;
mod overflow;
mod own_tables;
mod parting;
mod past;
mod raw;
mod reached;
mod relieved;
mod replaced;
mod rights;
mod role;
mod room;
mod rotated;
mod scene;
mod sharing;
mod silence;
mod sizes;
mod slow;
mod sparse;
mod spawned;
mod stalls;
mod standard;
mod stops;
mod stripes;
mod switches;
mod synced;
mod syncs;
mod sys;
mod taken_back;
mod threads;
mod traced;
mod untold;

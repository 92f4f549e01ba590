//! The program `forebay` as its users run it: every command, with its exit codes and its JSON.
//!
//! Every test has a directory of its own for arenas and one for files, and an environment without options, so that
//! nothing of this user's sessions is touched.

mod basics;
mod doctor;
mod evicting;
#[path = "../../../forebay/tests/here/mod.rs"]
mod here;
mod lives;
mod place;
mod pmem;
mod recovery;
mod running;
mod serving;
mod sessions;
mod state;
mod writer;

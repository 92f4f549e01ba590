//! Tests of the whole store, on simulated memory and on files.

mod between;
mod bitmaps;
mod calls;
mod crash;
mod crash_again;
mod damage;
mod damage_blocks;
pub(crate) mod drive;
mod ends;
mod files;
mod files_by_paths;
mod forged;
mod hostile;
mod left_out;
mod limits;
mod model;
mod power;
mod random;
pub(crate) mod sim;
mod turns;
mod watched;
mod zero_copy;

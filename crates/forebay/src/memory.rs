//! The arena's memory: where it lies, how it is mapped, and how much of it there may be.
//!
//! [`place`] finds the best file system for the arena's file and creates it there, [`mapping`] makes
//! it addressable and gives it memory, [`cgroup`] says how much memory this process may use and
//! whether it is running short. All three are asked when a session starts and by the keeper's slow
//! loop; none of them is on the way of a read or a write.

pub mod arena;
pub mod asks;
pub mod cgroup;
pub mod copy;
pub mod files;
pub mod layout;
pub mod mapping;
pub mod pins;
pub mod place;
pub mod regions;
pub mod standers;
pub mod streams;
pub mod superblock;
pub mod threads;

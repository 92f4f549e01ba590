//! The functions behind ours: found once, at start.
//!
//! Until then each pointer leads to a stand-in that makes the raw system call, because other libraries' constructors may run
//! before ours.

//! Mounts: a directory through the engine, for programs that the preload library cannot be loaded into: static ones, containers, whatever makes
//! system calls by itself; a store in persistent memory, and the files of a pool, for all. They are file systems (FUSE) that a process of ours serves.
//!
//! [`mount`] begins and ends one; [`points`] knows what is mounted where, [`ending`] tells who waits for the end of one. `transport` brings the
//! kernel's requests, whose form `wire` knows; `operations` takes them, `replies` answers them, `served` says what a file system has to know for
//! that. `store` is one: a store; `pool` another. `directory` is the third: `names` its directories, `contents` the bytes of files,
//! `changes` modes, owners, times and attributes; `nodes` knows which file a number of the kernel's is, `handles` what is open, `caller` acts as somebody else.
//!
//! What programs see of it, sentence by sentence, is in `docs/mount.md`; why it is done so in
//! `docs/decisions/0030-mount.md` and `docs/decisions/0080-the-kernels-protocol.md`.

mod attributes;
mod caller;
mod changes;
mod contents;
mod directory;
pub mod ending;
mod failed;
mod handles;
pub mod mount;
mod names;
mod nodes;
mod operations;
pub mod points;
mod pool;
mod replies;
mod served;
mod store;
mod transport;
mod wire;

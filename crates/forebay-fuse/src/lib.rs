//! A directory through the engine, for programs that the preload library cannot be loaded into: static ones, containers, whatever makes
//! system calls by itself. They see it as a file system (FUSE) that a process of the session's serves.
//!
//! [`mount`] begins and ends one; [`points`] knows what is mounted where. `directory` is the file system: `names` its
//! directories, `contents` the bytes of files, `changes` modes, owners, times and attributes; `operations` takes the kernel's
//! requests, `replies` answers them.
//! `nodes` knows which file a number of the kernel's is, `handles` what is open, `caller` acts as somebody else.
//!
//! What programs see of it, sentence by sentence, is in `docs/mount.md`; why it is done so in
//! `docs/decisions/0030-mount.md`.

mod caller;
mod changes;
mod contents;
mod directory;
mod failed;
mod handles;
pub mod mount;
mod names;
mod nodes;
mod operations;
pub mod points;
mod replies;

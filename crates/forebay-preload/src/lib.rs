//! `libforebay_preload.so`: interposes libc's calls on files, and answers those on managed files from the engine.
//!
//! Loaded by `forebay run` with `LD_PRELOAD`. [`real`] finds the functions behind ours, [`table`] says what is known of
//! each descriptor, [`files`] manages inodes, [`kernel`] gives them to the kernel, `hooks` are the entry points. The rules that hold
//! in every hook are in `docs/decisions/0010-preload.md`; which call is where is data, in `calls/*.txt`.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
compile_error!("the preload library is for Linux on x86-64 with the GNU C library");

mod alloc;
mod attach;
mod files;
mod foreign;
mod golang;
mod habit;
mod hooks;
mod inodes;
mod inside;
mod kernel;
mod mapped;
mod parting;
mod program;
mod rare;
mod raw;
mod real;
mod serve;
mod signals;
mod streams;
mod symbols;
mod table;
mod unwind;

#[global_allocator]
static ALLOCATOR: alloc::Allocator = alloc::Allocator::new();

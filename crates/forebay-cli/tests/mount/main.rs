//! `forebay mount` as its users have it: the sentences of `docs/mount.md`. The mount is served by the program itself, in a process of its own;
//! what uses it are calls of these tests, and other programs.

mod aio;
mod bytes;
mod cached;
mod damaged;
mod deaths;
mod ends;
mod follow;
#[path = "../../../forebay/tests/here/mod.rs"]
mod here;
mod model;
mod nameless;
mod names;
mod past;
#[path = "../cli/place.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod place;
mod pool_trouble;
mod pools;
mod races;
mod scene;
mod shared;
mod stores;
mod together;
mod users;

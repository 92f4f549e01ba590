//! The engine against the reference model on real files and a real arena, with a keeper at work beside it.
//!
//! Runs in every directory that `FOREBAY_TEST_DIRS` names (separated by colons), or in a temporary one. Where the file
//! system cannot be managed the kernel serves the files, and the results are the same.
#![cfg(feature = "sim")]

mod common;
mod here;

use std::time::Duration;

use common::{Engine, Store};
use forebay::{Config, Session};
use forebay_model::{Profile, drive, generate};
use here::directories;

fn config(name: &str) -> Config {
    let mut config = Config::builder().build().expect("defaults");
    config.manage_stores = true;
    config.memory = 32 << 20;
    config.dirty_bytes_max = 16 << 20;
    config.dirty_background = 4 << 20;
    config.flush_after = Some(Duration::from_millis(5));
    config.flush_interval = Some(Duration::from_millis(20));
    config.session = format!("test-{name}-{}", std::process::id());
    config
}

fn drive_in_every_directory(
    name: &str,
    seeds: std::ops::Range<u64>,
    profile: &Profile,
    count: usize,
) {
    let session = Session::open(config(name)).expect("a session");
    for dir in directories() {
        for seed in here::seeds(seeds.clone(), 2) {
            let ops = generate(seed, profile, count);
            let store = Store::Dir(dir.path().join(seed.to_string()));
            std::fs::create_dir(dir.path().join(seed.to_string())).expect("a directory");
            let mut engine = Engine::over(session.clone(), store, 3, 2);
            if let Err(mismatch) = drive(&ops, &mut engine) {
                panic!(
                    "{} FOREBAY_TEST_SEED={seed}: {mismatch}",
                    dir.path().display()
                );
            }
        }
    }
}

#[test]
fn small_operations_on_real_files() {
    drive_in_every_directory("small", 0..20, &Profile::TINY, 200);
}

#[test]
fn large_operations_on_real_files() {
    drive_in_every_directory("large", 0..10, &Profile::LARGE, 60);
}

#[test]
fn sparse_operations_on_real_files() {
    drive_in_every_directory("sparse", 0..10, &Profile::SPARSE, 100);
}

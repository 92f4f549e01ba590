//! `price.c` in Rust: what a call of 4 KiB costs through the engine's own API, in memory.
//!
//!     cargo run --release -p forebay-capi --example price -- DIR

use std::time::Instant;

use forebay::{Config, OpenOptions, Session};

const PAGE: usize = 4096;
const PAGES: u64 = 4096;
const ROUNDS: u64 = 25;
const RUNS: usize = 9;

fn price(what: &str, mut call: impl FnMut(u64) -> forebay::Result<usize>) -> forebay::Result<()> {
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        for i in 0..PAGES * ROUNDS {
            let n = call(i * 1103 % PAGES * PAGE as u64)?;
            assert_eq!(n, PAGE);
        }
        runs.push(begun.elapsed().as_nanos() as u64 / (PAGES * ROUNDS));
    }
    runs.sort_unstable();
    let (middle, first, last) = (runs[RUNS / 2], runs[0], runs[RUNS - 1]);
    println!("{what:<16} {middle:6} ns ({first} to {last})");
    Ok(())
}

fn main() -> forebay::Result<()> {
    let dir = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let mut options = forebay::config::Options::default();
    options.set("session", "price")?;
    let session = Session::open(Config::load_with(options)?)?;
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(true);
    let file = session.open_file(format!("{dir}/managed"), &how)?;
    let mut bytes = [0; PAGE];
    for i in 0..PAGES {
        file.write_at(&bytes, i * PAGE as u64)?;
    }
    price("File::read_at", |at| file.read_at(&mut bytes, at))?;
    price("File::write_at", |at| file.write_at(&bytes, at))?;
    file.close()
}

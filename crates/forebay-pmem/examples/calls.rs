//! Times a store's calls by its API: `calls STORE`. Prints a name and nanoseconds per call, line by line, for the same work in the same
//! order as `bench/programs/mounted.c` does it by system calls; `bench/programs/mounted-store.sh` sets the two side by side.
//!
//! The store is one that `forebay pmem create` has made and that nobody has open. What is read and written has been written once before.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use forebay_pmem::{Creator, OnExisting, OpenOptions, ROOT, Store};

const FILES: u32 = 10_000;
const BYTES: usize = 64 << 20;
const PIECE: usize = 2 << 20;

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Done {
    let path = std::env::args_os().nth(1).ok_or("calls STORE")?;
    let store = Store::open(Path::new(&path), OpenOptions::default())?;
    bytes(&store)?;
    names(&store)?;
    store.close()?;
    Ok(())
}

fn by(mode: u32) -> Creator {
    Creator {
        mode,
        uid: 0,
        gid: 0,
    }
}

/// Does a call so often, and prints what one took.
fn time(name: &str, calls: usize, mut call: impl FnMut(usize) -> Done) -> Done {
    let begun = Instant::now();
    for number in 0..calls {
        call(number)?;
    }
    println!("{name} {}", begun.elapsed().as_nanos() / calls as u128);
    Ok(())
}

fn bytes(store: &Store) -> Done {
    let file = store.create(ROOT, b"file", by(0o644))?.inode;
    let mut memory = vec![b'x'; PIECE];
    for at in (0..BYTES).step_by(PIECE) {
        store.write(file, at as u64, &memory)?;
    }
    store.sync()?;
    for (size, of) in [(4 << 10, "4KiB"), (64 << 10, "64KiB"), (PIECE, "2MiB")] {
        let memory = &mut memory[..size];
        let calls = BYTES / size / if size < 64 << 10 { 4 } else { 1 };
        time(&format!("write_{of}"), calls, |number| {
            whole(store.write(file, (number * size) as u64, memory)?, size)
        })?;
        time(&format!("read_{of}"), calls, |number| {
            whole(store.read(file, (number * size) as u64, memory)?, size)
        })?;
    }
    store.sync()?;
    for (size, calls, of) in [(4 << 10, 200, "4KiB"), (1 << 20, 20, "1MiB")] {
        time(&format!("write_{of}_fsync"), calls, |number| {
            let at = (number * size) as u64;
            whole(store.write(file, at, &memory[..size])?, size)?;
            Ok(store.fsync(file)?)
        })?;
    }
    Ok(store.unlink(ROOT, b"file")?)
}

fn whole(done: usize, asked: usize) -> Done {
    match done == asked {
        true => Ok(()),
        false => Err(format!("{done} of {asked} bytes").into()),
    }
}

fn names(store: &Store) -> Done {
    let directory = store.mkdir(ROOT, b"d", by(0o755))?.inode;
    let name = |number: usize| format!("file{number}").into_bytes();
    let other = |number: usize| format!("other{number}").into_bytes();
    let files = FILES as usize;
    time("create", files, |number| {
        store.create(directory, &name(number), by(0o644))?;
        Ok(())
    })?;
    time("stat", files, |number| {
        store.lookup(directory, &name(number))?;
        Ok(())
    })?;
    time("rename", files, |number| {
        let (from, to) = (name(number), other(number));
        Ok(store.rename(directory, &from, directory, &to, OnExisting::Replace)?)
    })?;
    time("unlink", files, |number| {
        Ok(store.unlink(directory, &other(number))?)
    })?;
    Ok(store.rmdir(ROOT, b"d")?)
}

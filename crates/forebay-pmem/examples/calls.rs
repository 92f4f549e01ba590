//! Times a store's calls by its API: `calls STORE`, with `--zero-copy` those that have views and windows, with `--cold` in a
//! process that has not touched the store's memory before. Prints a name and nanoseconds per call, line by line, for the same work in the same
//! order as `bench/programs/mounted.c` does it by system calls; `bench/programs/mounted-store.sh` sets the two side by side.
//!
//! The store is one that `forebay pmem create` has made and that nobody has open. What is read and written has been written once before.

use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use forebay_pmem::{Creator, OnExisting, OpenOptions, ROOT, Store};

const FILES: u32 = 10_000;
const BYTES: usize = 64 << 20;
const PIECE: usize = 2 << 20;
const SIZES: [(usize, &str); 3] = [(4 << 10, "4KiB"), (64 << 10, "64KiB"), (PIECE, "2MiB")];
const SYNCED: [(usize, usize, &str); 2] = [(4 << 10, 200, "4KiB"), (1 << 20, 20, "1MiB")];

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Done {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("calls STORE [--zero-copy] [--cold]")?;
    let is_asked = |word: &str| std::env::args().any(|other| other == word);
    let is_zero_copy = is_asked("--zero-copy");
    let store = Store::open(Path::new(&path), OpenOptions::default())?;
    if !is_asked("--cold") {
        touch(&store)?;
    }
    let file = store.create(ROOT, b"file", by(0o644))?.inode;
    let mut memory = vec![b'x'; PIECE];
    for at in (0..BYTES).step_by(PIECE) {
        store.write(file, at as u64, &memory)?;
    }
    store.sync()?;
    match is_zero_copy {
        true => zero_copy(&store, file)?,
        false => bytes(&store, file, &mut memory)?,
    }
    store.unlink(ROOT, b"file")?;
    if !is_zero_copy {
        names(&store)?;
    }
    store.close()?;
    Ok(())
}

/// Writes to nearly all of the store's memory: a process faults each of its pages in once in its life.
fn touch(store: &Store) -> Done {
    let file = store.create(ROOT, b"warm", by(0o644))?.inode;
    let pieces = store.statfs().blocks_available / (PIECE as u64 / 4096) * 9 / 10;
    for piece in 0..pieces {
        store.write(file, piece * PIECE as u64, &vec![1; PIECE])?;
    }
    store.unlink(ROOT, b"warm")?;
    Ok(store.sync()?)
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

fn bytes(store: &Store, file: u64, memory: &mut [u8]) -> Done {
    for (size, of) in SIZES {
        let memory = &mut memory[..size];
        time(&format!("write_{of}"), calls(size), |number| {
            whole(store.write(file, (number * size) as u64, memory)?, size)
        })?;
        time(&format!("read_{of}"), calls(size), |number| {
            whole(store.read(file, (number * size) as u64, memory)?, size)
        })?;
    }
    store.sync()?;
    for (size, calls, of) in SYNCED {
        time(&format!("write_{of}_fsync"), calls, |number| {
            let at = (number * size) as u64;
            whole(store.write(file, at, &memory[..size])?, size)?;
            Ok(store.fsync(file)?)
        })?;
    }
    time("fill_and_write_2MiB", calls(PIECE), |number| {
        memory.fill(number as u8);
        whole(store.write(file, (number * PIECE) as u64, memory)?, PIECE)
    })?;
    time("read_and_sum_2MiB", calls(PIECE), |number| {
        whole(store.read(file, (number * PIECE) as u64, memory)?, PIECE)?;
        std::hint::black_box(sum(memory));
        Ok(())
    })?;
    beside_syncs(store, file, &memory[..4 << 10])
}

/// Writes while another thread syncs all the time.
fn beside_syncs(store: &Store, file: u64, memory: &[u8]) -> Done {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                store.fsync(file)?;
            }
            Ok(())
        });
        let timed = time("write_4KiB_beside_fsync", calls(4 << 10), |number| {
            let at = (number * memory.len()) as u64;
            whole(store.write(file, at, memory)?, memory.len())
        });
        is_over.store(true, Ordering::Relaxed);
        let synced: Result<(), forebay_pmem::Errno> =
            syncing.join().map_err(|_| "the other thread has died")?;
        timed.and(synced.map_err(Into::into))
    })
}

/// The same as [`bytes`], without a copy: a program has its bytes in a window, and reads them in a view. A byte of each page is touched.
fn zero_copy(store: &Store, file: u64) -> Done {
    for (size, of) in SIZES {
        time(&format!("write_{of}"), calls(size), |number| {
            write_window(store, file, number * size, size, |window| {
                window.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            })
        })?;
        time(&format!("read_{of}"), calls(size), |number| {
            let view = store.view(file, (number * size) as u64, size)?;
            for part in view.parts() {
                std::hint::black_box(
                    part.iter()
                        .step_by(4096)
                        .map(|byte| u64::from(*byte))
                        .sum::<u64>(),
                );
            }
            whole(view.len(), size)
        })?;
    }
    store.sync()?;
    for (size, calls, of) in SYNCED {
        time(&format!("write_{of}_fsync"), calls, |number| {
            write_window(store, file, number * size, size, |window| {
                window.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
            })?;
            Ok(store.fsync(file)?)
        })?;
    }
    time("fill_and_write_2MiB", calls(PIECE), |number| {
        write_window(store, file, number * PIECE, PIECE, |window| {
            window.fill(number as u8)
        })
    })?;
    time("read_and_sum_2MiB", calls(PIECE), |number| {
        let view = store.view(file, (number * PIECE) as u64, PIECE)?;
        view.parts().for_each(|part| {
            std::hint::black_box(sum(part));
        });
        whole(view.len(), PIECE)
    })
}

/// Writes by as many windows as it takes; usually one.
fn write_window(
    store: &Store,
    file: u64,
    at: usize,
    size: usize,
    fill: impl Fn(&mut [u8]),
) -> Done {
    let mut done = 0;
    while done < size {
        let mut window = store.window(file, (at + done) as u64, size - done)?;
        done += window.len();
        fill(&mut window);
        window.commit()?;
    }
    Ok(())
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let numbers = words.iter().map(|word| u64::from_le_bytes(*word));
    numbers.fold(0, u64::wrapping_add)
}

fn calls(size: usize) -> usize {
    BYTES / size / if size < 64 << 10 { 4 } else { 1 }
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

//! What FLAC's slides show of I/O size, of alignment and of the share of a buffer that is rewritten, by one thread or more, each with a file of its own:
//! `sizes store STORE THREADS`, `sizes directory DIRECTORY THREADS`. Prints a name and nanoseconds a MiB, line by line, of all threads together.
//! `bench/programs/sizes.sh` sets the two side by side.
//!
//! A program fills its bytes and saves them, by `write` or in a window; it reads and sums them, by `read` or in a view. The files have been written
//! once before, and the process has gone round all blocks of the store.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::time::Instant;

use forebay_pmem::{Creator, OpenOptions, ROOT, Store};

const MIB: usize = 1 << 20;
/// Of each thread's file.
const BYTES: usize = 32 * MIB;
/// How often it is gone over at least: the first and last moments, when not all threads are there, do not count.
const ROUNDS: usize = 4;
const BUFFER: usize = 2 * MIB;
/// So many bytes off a page.
const SHIFTS: [usize; 2] = [0, 100];
const PERCENTS: [usize; 4] = [0, 25, 50, 100];

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// Where the files are, one for each thread.
enum Place {
    Store(Store, Vec<u64>),
    Directory(Vec<File>),
}

/// What is done with some bytes of a thread's file.
struct Piece<'a> {
    place: &'a Place,
    file: usize,
    at: usize,
    /// A number that differs from the last piece's.
    turn: usize,
    memory: &'a mut [u8],
    /// Of the memory, so many bytes are made anew.
    share: usize,
}

type Call = fn(&mut Piece) -> Done;

fn main() -> Done {
    let usage = "sizes store STORE THREADS | sizes directory DIRECTORY THREADS";
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [kind, path, threads] = &words[..] else {
        return Err(usage.into());
    };
    let threads = threads.parse()?;
    let place = match kind.as_str() {
        "store" => on_store(Path::new(path), threads)?,
        "directory" => in_directory(Path::new(path), threads)?,
        _ => return Err(usage.into()),
    };
    let all: Vec<(&str, Call)> = match place {
        Place::Store(..) => vec![
            ("write", write as Call),
            ("read", read),
            ("window", window),
            ("view", view),
        ],
        Place::Directory(..) => vec![("write", write as Call), ("read", read)],
    };
    for shift in SHIFTS {
        for size in (12..=24).step_by(2).map(|power| 1 << power) {
            for (name, call) in &all {
                let name = format!("{name}_{}KiB_off_{shift}", size >> 10);
                measure(&name, &place, threads, (size, shift, size), *call)?;
            }
        }
    }
    let again: Vec<(&str, Call)> = match place {
        Place::Store(..) => vec![
            ("write", write as Call),
            ("bfault", bfault),
            ("detach", window),
        ],
        Place::Directory(..) => vec![("write", write as Call)],
    };
    for percent in PERCENTS {
        for (name, call) in &again {
            let name = format!("{name}_rewritten_{percent}");
            let share = BUFFER / 100 * percent;
            measure(&name, &place, threads, (BUFFER, 0, share), *call)?;
        }
    }
    end(place)
}

fn on_store(path: &Path, threads: usize) -> Done<Place> {
    let store = Store::open(path, OpenOptions::default())?;
    let by = Creator {
        mode: 0o644,
        uid: 0,
        gid: 0,
    };
    let memory = vec![b'x'; BUFFER];
    let mut files = Vec::new();
    for number in 0..threads {
        let file = store.create(ROOT, name(number).as_bytes(), by)?.inode;
        for at in (0..BYTES).step_by(BUFFER) {
            whole(store.write(file, at as u64, &memory)?, BUFFER)?;
        }
        files.push(file);
    }
    store.sync()?;
    let round = store.statfs().blocks as usize * 4096;
    let place = Place::Store(store, files);
    for at in (0..round).step_by(BUFFER) {
        window(&mut Piece {
            place: &place,
            file: 0,
            at: at % BYTES,
            turn: 1,
            memory: &mut vec![0; BUFFER],
            share: BUFFER,
        })?;
    }
    Ok(place)
}

fn in_directory(path: &Path, threads: usize) -> Done<Place> {
    std::env::set_current_dir(path)?;
    let memory = vec![b'x'; BUFFER];
    let mut files = Vec::new();
    for number in 0..threads {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(name(number))?;
        for at in (0..BYTES).step_by(BUFFER) {
            file.write_all_at(&memory, at as u64)?;
        }
        file.sync_all()?;
        files.push(file);
    }
    Ok(Place::Directory(files))
}

fn end(place: Place) -> Done {
    match place {
        Place::Store(store, files) => {
            for number in 0..files.len() {
                store.unlink(ROOT, name(number).as_bytes())?;
            }
            store.close()?;
        }
        Place::Directory(files) => {
            for number in 0..files.len() {
                std::fs::remove_file(name(number))?;
            }
        }
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("sizes{number}")
}

/// Each thread goes over its file by pieces of this size, so many bytes off; all begin together, and the slowest one counts.
fn measure(
    name: &str,
    place: &Place,
    threads: usize,
    (size, shift, share): (usize, usize, usize),
    call: Call,
) -> Done {
    let pieces = BYTES / size - 1;
    let start = Barrier::new(threads);
    let over = |file: usize| {
        let mut memory = vec![1; size];
        start.wait();
        let begun = Instant::now();
        for turn in 0..ROUNDS * pieces {
            let mut piece = Piece {
                place,
                file,
                at: turn % pieces * size + shift,
                turn,
                memory: &mut memory,
                share,
            };
            call(&mut piece).map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(begun.elapsed().as_nanos())
    };
    let longest = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|file| scope.spawn(move || over(file)))
            .collect();
        let ended = running.into_iter().map(|thread| thread.join());
        let took = ended.map(|ended| ended.map_err(|_| "a thread has died".to_string())?);
        took.collect::<Result<Vec<u128>, String>>()
    })?;
    let longest = longest.into_iter().max().unwrap_or_default();
    let bytes = threads * ROUNDS * pieces * size;
    println!("{name} {}", longest * MIB as u128 / bytes as u128);
    Ok(())
}

fn write(piece: &mut Piece) -> Done {
    piece.memory[..piece.share].fill(piece.turn as u8);
    let at = piece.at as u64;
    match piece.place {
        Place::Store(store, files) => whole(
            store.write(files[piece.file], at, piece.memory)?,
            piece.memory.len(),
        ),
        Place::Directory(files) => Ok(files[piece.file].write_all_at(piece.memory, at)?),
    }
}

fn read(piece: &mut Piece) -> Done {
    let at = piece.at as u64;
    match piece.place {
        Place::Store(store, files) => whole(
            store.read(files[piece.file], at, piece.memory)?,
            piece.memory.len(),
        )?,
        Place::Directory(files) => files[piece.file].read_exact_at(piece.memory, at)?,
    }
    std::hint::black_box(sum(piece.memory));
    Ok(())
}

fn window(piece: &mut Piece) -> Done {
    let turn = piece.turn as u8;
    by_windows(piece, |_, window| {
        window.fill(turn);
        Ok(())
    })
}

fn view(piece: &mut Piece) -> Done {
    let (store, file) = stored(piece)?;
    let view = store.view(file, piece.at as u64, piece.memory.len())?;
    view.parts()
        .for_each(|part| _ = std::hint::black_box(sum(part)));
    whole(view.len(), piece.memory.len())
}

/// The next window, with a copy of what was saved before, of which a share is made anew.
fn bfault(piece: &mut Piece) -> Done {
    let (store, file) = stored(piece)?;
    let (turn, share) = (piece.turn as u8, piece.share);
    let before = (piece.at + BYTES - BUFFER) % (BYTES - BUFFER);
    by_windows(piece, |done, window| {
        let view = store.view(file, (before + done) as u64, window.len())?;
        let mut rest = &mut window[..];
        for part in view.parts() {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        let share = share.saturating_sub(done).min(window.len());
        window[..share].fill(turn);
        Ok(())
    })
}

/// By as many windows as it takes; usually one. `fill` gets what lies before each.
fn by_windows(piece: &Piece, fill: impl Fn(usize, &mut [u8]) -> Done) -> Done {
    let (store, file) = stored(piece)?;
    let mut done = 0;
    while done < piece.memory.len() {
        let (at, length) = ((piece.at + done) as u64, piece.memory.len() - done);
        let mut window = store.window(file, at, length)?;
        fill(done, &mut window)?;
        done += window.len();
        window.commit()?;
    }
    Ok(())
}

fn stored<'a>(piece: &Piece<'a>) -> Done<(&'a Store, u64)> {
    match piece.place {
        Place::Store(store, files) => Ok((store, files[piece.file])),
        Place::Directory(_) => Err("views and windows are a store's".into()),
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let numbers = words.iter().map(|word| u64::from_le_bytes(*word));
    numbers.fold(0, u64::wrapping_add)
}

fn whole(done: usize, asked: usize) -> Done {
    match done == asked {
        true => Ok(()),
        false => Err(format!("{done} of {asked} bytes").into()),
    }
}

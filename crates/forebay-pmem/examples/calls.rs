//! Times a store's calls by its API: `calls STORE`, with `--zero-copy` those that have views and windows. Prints a name and nanoseconds per call, line by line, for the same work in the same
//! order as `bench/programs/mounted.c` does it by system calls; `bench/programs/mounted-store.sh` sets the two side by side.
//!
//! `calls STORE --parts` is by itself: what of a window and of a view takes how long.
//!
//! `calls STORE --flush-intervals [SECONDS]` is by itself, too: what the flusher costs those who write, by how often it comes.
//!
//! The store is one that `forebay pmem create` has made and that nobody has open. What is read and written has been written once before, and
//! this process has gone round all blocks of the store, so that no page is mapped for the first time; `write_2MiB_new` is before that.

use std::error::Error;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_pmem::{Creator, OnExisting, OpenOptions, ROOT, Store};

const FILES: u32 = 10_000;
const BYTES: usize = 64 << 20;
const PIECE: usize = 2 << 20;
/// How often each of two threads goes over its file.
const ROUNDS: usize = 8;
const SIZES: [(usize, &str); 3] = [(4 << 10, "4KiB"), (64 << 10, "64KiB"), (PIECE, "2MiB")];
const SYNCED: [(usize, usize, &str); 2] = [(4 << 10, 200, "4KiB"), (1 << 20, 20, "1MiB")];

/// How often the flusher comes, in milliseconds; `None`: never.
const INTERVALS: [Option<u64>; 5] = [Some(10), Some(100), Some(1000), Some(5000), None];
const TURNS: usize = 5;
/// Writes of one turn at most.
const WRITES_MAX: usize = 8 << 20;

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Done {
    let path = std::env::args_os()
        .nth(1)
        .ok_or("calls STORE [--zero-copy | --parts | --flush-intervals [SECONDS]]")?;
    let how = std::env::args().nth(2).unwrap_or_default();
    if how == "--flush-intervals" {
        let seconds = std::env::args().nth(3).map_or(Ok(3), |word| word.parse())?;
        return intervals(Path::new(&path), Duration::from_secs(seconds));
    }
    let store = Store::open(Path::new(&path), OpenOptions::default())?;
    let file = store.create(ROOT, b"file", by(0o644))?.inode;
    let mut memory = vec![b'x'; PIECE];
    for at in (0..BYTES).step_by(PIECE) {
        store.write(file, at as u64, &memory)?;
    }
    store.sync()?;
    match how.as_str() {
        "--zero-copy" => zero_copy(&store, file)?,
        "--parts" => parts(&store, file)?,
        _ => bytes(&store, file, &mut memory)?,
    }
    store.unlink(ROOT, b"file")?;
    if how.is_empty() {
        names(&store, &[], "")?;
        names(&store, &memory[..4 << 10], "_of_4KiB")?;
    }
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

fn bytes(store: &Store, file: u64, memory: &mut [u8]) -> Done {
    time("write_2MiB_new", calls(PIECE), |number| {
        whole(store.write(file, (number * PIECE) as u64, memory)?, PIECE)
    })?;
    go_round(store, file)?;
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
    beside_syncs(store, file, &memory[..4 << 10])?;
    let at = |number: usize| (number * PIECE) as u64;
    by_two(
        store,
        file,
        "write_2MiB_two_threads",
        |file, number, memory| whole(store.write(file, at(number), memory)?, PIECE),
    )?;
    by_two(
        store,
        file,
        "read_2MiB_two_threads",
        |file, number, memory| whole(store.read(file, at(number), memory)?, PIECE),
    )
}

/// Two threads, each with a file of its own and memory of 2 MiB: what one call takes, of both of them together. Both are there before the clock
/// starts, and go over their files so often that its first and last moments, when one of them is alone, do not count.
fn by_two(
    store: &Store,
    file: u64,
    name: &str,
    call: impl Fn(u64, usize, &mut [u8]) -> Done + Sync,
) -> Done {
    let second = store.create(ROOT, b"second", by(0o644))?.inode;
    let mut memories = [vec![b'x'; PIECE], vec![b'x'; PIECE]];
    for number in 0..calls(PIECE) {
        store.write(second, (number * PIECE) as u64, &memories[0])?;
    }
    store.sync()?;
    let start = Barrier::new(2);
    let all = |file, memory: &mut [u8]| {
        start.wait();
        let begun = Instant::now();
        for number in 0..ROUNDS * calls(PIECE) {
            let done = call(file, number % calls(PIECE), memory);
            done.map_err(|error| error.to_string())?;
        }
        Ok::<_, String>(begun.elapsed())
    };
    let [one, other] = &mut memories;
    let (one, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| all(second, other));
        (all(file, one), other.join())
    });
    let longer = one?.max(other.map_err(|_| "a thread has died")??);
    let calls = (2 * ROUNDS * calls(PIECE)) as u128;
    println!("{name} {}", longer.as_nanos() / calls);
    Ok(store.unlink(ROOT, b"second")?)
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
    time("write_2MiB_new", calls(PIECE), |number| {
        write_window(store, file, number * PIECE, PIECE, touch)
    })?;
    go_round(store, file)?;
    for (size, of) in SIZES {
        time(&format!("write_{of}"), calls(size), |number| {
            write_window(store, file, number * size, size, touch)
        })?;
        time(&format!("read_{of}"), calls(size), |number| {
            let view = store.view(file, (number * size) as u64, size)?;
            view.parts().for_each(look);
            whole(view.len(), size)
        })?;
    }
    store.sync()?;
    for (size, calls, of) in SYNCED {
        time(&format!("write_{of}_fsync"), calls, |number| {
            write_window(store, file, number * size, size, touch)?;
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
    })?;
    by_two(store, file, "write_2MiB_two_threads", |file, number, _| {
        write_window(store, file, number * PIECE, PIECE, touch)
    })?;
    by_two(store, file, "read_2MiB_two_threads", |file, number, _| {
        let view = store.view(file, (number * PIECE) as u64, PIECE)?;
        view.parts().for_each(look);
        whole(view.len(), PIECE)
    })
}

/// A byte of each page is stored to.
fn touch(window: &mut [u8]) {
    window.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
}

/// A byte of each page is looked at.
fn look(part: &[u8]) {
    let bytes = part.iter().step_by(4096).map(|byte| u64::from(*byte));
    std::hint::black_box(bytes.sum::<u64>());
}

/// Touches each block of the store once, by windows.
fn go_round(store: &Store, file: u64) -> Done {
    let blocks = store.statfs().blocks;
    for at in (0..blocks as usize * 4096).step_by(PIECE) {
        write_window(store, file, at % BYTES, PIECE, |window| window.fill(1))?;
    }
    Ok(store.sync()?)
}

/// What of a window and of a view of 2 MiB takes how long: medians over the file, eight times.
fn parts(store: &Store, file: u64) -> Done {
    go_round(store, file)?;
    let names = [
        "window",
        "touch",
        "commit",
        "close",
        "view",
        "look",
        "close_view",
    ];
    let mut times = names.map(|_| Vec::new());
    for number in 0..ROUNDS * calls(PIECE) {
        let at = (number % calls(PIECE) * PIECE) as u64;
        let mut moments = vec![Instant::now()];
        let mut window = store.window(file, at, PIECE)?;
        moments.push(Instant::now());
        touch(&mut window);
        moments.push(Instant::now());
        window.commit()?;
        moments.push(Instant::now());
        drop(window);
        moments.push(Instant::now());
        let view = store.view(file, at, PIECE)?;
        moments.push(Instant::now());
        view.parts().for_each(look);
        moments.push(Instant::now());
        drop(view);
        moments.push(Instant::now());
        for (times, pair) in times.iter_mut().zip(moments.windows(2)) {
            times.push((pair[1] - pair[0]).as_nanos());
        }
    }
    for (name, mut times) in names.into_iter().zip(times) {
        times.sort_unstable();
        println!("{name} {}", times[times.len() / 2]);
    }
    Ok(())
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

/// Files of so many bytes; `of` ends the names of their rows.
fn names(store: &Store, bytes: &[u8], of: &str) -> Done {
    let directory = store.mkdir(ROOT, b"d", by(0o755))?.inode;
    let name = |number: usize| format!("file{number}").into_bytes();
    let other = |number: usize| format!("other{number}").into_bytes();
    let files = FILES as usize;
    time(&format!("create{of}"), files, |number| {
        let made = store.create(directory, &name(number), by(0o644))?.inode;
        match bytes {
            [] => Ok(()),
            bytes => whole(store.write(made, 0, bytes)?, bytes.len()),
        }
    })?;
    time(&format!("stat{of}"), files, |number| {
        whole(
            store.lookup(directory, &name(number))?.size as usize,
            bytes.len(),
        )
    })?;
    time(&format!("rename{of}"), files, |number| {
        let (from, to) = (name(number), other(number));
        Ok(store.rename(directory, &from, directory, &to, OnExisting::Replace)?)
    })?;
    time(&format!("unlink{of}"), files, |number| {
        Ok(store.unlink(directory, &other(number))?)
    })?;
    Ok(store.rmdir(ROOT, b"d")?)
}

/// One thread writes 4 KiB at random places of a file of 64 MiB, for so long with each interval in turn. Prints medians of the rounds: microseconds that
/// half of the writes took at most, 99 %, 99.9 %, and the longest one, then writes per second.
fn intervals(path: &Path, length: Duration) -> Done {
    // Touched, so that no page of it is new while time is taken.
    let mut times = vec![u32::MAX; WRITES_MAX];
    let mut found = INTERVALS.map(|_| Vec::new());
    // The first round warms what there is to warm, and does not count.
    for round in 0..=TURNS {
        for (interval, found) in INTERVALS.iter().zip(&mut found) {
            let figures = with_interval(path, *interval, length, &mut times)?;
            if round > 0 {
                found.push(figures);
            }
        }
    }
    println!("interval median 99% 99.9% longest writes/s");
    for (interval, found) in INTERVALS.iter().zip(&found) {
        let name = interval.map_or("never".into(), |ms| format!("{ms}ms"));
        let middle = |of: usize| {
            let mut all: Vec<f64> = found.iter().map(|figures| figures[of]).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let [half, most, nearly_all, longest, rate] = [0, 1, 2, 3, 4].map(middle);
        println!("{name} {half:.2} {most:.2} {nearly_all:.2} {longest:.0} {rate:.0}");
    }
    Ok(())
}

fn with_interval(
    path: &Path,
    interval: Option<u64>,
    length: Duration,
    times: &mut [u32],
) -> Done<[f64; 5]> {
    let options = OpenOptions {
        flush_interval: interval.map(Duration::from_millis),
        ..OpenOptions::default()
    };
    let store = Store::open(path, options)?;
    let file = store.create(ROOT, b"file", by(0o644))?.inode;
    let memory = vec![b'x'; PIECE];
    for at in (0..BYTES).step_by(PIECE) {
        store.write(file, at as u64, &memory)?;
    }
    store.sync()?;
    let (begun, mut count, mut place) = (Instant::now(), 0, 1_u64);
    let mut before = begun;
    while count < times.len() && before - begun < length {
        // Of Knuth's: the upper bits are good enough for places.
        place = place
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = ((place >> 33) << 12) % BYTES as u64;
        whole(store.write(file, at, &memory[..4 << 10])?, 4 << 10)?;
        let now = Instant::now();
        times[count] = (now - before).as_nanos().min(u32::MAX.into()) as u32;
        (before, count) = (now, count + 1);
    }
    let rate = count as f64 / (before - begun).as_secs_f64();
    store.unlink(ROOT, b"file")?;
    store.close()?;
    let times = &mut times[..count];
    times.sort_unstable();
    let at = |share: f64| f64::from(times[((count - 1) as f64 * share) as usize]) / 1000.0;
    Ok([at(0.5), at(0.99), at(0.999), at(1.0), rate])
}

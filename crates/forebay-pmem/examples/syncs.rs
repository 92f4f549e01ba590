//! Times writes that are made durable, one by one: `syncs api STORE`, `syncs windows STORE`, `syncs files DIRECTORY` by system calls. Prints a name and
//! nanoseconds per call, line by line, several rounds.
//!
//! It is for a machine whose clock counts instructions (`bench/programs/stores-by-instructions.sh`), where a nanosecond is one.
//! The file has been written once before, and with windows this process has gone round all blocks of the store.

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use forebay_pmem::{Creator, OpenOptions, ROOT, Store};

const BYTES: usize = 16 << 20;
const PIECE: usize = 1 << 20;
const ROUNDS: usize = 5;
/// What is written: its name, bytes, how often it is done, and whether each goes to the file's end, or over what is there.
const WORK: [(&str, usize, usize, bool); 3] = [
    ("write_4KiB_fsync", 4 << 10, 200, false),
    ("write_1MiB_fsync", PIECE, 16, false),
    ("append_4KiB_fsync", 4 << 10, 200, true),
];

type Done<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Done {
    let mut words = std::env::args_os().skip(1);
    let how = words.next().unwrap_or_default().into_string();
    let path = words.next().unwrap_or_default();
    let path = Path::new(&path);
    match how.as_deref() {
        Ok("api") => in_store(path, false),
        Ok("windows") => in_store(path, true),
        Ok("files") => in_files(path),
        _ => Err("syncs api|windows STORE, or syncs files DIRECTORY".into()),
    }
}

/// Writes so many bytes there and syncs, by each size in turn.
fn rounds(mut write: impl FnMut(u64, &[u8]) -> Done, mut sync: impl FnMut() -> Done) -> Done {
    let memory = vec![b'x'; PIECE];
    for at in (0..BYTES).step_by(PIECE) {
        write(at as u64, &memory)?;
    }
    sync()?;
    // The first warms what there is to warm, and does not count.
    let mut end = BYTES;
    for round in 0..=ROUNDS {
        for (name, size, calls, appends) in WORK {
            let first = if appends { end } else { 0 };
            let begun = Instant::now();
            for number in 0..calls {
                write((first + number * size) as u64, &memory[..size])?;
                sync()?;
            }
            let each = begun.elapsed().as_nanos() / calls as u128;
            end = end.max(first + calls * size);
            if round > 0 {
                println!("{name} {each}");
            }
        }
    }
    Ok(())
}

fn in_files(directory: &Path) -> Done {
    let path = directory.join("syncs");
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)?;
    rounds(
        |at, bytes| Ok(file.write_all_at(bytes, at)?),
        || Ok(file.sync_all()?),
    )?;
    Ok(std::fs::remove_file(path)?)
}

fn in_store(path: &Path, by_windows: bool) -> Done {
    let store = Store::open(path, OpenOptions::default())?;
    let creator = Creator {
        mode: 0o644,
        uid: 0,
        gid: 0,
    };
    let file = store.create(ROOT, b"syncs", creator)?.inode;
    let sync = || Ok(store.fsync(file)?);
    if by_windows {
        let blocks = store.statfs().blocks as usize * 4096;
        let filled = vec![1; PIECE];
        for at in (0..blocks).step_by(PIECE) {
            write_window(&store, file, (at % BYTES) as u64, &filled, |window, _| {
                window.fill(1);
            })?;
        }
        // A program makes its bytes there: a byte of each page is stored to.
        let touch = |window: &mut [u8], _: &[u8]| {
            window.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        };
        rounds(
            |at, bytes| write_window(&store, file, at, bytes, touch),
            sync,
        )?;
    } else {
        let write = |at: u64, bytes: &[u8]| match store.write(file, at, bytes)? {
            done if done == bytes.len() => Ok(()),
            done => Err(format!("{done} of {} bytes", bytes.len()).into()),
        };
        rounds(write, sync)?;
    }
    store.unlink(ROOT, b"syncs")?;
    Ok(store.close()?)
}

/// Writes by as many windows as it takes; usually one.
fn write_window(
    store: &Store,
    file: u64,
    at: u64,
    bytes: &[u8],
    fill: impl Fn(&mut [u8], &[u8]),
) -> Done {
    let mut done = 0;
    while done < bytes.len() {
        let mut window = store.window(file, at + done as u64, bytes.len() - done)?;
        let part = &bytes[done..][..window.len()];
        fill(&mut window, part);
        done += part.len();
        window.commit()?;
    }
    Ok(())
}

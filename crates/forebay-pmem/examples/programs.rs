//! grep, tar and sort, each in three forms that compute the same: by `read` and `write` on a file system, by views and windows on a store, and on bytes
//! that lie in the process's memory, which is what the computing alone takes.
//!
//! `programs directory DIRECTORY`, `programs store STORE`, `programs memory`. Prints a name and nanoseconds, line by line: of the first time, when nothing is mapped yet,
//! and of the median of the times after it. `bench/programs/store-programs.sh` sets the three side by side. Results are compared with what they must be.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Instant;

use forebay_pmem::{Creator, OpenOptions, ROOT, Store, Window};

type Done<T = ()> = Result<T, Box<dyn Error>>;

const FILES: usize = 32;
const FILE: usize = 4 << 20;
const NUMBERS: usize = 8 << 20;
const TIMES: usize = 5;
/// What read and write are given at a time: it stays in the CPU's cache.
const PIECE: usize = 128 << 10;
const WINDOW: usize = 2 << 20;
const HEADER: usize = 512;
const WORD: &[u8] = b"gazette";
/// The rarest letter of the word, and where it is: what is looked for first, as grep does.
const RARE: (u8, usize) = (b'z', 2);

/// Where a program has its bytes.
trait Side {
    fn make(&self, name: &str, bytes: &[u8]) -> Done;
    fn remove(&self, name: &str) -> Done;
    fn content(&self, name: &str) -> Done<Vec<u8>>;
    /// How often the word is in all files.
    fn grep(&self) -> Done<usize>;
    /// All files in one, each behind a header.
    fn tar(&mut self) -> Done;
    /// "numbers" in order, as "sorted".
    fn sort(&mut self) -> Done;
}

fn main() -> Done {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["directory", path] => all(Directory(path.into())),
        ["store", path] => {
            let store = Store::open(Path::new(path), OpenOptions::default())?;
            all(OnStore(store))
        }
        ["memory"] => all(Memory::new()),
        _ => Err("programs directory DIRECTORY | store STORE | memory".into()),
    }
}

fn all(mut side: impl Side) -> Done {
    let texts: Vec<Vec<u8>> = (0..FILES).map(text).collect();
    let mut dice = 1;
    let mut numbers: Vec<u8> = (0..NUMBERS)
        .flat_map(|_| next(&mut dice).to_le_bytes())
        .collect();
    for (name, text) in names().zip(&texts) {
        side.make(&name, text)?;
    }
    side.make("numbers", &numbers)?;
    let expected: usize = texts.iter().map(|text| count(text)).sum();
    let archive: Vec<u8> = names()
        .zip(&texts)
        .flat_map(|(name, text)| [&header(&name)[..], text].concat())
        .collect();
    sort_numbers(&mut numbers);
    time("grep", &mut side, |side| {
        is_right(side.grep()? == expected, "grep")
    })?;
    time_making("tar", "archive", &mut side, Side::tar, &archive)?;
    time_making("sort", "sorted", &mut side, Side::sort, &numbers)?;
    for name in names().chain(["numbers".into()]) {
        side.remove(&name)?;
    }
    Ok(())
}

fn time<S: Side>(name: &str, side: &mut S, mut program: impl FnMut(&mut S) -> Done) -> Done {
    tell(name, || {
        let begun = Instant::now();
        program(side)?;
        Ok(begun.elapsed().as_nanos())
    })
}

/// The same for a program that makes a file, which is looked at and removed between.
fn time_making<S: Side>(
    name: &str,
    made: &str,
    side: &mut S,
    program: fn(&mut S) -> Done,
    expected: &[u8],
) -> Done {
    tell(name, || {
        let begun = Instant::now();
        program(side)?;
        let took = begun.elapsed().as_nanos();
        is_right(side.content(made)? == expected, name)?;
        side.remove(made)?;
        Ok(took)
    })
}

fn tell(name: &str, mut run: impl FnMut() -> Done<u128>) -> Done {
    println!("{name}_first {}", run()?);
    let mut times = (0..TIMES).map(|_| run()).collect::<Done<Vec<_>>>()?;
    times.sort_unstable();
    println!("{name} {}", times[TIMES / 2]);
    Ok(())
}

fn is_right(is: bool, what: &str) -> Done {
    match is {
        true => Ok(()),
        false => Err(format!("{what}: another result than must be").into()),
    }
}

// ---- what is computed ----

fn count(text: &[u8]) -> usize {
    let (mut found, mut at) = (0, 0);
    while let Some(next) = find(text, at) {
        let begins = next.checked_sub(RARE.1);
        let word = begins.and_then(|from| text.get(from..from + WORD.len()));
        found += usize::from(word == Some(WORD));
        at = next + 1;
    }
    found
}

/// The rare letter's next place.
fn find(text: &[u8], from: usize) -> Option<usize> {
    let rest = &text[from..];
    // SAFETY: the bytes are borrowed, initialised, and nobody changes them meanwhile.
    let at = unsafe { libc::memchr(rest.as_ptr().cast(), RARE.0.into(), rest.len()) };
    (!at.is_null()).then(|| at.addr() - text.as_ptr().addr())
}

fn header(name: &str) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header
}

// ---- what it is computed of ----

fn names() -> impl Iterator<Item = String> {
    (0..FILES).map(|number| format!("text{number}"))
}

/// Words without the rare letter, and seldom the one that is looked for.
fn text(seed: usize) -> Vec<u8> {
    const WORDS: [&str; 7] = [
        "the ", "of ", "storage ", "memory ", "river\n", "mill ", "a ",
    ];
    let (mut dice, mut text) = (seed as u64, Vec::with_capacity(FILE + 16));
    while text.len() < FILE {
        let thrown = next(&mut dice);
        match thrown % 1000 {
            0 => text.extend_from_slice(WORD),
            _ => text.extend_from_slice(WORDS[(thrown >> 32) as usize % WORDS.len()].as_bytes()),
        }
    }
    text.truncate(FILE);
    text
}

fn next(dice: &mut u64) -> u64 {
    *dice = dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*dice ^ (*dice >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Numbers in order, where they lie.
fn sort_numbers(bytes: &mut [u8]) {
    let (numbers, _) = bytes.as_chunks_mut::<8>();
    numbers.sort_unstable_by_key(|number| u64::from_le_bytes(*number));
}

// ---- by read and write ----

struct Directory(PathBuf);

impl Side for Directory {
    fn make(&self, name: &str, bytes: &[u8]) -> Done {
        Ok(std::fs::write(self.0.join(name), bytes)?)
    }

    fn remove(&self, name: &str) -> Done {
        Ok(std::fs::remove_file(self.0.join(name))?)
    }

    fn content(&self, name: &str) -> Done<Vec<u8>> {
        Ok(std::fs::read(self.0.join(name))?)
    }

    fn grep(&self) -> Done<usize> {
        // In front of each piece lies the end of the one before, in which no whole word is.
        let kept = WORD.len() - 1;
        let mut buffer = vec![0; kept + PIECE];
        let mut found = 0;
        for name in names() {
            let mut file = File::open(self.0.join(name))?;
            buffer[..kept].fill(0);
            loop {
                let read = file.read(&mut buffer[kept..])?;
                if read == 0 {
                    break;
                }
                found += count(&buffer[..kept + read]);
                buffer.copy_within(read..read + kept, 0);
            }
        }
        Ok(found)
    }

    fn tar(&mut self) -> Done {
        let mut archive = File::create(self.0.join("archive"))?;
        let mut buffer = vec![0; PIECE];
        for name in names() {
            archive.write_all(&header(&name))?;
            let mut file = File::open(self.0.join(name))?;
            loop {
                let read = file.read(&mut buffer)?;
                if read == 0 {
                    break;
                }
                archive.write_all(&buffer[..read])?;
            }
        }
        Ok(())
    }

    fn sort(&mut self) -> Done {
        let mut file = File::open(self.0.join("numbers"))?;
        let mut numbers = vec![0; file.metadata()?.len() as usize];
        file.read_exact(&mut numbers)?;
        sort_numbers(&mut numbers);
        let mut sorted = File::create(self.0.join("sorted"))?;
        Ok(sorted.write_all(&numbers)?)
    }
}

// ---- by views and windows ----

struct OnStore(Store);

impl OnStore {
    fn create(&self, name: &str) -> Done<u64> {
        let by = Creator {
            mode: 0o644,
            uid: 0,
            gid: 0,
        };
        Ok(self.0.create(ROOT, name.as_bytes(), by)?.inode)
    }

    /// All bytes of a file where they lie.
    fn all_of(&self, name: &str) -> Done<forebay_pmem::Whole> {
        let file = self.0.lookup(ROOT, name.as_bytes())?;
        let view = self.0.view(file.inode, 0, file.size as usize)?;
        Ok(view.whole()?)
    }
}

/// A file that is written from its start to its end, window by window.
struct Filling<'a> {
    store: &'a Store,
    file: u64,
    window: Window,
    filled: usize,
}

impl Filling<'_> {
    fn put(&mut self, mut bytes: &[u8]) -> Done {
        while !bytes.is_empty() {
            if self.filled == self.window.len() {
                let next = self.window.offset() + self.filled as u64;
                self.window.commit()?;
                self.window = self.store.window(self.file, next, WINDOW)?;
                self.filled = 0;
            }
            let room = &mut self.window[self.filled..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
        }
        Ok(())
    }

    fn end(mut self) -> Done {
        Ok(self.window.commit_first(self.filled)?)
    }
}

impl Side for OnStore {
    fn make(&self, name: &str, bytes: &[u8]) -> Done {
        let file = self.create(name)?;
        is_right(self.0.write(file, 0, bytes)? == bytes.len(), "write")
    }

    fn remove(&self, name: &str) -> Done {
        Ok(self.0.unlink(ROOT, name.as_bytes())?)
    }

    fn content(&self, name: &str) -> Done<Vec<u8>> {
        Ok(self.all_of(name)?.to_vec())
    }

    fn grep(&self) -> Done<usize> {
        names().try_fold(0, |found, name| Ok(found + count(&self.all_of(&name)?)))
    }

    fn tar(&mut self) -> Done {
        let (store, file) = (&self.0, self.create("archive")?);
        let window = store.window(file, 0, WINDOW)?;
        let mut archive = Filling {
            store,
            file,
            window,
            filled: 0,
        };
        for name in names() {
            archive.put(&header(&name))?;
            archive.put(&self.all_of(&name)?)?;
        }
        archive.end()
    }

    fn sort(&mut self) -> Done {
        let numbers = self.all_of("numbers")?;
        let mut window = self.0.window(self.create("sorted")?, 0, numbers.len())?;
        is_right(window.len() == numbers.len(), "room side by side")?;
        window.copy_from_slice(&numbers);
        sort_numbers(&mut window);
        Ok(window.commit()?)
    }
}

// ---- in memory ----

/// Bytes, and where each name's are.
type Files = (Vec<u8>, HashMap<String, Range<usize>>);

/// Files behind each other, and room for what is made: all of it is there before the clock starts.
struct Memory {
    files: RefCell<Files>,
    room: Vec<u8>,
    length: usize,
}

impl Memory {
    fn new() -> Self {
        let all = Vec::with_capacity(FILES * FILE + NUMBERS * 8);
        Self {
            files: RefCell::new((all, HashMap::new())),
            // Not zeros, whose pages would be had later.
            room: vec![1; FILES * (HEADER + FILE)],
            length: 0,
        }
    }
}

impl Side for Memory {
    fn make(&self, name: &str, bytes: &[u8]) -> Done {
        let (all, places) = &mut *self.files.borrow_mut();
        places.insert(name.into(), all.len()..all.len() + bytes.len());
        all.extend_from_slice(bytes);
        Ok(())
    }

    fn remove(&self, _: &str) -> Done {
        Ok(())
    }

    fn content(&self, _: &str) -> Done<Vec<u8>> {
        Ok(self.room[..self.length].to_vec())
    }

    fn grep(&self) -> Done<usize> {
        let (all, places) = &*self.files.borrow();
        let counts = names().map(|name| count(&all[places[&name].clone()]));
        Ok(counts.sum())
    }

    fn tar(&mut self) -> Done {
        let (all, places) = &*self.files.borrow();
        self.length = FILES * (HEADER + FILE);
        let mut rest = &mut self.room[..];
        for name in names() {
            for part in [&header(&name)[..], &all[places[&name].clone()]] {
                let (now, later) = rest.split_at_mut(part.len());
                now.copy_from_slice(part);
                rest = later;
            }
        }
        Ok(())
    }

    fn sort(&mut self) -> Done {
        let (all, places) = &*self.files.borrow();
        self.length = NUMBERS * 8;
        let numbers = &mut self.room[..self.length];
        numbers.copy_from_slice(&all[places["numbers"].clone()]);
        sort_numbers(numbers);
        Ok(())
    }
}

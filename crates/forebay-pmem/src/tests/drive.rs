//! Drives a store and the model by the same operations, and compares them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::model::{MAKER, Model, NAMES, Op, Tree};
use super::sim::{Random, Simulated};
use crate::check::check_medium;
use crate::errno::{Errno, OpenError, Result};
use crate::medium::{Durability, Medium};
use crate::store::{Store, View, make};
use crate::types::{Changes, CreateOptions, Creator, OnExisting, OpenOptions, ROOT, Time, Whence};

/// The maker of everything.
pub fn by(mode: u32) -> Creator {
    Creator {
        uid: MAKER.0,
        gid: MAKER.1,
        mode,
    }
}

/// A clock that goes on by one second with each look.
pub fn clock() -> Time {
    static NOW: AtomicI64 = AtomicI64::new(1_000_000);
    Time {
        seconds: NOW.fetch_add(1, Ordering::Relaxed),
        nanoseconds: 7,
    }
}

/// Without a flusher: commits come when the test says so, or when the log needs one.
pub fn quiet() -> OpenOptions {
    OpenOptions {
        flush_interval: None,
        read_only: false,
    }
}

/// Bytes of a new store, made where nothing but this byte was.
pub fn new_store_over(byte: u8, blocks: usize, options: &CreateOptions) -> Vec<u8> {
    let medium = Simulated::new(vec![byte; blocks * 4096], Durability::Dax);
    let done = make(Arc::clone(&medium) as Arc<dyn Medium>, options);
    assert!(done.is_ok(), "{done:?}");
    medium.bytes()
}

pub fn new_store(blocks: usize, options: &CreateOptions) -> Vec<u8> {
    new_store_over(0xa5, blocks, options)
}

/// Those of a small store: few files, and the smallest log.
pub fn small_options() -> CreateOptions {
    CreateOptions {
        inodes: Some(60),
        log_blocks: Some(24),
        ..CreateOptions::default()
    }
}

/// A small one: 400 KiB.
pub fn small_store() -> Vec<u8> {
    new_store(100, &small_options())
}

/// Opens a store in simulated memory, or in a file.
pub fn open<M: Medium + 'static>(medium: &Arc<M>) -> std::result::Result<Store, OpenError> {
    Store::open_medium(Arc::clone(medium) as Arc<dyn Medium>, quiet(), clock)
}

/// Says what a check finds, if anything.
pub fn faults(medium: &Arc<Simulated>) -> Vec<String> {
    match check_medium(Arc::clone(medium) as Arc<dyn Medium>) {
        Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// The tree of a store, in words.
pub fn tree(store: &Store) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut open = vec![(String::new(), ROOT)];
    while let Some((path, number)) = open.pop() {
        let is = store.getattr(number)?;
        let mut bytes = Vec::new();
        match is.mode & libc::S_IFMT {
            libc::S_IFDIR => store.readdir(number, 0, &mut |entry| {
                let name = String::from_utf8_lossy(&entry.name);
                if name != "." && name != ".." {
                    open.push((format!("{path}/{name}"), entry.inode));
                }
                true
            })?,
            libc::S_IFLNK => bytes = store.readlink(number)?,
            libc::S_IFIFO | libc::S_IFCHR => {}
            _ => {
                bytes = vec![0x77; is.size as usize];
                assert_eq!(store.read(number, 0, &mut bytes)?, bytes.len());
            }
        }
        let mut attributes = BTreeMap::new();
        for name in store.listxattr(number)? {
            let value = store.getxattr(number, &name)?;
            attributes.insert(String::from_utf8_lossy(&name).to_string(), value);
        }
        // The root's owner is whoever has made the store.
        let owner = if number == ROOT {
            MAKER
        } else {
            (is.uid, is.gid)
        };
        let node = (is.mode, is.links, bytes, attributes, owner, is.device);
        tree.insert(path, node);
    }
    Ok(tree)
}

/// Bytes that differ from place to place and from fill to fill.
pub fn content(fill: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| fill.wrapping_mul(31) ^ (at as u8).wrapping_mul(7) ^ (at >> 8) as u8 | 1)
        .collect()
}

/// A store and its model.
pub struct Pair<M = Simulated> {
    pub medium: Arc<M>,
    pub store: Option<Store>,
    pub model: Model,
    /// Inode of each node of the model.
    inodes: BTreeMap<usize, u64>,
    /// Bytes that the last write wrote, if not all.
    written: Option<usize>,
    /// Views, and what they showed first.
    views: VecDeque<(View, Vec<u8>)>,
}

/// Most views that are kept.
const VIEWS_MAX: usize = 3;

/// How an operation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    /// The store had no room for all of it.
    Full,
}

impl<M: Medium + 'static> Pair<M> {
    pub fn new(medium: Arc<M>) -> Self {
        let store = open(&medium).ok();
        assert!(store.is_some(), "a new store opens");
        Self {
            medium,
            store,
            model: Model::new(),
            inodes: BTreeMap::from([(0, ROOT)]),
            written: None,
            views: VecDeque::new(),
        }
    }

    pub fn store(&self) -> &Store {
        self.store.as_ref().expect("open between operations")
    }

    /// Inode of some file.
    pub fn file(&self) -> Option<u64> {
        self.model.file(1).map(|file| self.inodes[&file])
    }

    /// Does one operation to both, and says how they differ. A store that is full does nothing, or writes
    /// some of the bytes; the model does the same then.
    pub fn step(&mut self, op: &Op) -> std::result::Result<Outcome, String> {
        let mut model = self.model.clone();
        self.written = None;
        let done = self.done(op);
        for (view, bytes) in &self.views {
            if *view.to_slice() != **bytes {
                return Err(format!("{op:?}: a view has changed"));
            }
        }
        if done == Some(Err(Errno::ENOSPC)) {
            return Ok(Outcome::Full);
        }
        let expected = expect(&mut model, op, self.written);
        let (Some(expected), Some(done)) = (expected, done) else {
            return Ok(Outcome::Done);
        };
        match (expected, done) {
            (Ok(made), Ok(inode)) => {
                if let (Some(made), Some(inode)) = (made, inode) {
                    self.inodes.insert(made, inode);
                }
                self.model = model;
                Ok(if self.written.is_some() {
                    Outcome::Full
                } else {
                    Outcome::Done
                })
            }
            (Err(expected), Err(error)) if expected == error => Ok(Outcome::Done),
            (expected, done) => Err(format!("{op:?}: {done:?} instead of {expected:?}")),
        }
    }

    fn done(&mut self, op: &Op) -> Option<std::result::Result<Option<u64>, Errno>> {
        let directory = |choice: &u8| self.inodes[&self.model.directory(*choice)];
        let file = |choice: &u8| self.model.file(*choice).map(|file| self.inodes[&file]);
        let name = |choice: &u8| name(*choice).as_bytes();
        let store = self.store.as_ref()?;
        let done = match op {
            Op::Create { dir, name: n } => store
                .create(directory(dir), name(n), by(0o644))
                .map(|is| Some(is.inode)),
            Op::Mkdir { dir, name: n } => store
                .mkdir(directory(dir), name(n), by(0o711))
                .map(|is| Some(is.inode)),
            Op::Symlink {
                dir,
                name: n,
                length,
            } => {
                let target = target(*length);
                store
                    .symlink(directory(dir), name(n), &target, by(0))
                    .map(|is| Some(is.inode))
            }
            Op::Mknod {
                dir,
                name: n,
                device,
            } => store
                .mknod(
                    directory(dir),
                    name(n),
                    by(kind_of(*device) | 0o600),
                    (*device).into(),
                )
                .map(|is| Some(is.inode)),
            Op::Nameless { dir, .. } => nameless(store, directory(dir), op),
            Op::Link {
                file: f,
                dir,
                name: n,
            } => store.link(file(f)?, directory(dir), name(n)).map(|_| None),
            Op::Unlink { dir, name: n } => store.unlink(directory(dir), name(n)).map(|()| None),
            Op::Rmdir { dir, name: n } => store.rmdir(directory(dir), name(n)).map(|()| None),
            Op::Rename {
                dir,
                name: n,
                to,
                new,
                existing,
            } => {
                let (from, to) = (directory(dir), directory(to));
                store
                    .rename(from, name(n), to, name(new), on_existing(*existing))
                    .map(|()| None)
            }
            Op::Sync => store.sync().map(|()| None),
            Op::Reopen => return Some(self.reopen().map(|()| None)),
            Op::View { file: f, .. } => {
                let file = file(f)?;
                return Some(self.view(file, op));
            }
            other => return self.done_to_file(other),
        };
        Some(done)
    }

    fn view(&mut self, file: u64, op: &Op) -> std::result::Result<Option<u64>, Errno> {
        let Op::View { at, length, .. } = op else {
            return Ok(None);
        };
        let (at, mut bytes) = (u64::from(*at), vec![0x55; usize::from(*length)]);
        let view = self.store().view(file, at, bytes.len())?;
        let read = self.store().read(file, at, &mut bytes)?;
        bytes.truncate(read);
        assert_eq!((view.len(), &*view.to_slice()), (read, &bytes[..]));
        self.views.push_back((view, bytes));
        if self.views.len() > VIEWS_MAX {
            self.views.pop_front();
        }
        Ok(None)
    }

    fn done_to_file(&mut self, op: &Op) -> Option<std::result::Result<Option<u64>, Errno>> {
        let file = |choice: &u8| self.model.file(*choice).map(|file| self.inodes[&file]);
        let name = |choice: &u8| name(*choice).as_bytes();
        let store = self.store.as_ref()?;
        let done = match op {
            Op::Truncate { file: f, size } => {
                let changes = Changes {
                    size: Some(u64::from(*size)),
                    ..Changes::default()
                };
                store.setattr(file(f)?, &changes).map(|_| None)
            }
            Op::Allocate {
                file: f,
                mode,
                at,
                length,
            } => {
                let (at, length) = (u64::from(*at), u64::from(*length));
                store
                    .fallocate(file(f)?, mode_of(*mode), at, length)
                    .map(|()| None)
            }
            Op::SetAttribute {
                file: f,
                name: n,
                length,
                fill,
            } => {
                let value = content(*fill, usize::from(*length) % 2000);
                store.setxattr(file(f)?, name(n), &value, 0).map(|()| None)
            }
            Op::RemoveAttribute { file: f, name: n } => {
                store.removexattr(file(f)?, name(n)).map(|()| None)
            }
            Op::Chmod { file: f, mode } => chmod(store, file(f)?, *mode),
            Op::Chown { file: f, uid, gid } => {
                let changes = Changes {
                    uid: Some((*uid).into()),
                    gid: Some((*gid).into()),
                    ..Changes::default()
                };
                store.setattr(file(f)?, &changes).map(|_| None)
            }
            other => return self.written(other),
        };
        Some(done)
    }

    fn written(&mut self, op: &Op) -> Option<std::result::Result<Option<u64>, Errno>> {
        let file = |choice: &u8| self.model.file(*choice).map(|file| self.inodes[&file]);
        let store = self.store.as_ref()?;
        let done = match op {
            Op::Write {
                file: f,
                at,
                length,
                fill,
            } => {
                let bytes = content(*fill, usize::from(*length));
                part(
                    store.write(file(f)?, u64::from(*at), &bytes),
                    bytes.len(),
                    &mut self.written,
                )
            }
            Op::Window {
                file: f,
                at,
                length,
                fill,
            } => {
                let bytes = content(*fill, usize::from(*length));
                let written = by_windows(store, file(f)?, u64::from(*at), &bytes);
                part(written, bytes.len(), &mut self.written)
            }
            Op::Append {
                file: f,
                length,
                fill,
            } => {
                let bytes = content(*fill, usize::from(*length));
                part(
                    store.append(file(f)?, &bytes).map(|(_, written)| written),
                    bytes.len(),
                    &mut self.written,
                )
            }
            _ => return None,
        };
        Some(done)
    }

    fn reopen(&mut self) -> Result<()> {
        self.views.clear();
        let free = self.store().statfs_when_committed()?.blocks_free;
        self.store.take().map_or(Ok(()), Store::close)?;
        let store = open(&self.medium).map_err(|_| Errno::EIO)?;
        // Neither views nor windows have left anything that is not free.
        assert_eq!(store.statfs().blocks_free, free);
        self.store = Some(store);
        Ok(())
    }

    /// Says how the trees differ, and what a check finds.
    pub fn compare(&self) -> std::result::Result<(), String> {
        let store = tree(self.store()).map_err(|error| format!("the tree: {error}"))?;
        let model = self.model.tree();
        if store != model {
            let paths = store.keys().chain(model.keys());
            let differs = paths
                .into_iter()
                .find(|path| store.get(*path) != model.get(*path));
            return Err(format!(
                "{differs:?} differs: {:?}",
                differs.map(|path| {
                    let short = |tree: &Tree| {
                        tree.get(path)
                            .map(|node| (node.0, node.1, node.2.len(), node.3.len()))
                    };
                    (short(&store), short(&model))
                })
            ));
        }
        Ok(())
    }
}

/// What [`Op::Mknod`] makes.
fn kind_of(device: u16) -> u32 {
    if device == 0 {
        libc::S_IFIFO
    } else {
        libc::S_IFCHR
    }
}

fn nameless(store: &Store, dir: u64, op: &Op) -> Result<Option<u64>> {
    let Op::Nameless {
        name: n,
        length,
        fill,
        is_named,
        ..
    } = op
    else {
        return Ok(None);
    };
    let made = store.tmpfile(dir, by(0o640))?.inode;
    let bytes = content(*fill, usize::from(*length));
    let done = store.write(made, 0, &bytes).and_then(|written| {
        if written < bytes.len() {
            return Err(Errno::ENOSPC);
        }
        if *is_named {
            store.link(made, dir, name(*n).as_bytes())?;
        }
        Ok(is_named.then_some(made))
    });
    store.release(made, 1);
    done
}

fn chmod(store: &Store, inode: u64, mode: u16) -> Result<Option<u64>> {
    let mode = Some(u32::from(mode) & 0o7777);
    let changes = Changes {
        mode,
        ..Changes::default()
    };
    store.setattr(inode, &changes).map(|_| None)
}

/// Writes by windows, as many as it takes; the last one is asked for too much, and another one is not committed.
fn by_windows(store: &Store, file: u64, at: u64, bytes: &[u8]) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        let window = store.window(file, at + done as u64, rest.len() + 100);
        let written = window.and_then(|mut window| {
            window.truncate(rest.len());
            let length = window.len();
            window.copy_from_slice(&rest[..length]);
            if let Ok(mut unused) = store.window(file, at, 5000) {
                unused.fill(0xee);
            }
            window.commit()?;
            assert!(window.is_empty());
            Ok(length)
        });
        match written {
            Ok(length) => done += length,
            Err(Errno::ENOSPC) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Notes what was written if it is not all.
fn part(
    written: Result<usize>,
    length: usize,
    less: &mut Option<usize>,
) -> std::result::Result<Option<u64>, Errno> {
    *less = Some(written?).filter(|written| *written < length);
    Ok(None)
}

/// A name by its number.
pub fn name(choice: u8) -> &'static str {
    NAMES[usize::from(choice) % NAMES.len()]
}

fn target(length: u16) -> Vec<u8> {
    content(3, usize::from(length) % 4095 + 1)
}

fn on_existing(choice: u8) -> OnExisting {
    [
        OnExisting::Replace,
        OnExisting::Fail,
        OnExisting::Exchange,
        OnExisting::Replace,
    ][usize::from(choice % 4)]
}

fn mode_of(choice: u8) -> i32 {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    [
        0,
        KEEP,
        libc::FALLOC_FL_PUNCH_HOLE | KEEP,
        libc::FALLOC_FL_ZERO_RANGE,
        libc::FALLOC_FL_ZERO_RANGE | KEEP,
    ][usize::from(choice % 5)]
}

type Expected = std::result::Result<Option<usize>, Errno>;

/// Does an operation to a model alone.
pub fn replay(model: &mut Model, op: &Op) {
    let mut done = model.clone();
    if let Some(Ok(_)) = expect(&mut done, op, None) {
        *model = done;
    }
}

/// What the model does; `None` where the operation has no file to work on.
fn expect(model: &mut Model, op: &Op, written: Option<usize>) -> Option<Expected> {
    Some(match op {
        Op::Create { dir, name: n } => {
            model.make(model.directory(*dir), name(*n), libc::S_IFREG, 0o644)
        }
        Op::Mkdir { dir, name: n } => {
            model.make(model.directory(*dir), name(*n), libc::S_IFDIR, 0o711)
        }
        Op::Symlink {
            dir,
            name: n,
            length,
        } => {
            let made = model.make(model.directory(*dir), name(*n), libc::S_IFLNK, 0o777);
            if let Ok(Some(made)) = made {
                model.write(made, 0, &target(*length));
            }
            made
        }
        Op::Link { file, dir, name: n } => {
            model.link(model.file(*file)?, model.directory(*dir), name(*n))
        }
        Op::Mknod {
            dir,
            name: n,
            device,
        } => {
            let made = model.make(model.directory(*dir), name(*n), kind_of(*device), 0o600);
            if let Ok(Some(made)) = made {
                model.nodes.get_mut(&made)?.device = (*device).into();
            }
            made
        }
        Op::Nameless {
            dir,
            name: n,
            length,
            fill,
            is_named: true,
        } => {
            let made = model.make(model.directory(*dir), name(*n), libc::S_IFREG, 0o640);
            if let Ok(Some(made)) = made {
                model.write(made, 0, &content(*fill, usize::from(*length)));
            }
            made
        }
        Op::Unlink { dir, name: n } => model.remove(model.directory(*dir), name(*n), false),
        Op::Rmdir { dir, name: n } => model.remove(model.directory(*dir), name(*n), true),
        Op::Rename {
            dir,
            name: n,
            to,
            new,
            existing,
        } => {
            let (from, to) = (model.directory(*dir), model.directory(*to));
            model.rename((from, name(*n)), (to, name(*new)), on_existing(*existing))
        }
        other => return expect_of_file(model, other, written),
    })
}

fn expect_of_file(model: &mut Model, op: &Op, written: Option<usize>) -> Option<Expected> {
    let bytes = |fill: u8, length: u16| content(fill, written.unwrap_or(usize::from(length)));
    match op {
        Op::Write {
            file,
            at,
            length,
            fill,
        }
        | Op::Window {
            file,
            at,
            length,
            fill,
        } => {
            model.write(model.file(*file)?, *at as usize, &bytes(*fill, *length));
        }
        Op::Append { file, length, fill } => {
            let file = model.file(*file)?;
            let size = model.nodes[&file].bytes.len();
            model.write(file, size, &bytes(*fill, *length));
        }
        Op::Truncate { file, size } => model.resize(model.file(*file)?, *size as usize),
        Op::Allocate {
            file,
            mode,
            at,
            length,
        } => {
            let file = model.file(*file)?;
            if *length == 0 {
                return Some(Err(Errno::EINVAL));
            }
            let mode = mode_of(*mode);
            let range = *at as usize..*at as usize + usize::from(*length);
            let extend = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
            model.zero(file, range, mode & !libc::FALLOC_FL_KEEP_SIZE != 0, extend);
        }
        Op::SetAttribute {
            file,
            name: n,
            length,
            fill,
        } => {
            let file = model.file(*file)?;
            let value = content(*fill, usize::from(*length) % 2000);
            model
                .nodes
                .get_mut(&file)?
                .attributes
                .insert(name(*n).to_string(), value);
        }
        Op::RemoveAttribute { file, name: n } => {
            let file = model.file(*file)?;
            let removed = model.nodes.get_mut(&file)?.attributes.remove(name(*n));
            return Some(removed.map(|_| None).ok_or(Errno::ENODATA));
        }
        Op::Chmod { file, mode } => {
            let file = model.file(*file)?;
            model.nodes.get_mut(&file)?.mode = u32::from(*mode) & 0o7777;
        }
        Op::Chown { file, uid, gid } => {
            let file = model.file(*file)?;
            model.nodes.get_mut(&file)?.owner = ((*uid).into(), (*gid).into());
        }
        _ => {}
    }
    Some(Ok(None))
}

/// Operations that follow from a seed: a small tree, changed all over. Files have up to `bytes_max` bytes.
pub fn operations(seed: u64, count: usize, bytes_max: u32) -> Vec<Op> {
    let mut random = Random::new(seed);
    (0..count)
        .map(|_| operation(&mut random, bytes_max))
        .collect()
}

/// What programs do less often.
fn rare((dir, name, file, fill): (u8, u8, u8, u8), length: u16) -> Op {
    match fill % 8 {
        0 => Op::Create { dir, name },
        1 => Op::Mknod {
            dir,
            name,
            device: u16::from(file % 3),
        },
        2 | 3 => Op::Chown {
            file,
            uid: length,
            gid: fill.into(),
        },
        _ => Op::Nameless {
            dir,
            name,
            length,
            fill,
            is_named: fill.is_multiple_of(2),
        },
    }
}

fn operation(random: &mut Random, bytes_max: u32) -> Op {
    let small = |random: &mut Random| random.next() as u8;
    let (dir, name, file, fill) = (small(random), small(random), small(random), small(random));
    let at = random.below(bytes_max as usize) as u32;
    // Whole pages and their neighbours more often than chance has them.
    let at = if random.below(3) == 0 {
        at / 4096 * 4096
    } else {
        at
    };
    let length = match random.below(4) {
        0 => 4096,
        1 => random.below(64) as u16,
        _ => random.below(bytes_max.min(20_000) as usize) as u16,
    };
    match random.below(28) {
        0..3 => Op::Create { dir, name },
        3 => rare((dir, name, file, fill), length),
        4 => Op::Mkdir { dir, name },
        5 => Op::Symlink { dir, name, length },
        6 => Op::Link { file, dir, name },
        7 | 8 => Op::Unlink { dir, name },
        9 => Op::Rmdir { dir, name },
        10 | 11 => {
            let (to, new, existing) = (small(random), small(random), small(random));
            Op::Rename {
                dir,
                name,
                to,
                new,
                existing,
            }
        }
        12..16 => Op::Write {
            file,
            at,
            length,
            fill,
        },
        16 => Op::Append { file, length, fill },
        17 => Op::Truncate { file, size: at },
        18 => Op::Allocate {
            file,
            mode: fill,
            at,
            length,
        },
        19 => Op::SetAttribute {
            file,
            name,
            length,
            fill,
        },
        20 => Op::RemoveAttribute { file, name },
        21 => Op::Chmod { file, mode: length },
        22 => Op::Sync,
        23 | 24 => Op::Window {
            file,
            at,
            length,
            fill,
        },
        25 | 26 => Op::View { file, at, length },
        _ if random.below(4) == 0 => Op::Reopen,
        _ => Op::Sync,
    }
}

/// The first hole and the first data of a file, as the bytes have them at the least: data is never in a hole.
pub fn holes_are_zeros(store: &Store, inode: u64) -> Result<()> {
    let size = store.getattr(inode)?.size;
    let mut at = 0;
    while at < size {
        let data = match store.seek(inode, at, Whence::Data) {
            Err(Errno::ENXIO) => size,
            other => other?,
        };
        let mut hole = vec![1; (data - at) as usize];
        store.read(inode, at, &mut hole)?;
        assert!(hole.iter().all(|byte| *byte == 0), "a hole has bytes");
        if data == size {
            return Ok(());
        }
        at = store.seek(inode, data, Whence::Hole)?;
        assert!(at > data);
    }
    Ok(())
}

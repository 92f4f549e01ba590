//! What several test programs share: the engine as a target of the reference model.
#![allow(dead_code)]

pub mod held;
pub mod watch;
pub mod windows;

use std::path::PathBuf;
use std::sync::Arc;

use forebay::device::{DeviceFile, Inline};
use forebay::keeper::ahead::Prefetcher;
use forebay::sim::device::{SimDisk, SimOptions};
use forebay::{Config, File, OpenOptions, Session};
use forebay_model::{Access, ErrorClass, Op, Outcome, Target, fill};

/// Where an engine's files are.
pub enum Store {
    /// On a simulated disk.
    Sim(Vec<Arc<dyn DeviceFile>>),
    /// In a directory.
    Dir(PathBuf),
}

impl Store {
    /// Empty files on a simulated disk of `bytes` bytes.
    pub fn sim(files: usize, bytes: u64) -> (SimDisk, Store) {
        let disk = SimDisk::new(SimOptions {
            capacity_bytes: bytes,
            ..SimOptions::default()
        });
        let devices = (0..files)
            .map(|_| disk.create() as Arc<dyn DeviceFile>)
            .collect();
        (disk, Store::Sim(devices))
    }

    fn open(
        &self,
        session: &Session,
        file: u8,
        access: Access,
        truncate: bool,
    ) -> forebay::Result<File> {
        let mut options = OpenOptions::new();
        match access {
            Access::ReadWrite => options.read(true).write(true),
            Access::ReadOnly => options.read(true),
            Access::WriteOnly => options.write(true),
            Access::Append => options.read(true).append(true),
        };
        options.truncate(truncate);
        match self {
            Store::Sim(devices) => {
                let device = Arc::clone(&devices[usize::from(file)]);
                session.open_device(device, &format!("sim-{file}"), &options)
            }
            Store::Dir(dir) => {
                let path = dir.join(format!("file-{file}"));
                if !path.exists() {
                    std::fs::File::create(&path).expect("a file can be made");
                }
                session.open_file(&path, &options)
            }
        }
    }
}

/// The engine, driven by the model's operations.
pub struct Engine {
    pub session: Session,
    pub store: Store,
    pub files: Vec<Vec<Option<File>>>,
    /// Reads ahead a little after each operation, so that what it has under way meets the next ones.
    pub ahead: Option<Prefetcher>,
    /// Positional writes are commits of this window.
    pub windows: Option<windows::Windows>,
}

impl Engine {
    /// Opens `handles` read-write handles on each of `files` files.
    pub fn new(config: Config, store: Store, files: usize, handles: usize) -> Self {
        let session = Session::open(config).expect("a session can be opened");
        Self::over(session, store, files, handles)
    }

    /// The same over a session that is there.
    pub fn over(session: Session, store: Store, files: usize, handles: usize) -> Self {
        let open = |file: usize| {
            let file = u8::try_from(file).expect("few files");
            let opened = store.open(&session, file, Access::ReadWrite, false);
            Some(opened.expect("a file can be opened"))
        };
        let files = (0..files)
            .map(|file| (0..handles).map(|_| open(file)).collect())
            .collect();
        Engine {
            session,
            store,
            files,
            ahead: None,
            windows: None,
        }
    }

    /// From here on readers are read ahead for: requests end in an order, and as late, as `seed` decides.
    pub fn read_ahead(&mut self, seed: u64) {
        let prefetcher = Prefetcher::new(Box::new(Inline::seeded(seed)), 4);
        prefetcher.take_office(self.session.shared().me().expect("a slot"));
        self.ahead = Some(prefetcher);
    }

    /// The rest of what is being read ahead arrives, or some of it.
    fn go_on_reading(&mut self, rest: bool) {
        let shared = self.session.shared();
        let Some(prefetcher) = &mut self.ahead else {
            return;
        };
        let me = shared.me().expect("a slot");
        let tick = &me.arena.superblock().tick;
        tick.fetch_add(3, forebay::sync::Ordering::Relaxed);
        prefetcher.round(shared, me, false);
        while rest && prefetcher.is_reading() {
            prefetcher.round(shared, me, true);
        }
    }

    pub fn handle(&self, file: u8, handle: u8) -> &File {
        self.files[usize::from(file)][usize::from(handle)]
            .as_ref()
            .expect("an open handle")
    }

    fn bytes_for(
        file: &File,
        appends: bool,
        len: u32,
        seed: u32,
        offset: u64,
    ) -> forebay::Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let at = if appends { file.len()? } else { offset };
        fill(seed, at, &mut bytes);
        Ok(bytes)
    }

    fn try_run(&mut self, op: &Op) -> forebay::Result<Outcome> {
        match *op {
            Op::Reopen {
                file,
                handle,
                access,
                truncate,
            } => {
                let slot = &mut self.files[usize::from(file)][usize::from(handle)];
                let closed = slot.take().map_or(Ok(()), File::close);
                let opened = self.store.open(&self.session, file, access, truncate);
                // Where opening fails, it is done again, so that there is a handle; the error is the answer.
                let again = |_| self.store.open(&self.session, file, access, truncate);
                let failed = opened.as_ref().map(drop).map_err(|e| e.errno());
                *slot = Some(opened.or_else(again)?);
                match failed {
                    Ok(()) => closed.map(|()| Outcome::Done),
                    Err(errno) => Ok(Outcome::Failed(ErrorClass::from_errno(errno))),
                }
            }
            Op::CloseAll { file } => {
                let mut result = Ok(());
                for slot in &mut self.files[usize::from(file)] {
                    let closed = slot.take().map_or(Ok(()), File::close);
                    result = result.and(closed);
                }
                for handle in 0..self.files[usize::from(file)].len() {
                    let open = || {
                        self.store
                            .open(&self.session, file, Access::ReadWrite, false)
                    };
                    let opened = open();
                    result = result.and(opened.as_ref().map(drop).map_err(copy_of));
                    self.files[usize::from(file)][handle] = Some(opened.or_else(|_| open())?);
                }
                result.map(|()| Outcome::Done)
            }
            Op::Evict { file } => {
                if let Some(core) = self.handle(file, 0).core() {
                    let me = core.shared.me()?;
                    forebay::evict::evict_file(me, core.id);
                }
                Ok(Outcome::Done)
            }
            Op::KeeperStep { steps } => {
                for files in &self.files {
                    if let Some(core) = files[0].as_ref().and_then(File::core) {
                        let me = core.shared.me()?;
                        let scope = forebay::flush::Scope::some(u64::from(steps) * 16);
                        core.shared.flush(me, core.id, &core.device, scope);
                    }
                }
                Ok(Outcome::Done)
            }
            _ => self.run_on_file(op),
        }
    }

    fn write(&mut self, op: &Op) -> forebay::Result<Outcome> {
        let appends = |file: &File| file.is_append();
        match *op {
            Op::Write {
                file,
                handle,
                offset,
                len,
                seed,
            } => {
                let f = self.files[usize::from(file)][usize::from(handle)].as_ref();
                let f = f.expect("an open handle");
                if let Some(windows) = &mut self.windows
                    && !appends(f)
                    && windows.takes(len as usize)
                {
                    let what = (offset, len as usize, seed);
                    let written = windows.write(&self.session, f, what)?;
                    return Ok(Outcome::Wrote(written as u64));
                }
                let bytes = Self::bytes_for(f, appends(f), len, seed, offset)?;
                Ok(Outcome::Wrote(f.write_at(&bytes, offset)? as u64))
            }
            Op::WriteVectored {
                file,
                handle,
                offset,
                ref lens,
                seed,
            } => {
                let f = self.handle(file, handle);
                let total: u32 = lens.iter().sum();
                let bytes = Self::bytes_for(f, appends(f), total, seed, offset)?;
                let mut rest = bytes.as_slice();
                let mut slices = Vec::new();
                for &len in lens {
                    let (head, tail) = rest.split_at(len as usize);
                    slices.push(std::io::IoSlice::new(head));
                    rest = tail;
                }
                Ok(Outcome::Wrote(f.write_vectored_at(&slices, offset)? as u64))
            }
            Op::Append {
                file,
                handle,
                len,
                seed,
            } => {
                let f = self.handle(file, handle);
                let bytes = Self::bytes_for(f, true, len, seed, 0)?;
                Ok(Outcome::AppendedAt(f.append(&bytes)?))
            }
            _ => unreachable!("handled by the caller"),
        }
    }

    fn run_on_file(&mut self, op: &Op) -> forebay::Result<Outcome> {
        match *op {
            Op::Write { .. } | Op::WriteVectored { .. } | Op::Append { .. } => self.write(op),
            Op::Read {
                file,
                handle,
                offset,
                len,
            } => {
                let mut bytes = vec![0; len as usize];
                let n = self.handle(file, handle).read_at(&mut bytes, offset)?;
                bytes.truncate(n);
                Ok(Outcome::Bytes(bytes))
            }
            Op::SetLen { file, handle, len } => self
                .handle(file, handle)
                .set_len(len)
                .map(|()| Outcome::Done),
            Op::Punch {
                file,
                handle,
                offset,
                len,
            } => self
                .handle(file, handle)
                .punch(offset, len)
                .map(|()| Outcome::Done),
            Op::SyncData { file, handle } => self
                .handle(file, handle)
                .sync_data()
                .map(|()| Outcome::Done),
            Op::SyncAll { file, handle } => {
                self.handle(file, handle).sync_all().map(|()| Outcome::Done)
            }
            Op::Len { file, handle } => self.handle(file, handle).len().map(Outcome::Length),
            _ => unreachable!("handled by the caller"),
        }
    }
}

impl Target for Engine {
    fn run(&mut self, op: &Op) -> Outcome {
        // One thread reads and reads ahead: it would wait for itself.
        self.go_on_reading(matches!(op, Op::Read { .. }));
        let outcome = self.try_run(op);
        self.go_on_reading(false);
        outcome.unwrap_or_else(|error| Outcome::Failed(ErrorClass::from_errno(error.errno())))
    }
}

/// An error with the same errno.
fn copy_of(error: &forebay::Error) -> forebay::Error {
    forebay::Error::device("open", &std::io::Error::from_raw_os_error(error.errno()))
}

//! The reference model's operations as calls of the C library, from any caller.

use forebay_model::{Access, ErrorClass, Op, Outcome, Profile, Target, drive, fill, generate};
use forebay_model::{fresh_seed, shrink, to_lines};

use crate::built::directory;
use crate::own::Own;
use crate::remote::Remote;
use crate::stores::Stored;

/// Which function is called. The numbers are those of `driver.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Function {
    Open = 0,
    Close,
    Pread,
    Preadv,
    Pwrite,
    Pwritev,
    Append,
    Truncate,
    Size,
    Punch,
    Datasync,
    Sync,
}

/// One call.
#[derive(Debug)]
pub struct Request {
    pub function: Function,
    /// Which file, and which of its handles.
    pub file: u8,
    pub handle: u8,
    /// For `Open`.
    pub flags: i32,
    pub offset: i64,
    /// For reads, truncations and punches.
    pub len: i64,
    /// Lengths of parts, for vectored calls.
    pub lens: Vec<u32>,
    /// What is written.
    pub bytes: Vec<u8>,
}

impl Request {
    pub fn new(function: Function, file: u8, handle: u8) -> Self {
        Request {
            function,
            file,
            handle,
            flags: 0,
            offset: 0,
            len: 0,
            lens: Vec::new(),
            bytes: Vec::new(),
        }
    }
}

/// What the function has returned; bytes for reads.
pub struct Answer {
    pub result: i64,
    pub errno: i32,
    pub bytes: Vec<u8>,
}

/// The caller.
pub trait Calls {
    fn call(&mut self, request: &Request) -> Answer;
}

/// A target of the model over any of them.
struct Driven<C> {
    calls: C,
    handles: u8,
    /// Handles that append, by file and handle.
    appends: Vec<Vec<bool>>,
}

impl<C: Calls> Driven<C> {
    fn new(calls: C, files: usize, handles: usize) -> Self {
        let handles = u8::try_from(handles).expect("few handles");
        let mut driven = Driven {
            calls,
            handles,
            appends: vec![vec![false; handles.into()]; files],
        };
        for file in 0..files as u8 {
            for handle in 0..handles {
                let opened = driven.open(file, handle, Access::ReadWrite, false);
                opened.expect("a file can be opened");
            }
        }
        driven
    }

    fn call(&mut self, request: &Request) -> Result<Answer, i32> {
        let answer = self.calls.call(request);
        match answer.result {
            -1 => Err(answer.errno),
            0.. => Ok(answer),
            odd => panic!("{request:?} has returned {odd}"),
        }
    }

    fn open(&mut self, file: u8, handle: u8, access: Access, truncate: bool) -> Result<(), i32> {
        let mut request = Request::new(Function::Open, file, handle);
        request.flags = match access {
            Access::ReadWrite => libc::O_RDWR | libc::O_CREAT,
            Access::ReadOnly => libc::O_RDONLY,
            Access::WriteOnly => libc::O_WRONLY,
            Access::Append => libc::O_RDWR | libc::O_APPEND,
        };
        if truncate {
            request.flags |= libc::O_TRUNC;
        }
        self.appends[usize::from(file)][usize::from(handle)] = access == Access::Append;
        self.call(&request).map(drop)
    }

    fn close(&mut self, file: u8, handle: u8) -> Result<(), i32> {
        self.call(&Request::new(Function::Close, file, handle))
            .map(drop)
    }

    fn size(&mut self, file: u8, handle: u8) -> Result<u64, i32> {
        let answer = self.call(&Request::new(Function::Size, file, handle))?;
        Ok(answer.result as u64)
    }

    fn reopen(&mut self, op: &Op) -> Result<Outcome, i32> {
        match *op {
            Op::Reopen {
                file,
                handle,
                access,
                truncate,
            } => {
                let closed = self.close(file, handle);
                self.open(file, handle, access, truncate)?;
                closed?;
            }
            Op::CloseAll { file } => {
                let mut closed = Ok(());
                for handle in 0..self.handles {
                    closed = closed.and(self.close(file, handle));
                }
                for handle in 0..self.handles {
                    self.open(file, handle, Access::ReadWrite, false)?;
                }
                closed?;
            }
            _ => unreachable!("{op:?} opens nothing"),
        }
        Ok(Outcome::Done)
    }

    fn write(&mut self, op: &Op) -> Result<Outcome, i32> {
        let (function, file, handle, offset, lens, seed) = match *op {
            Op::Write {
                file,
                handle,
                offset,
                len,
                seed,
            } => (Function::Pwrite, file, handle, offset, vec![len], seed),
            Op::WriteVectored {
                file,
                handle,
                offset,
                ref lens,
                seed,
            } => (Function::Pwritev, file, handle, offset, lens.clone(), seed),
            Op::Append {
                file,
                handle,
                len,
                seed,
            } => (Function::Append, file, handle, 0, vec![len], seed),
            _ => unreachable!("{op:?} writes nothing"),
        };
        let appends = self.appends[usize::from(file)][usize::from(handle)];
        let at = if appends || function == Function::Append {
            self.size(file, handle)?
        } else {
            offset
        };
        let mut request = Request::new(function, file, handle);
        request.offset = offset as i64;
        request.bytes = vec![0; lens.iter().sum::<u32>() as usize];
        fill(seed, at, &mut request.bytes);
        request.lens = lens;
        let result = self.call(&request)?.result as u64;
        Ok(match function {
            Function::Append => Outcome::AppendedAt(result),
            _ => Outcome::Wrote(result),
        })
    }

    /// Every other read is into three buffers.
    fn read(&mut self, file: u8, handle: u8, offset: u64, len: u32) -> Result<Outcome, i32> {
        let vectored = offset % 2 == 1;
        let function = if vectored {
            Function::Preadv
        } else {
            Function::Pread
        };
        let mut request = Request::new(function, file, handle);
        (request.offset, request.len) = (offset as i64, len.into());
        request.lens = vec![len / 3, 0, len - len / 3];
        Ok(Outcome::Bytes(self.call(&request)?.bytes))
    }

    fn other(&mut self, op: &Op) -> Result<Outcome, i32> {
        let (function, file, handle, offset, len) = match *op {
            Op::SetLen { file, handle, len } => (Function::Truncate, file, handle, 0, len),
            Op::Punch {
                file,
                handle,
                offset,
                len,
            } => (Function::Punch, file, handle, offset, len),
            Op::SyncData { file, handle } => (Function::Datasync, file, handle, 0, 0),
            Op::SyncAll { file, handle } => (Function::Sync, file, handle, 0, 0),
            Op::Len { file, handle } => return self.size(file, handle).map(Outcome::Length),
            // Hints that this library does not take.
            _ => return Ok(Outcome::Done),
        };
        let mut request = Request::new(function, file, handle);
        (request.offset, request.len) = (offset as i64, len as i64);
        self.call(&request).map(|_| Outcome::Done)
    }
}

impl<C: Calls> Target for Driven<C> {
    fn run(&mut self, op: &Op) -> Outcome {
        let outcome = match *op {
            Op::Reopen { .. } | Op::CloseAll { .. } => self.reopen(op),
            Op::Write { .. } | Op::WriteVectored { .. } | Op::Append { .. } => self.write(op),
            Op::Read {
                file,
                handle,
                offset,
                len,
            } => self.read(file, handle, offset, len),
            _ => self.other(op),
        };
        outcome.unwrap_or_else(|errno| Outcome::Failed(ErrorClass::from_errno(errno)))
    }
}

fn check<C: Calls>(
    seeds: u64,
    profile: &Profile,
    count: usize,
    begin: impl Fn(&std::path::Path) -> C,
) {
    let run = |ops: &[Op]| {
        let dir = directory();
        let (files, handles) = Op::extent(ops);
        let mut driven = Driven::new(begin(dir.path()), files.max(3), handles.max(2));
        drive(ops, &mut driven).map_err(|mismatch| mismatch.to_string())
    };
    for seed in (0..seeds).chain([fresh_seed()]) {
        let ops = generate(seed, profile, count);
        if let Err(mismatch) = run(&ops) {
            let small = shrink(ops, |ops| run(ops).is_err());
            let lines = to_lines(&small);
            panic!(
                "seed {seed}: {mismatch}\nshrunk to {} operations:\n{lines}",
                small.len()
            );
        }
    }
}

#[test]
fn small_operations_by_calls_of_this_process() {
    check(6, &Profile::TINY, 200, Own::new);
}

#[test]
fn large_operations_by_calls_of_this_process() {
    check(2, &Profile::LARGE, 60, Own::new);
}

#[test]
fn small_operations_by_a_c_program() {
    check(4, &Profile::TINY, 200, Remote::new);
}

#[test]
fn large_operations_by_a_c_program() {
    check(1, &Profile::LARGE, 60, Remote::new);
}

#[test]
fn small_operations_on_files_of_a_store() {
    check(6, &Profile::TINY, 200, Stored::new);
}

#[test]
fn large_operations_on_files_of_a_store() {
    check(2, &Profile::LARGE, 60, Stored::new);
}

//! The directories that are checked, and files in them.

use forebay::device::file_system::{Nature, lookup};
use forebay::device::{DeviceFile, KernelReason, Piece, RealFile};
use forebay::sys::memory::AlignedBytes;
use forebay::sys::stat;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A directory to check in.
pub struct Place {
    pub dir: PathBuf,
    /// Made for the tests, so that it may be filled up.
    pub may_be_filled: bool,
    /// Keeps a temporary directory.
    _own: Option<tempfile::TempDir>,
}

/// All directories.
pub fn all() -> Vec<Place> {
    let named = std::env::var("FOREBAY_TEST_DIRS").unwrap_or_default();
    let named = named
        .split(':')
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from);
    let given = |dir| Place {
        dir,
        may_be_filled: true,
        _own: None,
    };
    let mut places: Vec<_> = named.map(given).collect();
    match tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")) {
        Ok(own) => {
            let dir = own.path().to_owned();
            places.push(Place {
                dir,
                may_be_filled: false,
                _own: Some(own),
            });
        }
        Err(error) => println!("skip the directory of the build: {error}"),
    }
    places
}

/// The directories whose files can be managed.
pub fn managed() -> Vec<Place> {
    all()
        .into_iter()
        .filter(|place| place.refusal().is_none())
        .collect()
}

impl Place {
    /// A new file without a name.
    pub fn unnamed(&self) -> File {
        tempfile::tempfile_in(&self.dir).expect("a file")
    }

    /// A new managed file, and a descriptor of the program's own.
    pub fn file(&self) -> (File, Arc<RealFile>) {
        let own = self.unnamed();
        let file = RealFile::reopen(own.as_fd()).expect("this place is managed");
        (own, Arc::new(file))
    }

    /// Why files here are not managed.
    pub fn refusal(&self) -> Option<KernelReason> {
        RealFile::reopen(self.unnamed().as_fd()).err()
    }

    /// What the table says about the file system.
    pub fn nature(&self) -> Nature {
        let dir = File::open(&self.dir).expect("the directory");
        lookup(stat::file_system_magic(dir.as_fd()).expect("statfs")).nature
    }
}

/// Bytes that differ from place to place in a file: a wrong offset shows.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at / 512) as u8 ^ (at as u8) ^ seed)
        .collect()
}

/// Writes all bytes directly, at an aligned offset.
pub fn write(file: &dyn DeviceFile, offset: u64, bytes: &[u8]) -> io::Result<usize> {
    file.write_direct(&[AlignedBytes::copy_of(bytes, 4096).piece()], offset)
}

/// Reads `len` bytes directly.
pub fn read(file: &dyn DeviceFile, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let memory = AlignedBytes::new(len, 4096);
    let done = file.read_direct(memory.piece(), offset)?;
    Ok(memory.to_vec()[..done].to_vec())
}

/// Pieces of this many bytes that make up the memory.
pub fn pieces_of(memory: &AlignedBytes, bytes: usize) -> Vec<Piece> {
    (0..memory.len())
        .step_by(bytes)
        .map(|at| memory.part(at, bytes))
        .collect()
}

/// Whether a command could be run and succeeded.
pub fn run(program: &str, args: &[&str], path: &Path) -> bool {
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(path)
        .stderr(std::process::Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether this process may do what only root may.
pub fn is_root() -> bool {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

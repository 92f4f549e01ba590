//! Somebody else opens a file, writes to it and closes it while an opening is under way.
#![cfg(feature = "sim")]

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use forebay::device::{Caps, DeviceFile, DeviceStat, Piece};
use forebay::sim::device::{SimDisk, SimFile, SimOptions};
use forebay::{Config, File, OpenOptions, Session};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// A device file; something happens once its extents are looked at for the first time: that is the only look that an opening takes
/// without the lock of the file table.
struct LookedAt {
    file: Arc<SimFile>,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl DeviceFile for LookedAt {
    fn caps(&self) -> &Caps {
        self.file.caps()
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        self.file.stat()
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        self.file.read_direct(piece, offset)
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.file.write_direct(pieces, offset)
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.file.write_buffered(pieces, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.reserve(offset, len)
    }

    fn trim(&self) -> io::Result<()> {
        self.file.trim()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        self.file.allocated_to(offset, end)
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        let allocated = self.file.is_allocated(offset, len);
        let mut meanwhile = self
            .meanwhile
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(happens) = meanwhile.take() {
            happens();
        }
        allocated
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        self.file.wait_in_flight()
    }
}

fn open(session: &Session, device: Arc<dyn DeviceFile>) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let opened = session.open_device(device, "file", &options);
    opened.expect("it can be opened")
}

fn append(session: &Session, file: &Arc<SimFile>, bytes: &[u8]) {
    let file = open(session, Arc::clone(file) as Arc<dyn DeviceFile>);
    let end = file.len().expect("a length");
    file.write_at(bytes, end).expect("written");
    file.close().expect("closed");
}

/// What a file has that `before` was written to, in another session, and `meanwhile` appended to while it was being opened.
fn opened_late(before: &[u8], meanwhile: &[u8]) -> Vec<u8> {
    let disk = SimDisk::new(SimOptions::default());
    let file = disk.create();
    let earlier = Session::open(Config::tiny()).expect("a session");
    append(&earlier, &file, before);
    drop(earlier);
    let session = Session::open(Config::tiny()).expect("a session");
    let (late, again, bytes) = (session.clone(), Arc::clone(&file), meanwhile.to_vec());
    let happens: Meanwhile = Box::new(move || append(&late, &again, &bytes));
    let device = Arc::new(LookedAt {
        file,
        meanwhile: Mutex::new(Some(happens)),
    });
    let file = open(&session, Arc::clone(&device) as Arc<dyn DeviceFile>);
    let happened = device.meanwhile.lock().is_ok_and(|left| left.is_none());
    assert!(happened, "nothing came in between");
    let mut found = vec![0; file.len().expect("a length") as usize];
    let read = file.read_at(&mut found, 0).expect("read");
    assert_eq!(read, found.len());
    found
}

#[test]
fn what_is_appended_while_a_file_is_opened_is_there() {
    let expected = [vec![1; 12_392], vec![2; 12_360]].concat();
    assert_eq!(opened_late(&[1; 12_392], &[2; 12_360]), expected);
}

#[test]
fn what_is_appended_in_its_last_page_is_there() {
    assert_eq!(opened_late(&[7; 10], &[7; 20]), [7; 30]);
}

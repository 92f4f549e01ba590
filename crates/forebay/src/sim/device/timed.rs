//! A simulated file whose calls take time of a simulation, in parts, and fail as its dice say.
//!
//! Bytes move somewhere between the beginning and the end of a call, part by part: what changes in between tears, as on a
//! device. A task that is killed in a call dies at its end; when the power goes, the parts that have not moved never do.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::call::CallKind;
use super::descriptions::Description;
use super::file::SimFile;
use super::station::{Fate, Station};
use crate::device::{Caps, DeviceFile, DeviceStat, Piece};
use crate::sim::tasks;
use std::time::Duration;

/// How often it is looked whether writes under way have ended.
const LOOK_EVERY: Duration = Duration::from_micros(20);

/// See the module's documentation. Each process opens its own.
pub struct Timed {
    inner: Arc<SimFile>,
    station: Arc<Station>,
    descriptors: Mutex<Descriptors>,
}

/// What a process has open of the file: a real one's two descriptors.
#[derive(Clone)]
struct Descriptors {
    direct: Arc<Description>,
    /// Opened by the first request that needs it.
    buffered: Option<Arc<Description>>,
    /// One description is to do for everything.
    united: bool,
}

/// A direct write is under way while this lives.
struct Under<'a>(&'a Timed);

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.0.station.end_write(self.0.inner.caps().inode);
    }
}

impl Timed {
    /// Opens a file; waits for the end of a lease.
    pub fn new(inner: Arc<SimFile>, station: Arc<Station>) -> Self {
        Timed::of(Description::open(&inner), station)
    }

    /// By a description that is open.
    pub fn of(direct: Arc<Description>, station: Arc<Station>) -> Self {
        let inner = Arc::clone(direct.file());
        let descriptors = Mutex::new(Descriptors {
            direct,
            buffered: None,
            united: false,
        });
        Timed {
            inner,
            station,
            descriptors,
        }
    }

    /// The same descriptions in another process: descriptors of them are sent.
    pub fn sent(&self) -> Self {
        let descriptors = Descriptors {
            united: false,
            ..self.descriptors().clone()
        };
        Timed {
            inner: Arc::clone(&self.inner),
            station: Arc::clone(&self.station),
            descriptors: Mutex::new(descriptors),
        }
    }

    fn descriptors(&self) -> MutexGuard<'_, Descriptors> {
        self.descriptors
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn direct(&self) -> Arc<Description> {
        Arc::clone(&self.descriptors().direct)
    }

    /// The description for what goes through the kernel's cache, as long as the request lasts.
    fn buffered(&self) -> Arc<Description> {
        let known = self.descriptors().clone();
        if let Some(buffered) = known.buffered {
            return buffered;
        }
        if known.united {
            return known.direct;
        }
        let opened = Description::open(&self.inner);
        let mut descriptors = self.descriptors();
        match descriptors.united {
            true => Arc::clone(&descriptors.direct),
            false => Arc::clone(descriptors.buffered.get_or_insert(opened)),
        }
    }

    /// The file itself.
    pub fn inner(&self) -> &Arc<SimFile> {
        &self.inner
    }

    /// A call that moves no bytes.
    fn call<T>(
        &self,
        kind: CallKind,
        make: impl FnOnce(&SimFile) -> io::Result<T>,
    ) -> io::Result<T> {
        let call = tasks::device_call();
        let latency = self.station.draw_latency();
        let before = latency.mul_f64(0.25 * tasks::below(5) as f64);
        tasks::sleep(before);
        let result = self
            .station
            .draw_error(kind)
            .and_then(|()| make(&self.inner));
        tasks::sleep(latency - before);
        call.end();
        result
    }

    /// A call that moves bytes, by `make` for one piece after the other.
    fn transfer(
        &self,
        kind: CallKind,
        pieces: &[Piece],
        offset: u64,
        make: impl Fn(&SimFile, Piece, u64) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let call = tasks::device_call();
        tasks::sleep(self.station.draw_latency());
        let direct = matches!(kind, CallKind::ReadDirect | CallKind::WriteDirect);
        let align = if direct {
            self.inner.caps().offset_align as usize
        } else {
            1
        };
        let len = pieces.iter().map(|piece| piece.len).sum();
        let (len, error) = match self.station.draw_fate(kind, len, align) {
            Fate::Whole => (len, None),
            Fate::Short(less) => (less, None),
            Fate::Torn(less, error) => (less, Some(error)),
        };
        let part_bytes = self.station.weather().part_bytes / align * align;
        let mut moved = 0;
        let mut stopped = None;
        for (part, at) in parts(pieces, offset, len, part_bytes.max(align)) {
            match make(&self.inner, part, at) {
                Ok(count) => moved += count,
                Err(error) => stopped = Some(error),
            }
            if moved as u64 != at + part.len as u64 - offset {
                break;
            }
            tasks::sleep(Duration::from_nanos(tasks::below(3000)));
        }
        call.end();
        match error.or(stopped.filter(|_| moved == 0)) {
            Some(error) => Err(error),
            None => Ok(moved),
        }
    }
}

/// The first `len` bytes of pieces, in parts with their places in the file.
fn parts(pieces: &[Piece], offset: u64, len: usize, part_bytes: usize) -> Vec<(Piece, u64)> {
    let mut parts = Vec::new();
    let mut at = 0;
    for piece in pieces {
        let mut done = 0;
        while done < piece.len && at < len {
            let bytes = (piece.len - done).min(part_bytes).min(len - at);
            let part = Piece {
                // SAFETY: `done` is less than the piece's length.
                ptr: unsafe { piece.ptr.add(done) },
                len: bytes,
            };
            parts.push((part, offset + at as u64));
            done += bytes;
            at += bytes;
        }
    }
    parts
}

/// The bytes of pieces, now.
fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    // SAFETY: the maker of the pieces promised that they are mapped and initialised; others that write them meanwhile tear
    // them, as with a device.
    let copy = |piece: &Piece| unsafe { piece.copy_out() };
    pieces.iter().flat_map(copy).collect()
}

impl DeviceFile for Timed {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        self.transfer(CallKind::ReadDirect, &[piece], offset, |file, part, at| {
            file.read_direct(part, at)
        })
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.station.begin_write(self.inner.caps().inode);
        let _under_way = Under(self);
        let submitted = self.inner.caps().stable_writes.then(|| bytes_of(pieces));
        let written = self.transfer(CallKind::WriteDirect, pieces, offset, |file, part, at| {
            file.write_direct(&[part], at)
        });
        if submitted.is_some_and(|submitted| submitted != bytes_of(pieces)) {
            self.station.count_unstable();
        }
        written
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        let _by = self.buffered();
        self.write_cached(pieces, offset)
    }

    fn write_cached(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.transfer(CallKind::WriteBuffered, pieces, offset, |file, part, at| {
            file.write_buffered(&[part], at)
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call(CallKind::SyncData, |file| file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.call(CallKind::SyncAll, |file| file.sync_all())
    }

    fn has_sync_and_stat(&self) -> bool {
        self.inner.has_sync_and_stat()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(CallKind::SetLen, |file| file.set_len(len))
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(CallKind::Reserve, |file| file.reserve(offset, len))
    }

    fn trim(&self) -> io::Result<()> {
        self.call(CallKind::Trim, |file| file.trim())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.call(CallKind::Punch, |file| file.punch(offset, len))
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.call(CallKind::IsAllocated, |file| file.is_allocated(offset, len))
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        self.call(CallKind::IsAllocated, |file| file.allocated_to(offset, end))
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        // A call that asks nobody: it neither takes long nor fails, and it is made under a lock.
        self.inner.stat()
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        let call = tasks::device_call();
        while self.station.is_writing(self.inner.caps().inode) {
            tasks::sleep(LOOK_EVERY);
        }
        call.end();
        self.inner.wait_in_flight()
    }

    fn set_modified(&self, mtime_ns: Option<u64>) -> io::Result<()> {
        let call = tasks::device_call();
        tasks::sleep(self.station.draw_latency());
        let result = self.inner.set_modified(mtime_ns);
        call.end();
        result
    }

    fn unite(&self) -> io::Result<()> {
        let mut descriptors = self.descriptors();
        descriptors.united = true;
        // What is under way by it keeps it open: no lease is to be had meanwhile.
        descriptors.buffered = None;
        Ok(())
    }

    fn lease(&self) -> io::Result<()> {
        self.direct().lease()
    }

    fn give_lease_up(&self) {
        self.direct().give_lease_up();
    }

    fn is_lease_wanted(&self) -> bool {
        !self.direct().is_leased_in_peace()
    }

    fn timed(&self) -> Option<&Timed> {
        Some(self)
    }
}

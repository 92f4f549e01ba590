//! A file in memory that behaves like one on a device, only less forgivingly.
//!
//! Direct requests that are not aligned panic: a real device would answer `EINVAL` on one machine and
//! not on another, so a test must never make one. Space is taken when bytes are written or reserved,
//! as with delayed allocation; a full disk cuts a write short, or fails it with `ENOSPC` when not one
//! unit is left for it. Reserving takes what there is and then fails, as ext4 does.

use super::call::{Call, CallKind};
use super::descriptions::Descriptions;
use super::disk::Shared;
use super::image::{Image, UNIT_BYTES};
use crate::device::{Caps, DeviceFile, DeviceStat, Piece};
use crate::random::Random;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

struct State {
    image: Image,
    mtime_ns: u64,
    ctime_ns: u64,
    /// Direct writes between their hook and their end.
    writes_in_flight: usize,
}

/// A file of a [`super::SimDisk`].
pub struct SimFile {
    disk: Arc<Shared>,
    caps: Caps,
    state: Mutex<State>,
    write_ended: Condvar,
    has_name: AtomicBool,
    descriptions: Descriptions,
}

impl Drop for SimFile {
    /// A file that is gone gives its space back.
    fn drop(&mut self) {
        let units = self.state().image.units();
        self.disk.recount(units, 0);
    }
}

impl SimFile {
    pub(super) fn new(disk: Arc<Shared>, inode: u64) -> Self {
        let options = &disk.options;
        let now = disk.tick();
        let caps = Caps {
            offset_align: options.offset_align,
            memory_align: options.memory_align,
            stable_writes: options.stable_writes,
            device: options.device,
            inode,
            birth: now,
            store: 0,
            file_system: "simulated",
        };
        let image = Image::new(options.offset_align as usize);
        let state = State {
            image,
            mtime_ns: now,
            ctime_ns: now,
            writes_in_flight: 0,
        };
        Self {
            disk,
            caps,
            state: Mutex::new(state),
            write_ended: Condvar::new(),
            has_name: AtomicBool::new(true),
            descriptions: Descriptions::default(),
        }
    }

    /// Whether the file can be opened by a name.
    pub fn has_name(&self) -> bool {
        self.has_name.load(SeqCst)
    }

    pub(super) fn descriptions(&self) -> &Descriptions {
        &self.descriptions
    }

    /// Whether somebody has a lease on it.
    pub fn is_leased(&self) -> bool {
        self.descriptions.are_leased()
    }

    /// Leases on it that nobody gave up in time.
    pub fn leases_taken_away(&self) -> u32 {
        self.descriptions.taken_away()
    }

    pub(super) fn unlink(&self) {
        self.has_name.store(false, SeqCst);
        self.state().ctime_ns = self.disk.tick();
    }

    /// All bytes, as a reader sees them now, past any hook.
    pub fn contents(&self) -> Vec<u8> {
        let state = self.state();
        state.image.read(0, state.image.len() as usize)
    }

    /// An outsider replaces bytes, past any hook; the disk must have the space.
    pub fn meddle(&self, offset: u64, bytes: &[u8]) {
        let written = self.store(offset, bytes).expect("space");
        assert_eq!(written, bytes.len(), "space");
    }

    pub(super) fn crash_power(&self, random: &mut Random) {
        let mut state = self.state();
        assert_eq!(
            state.writes_in_flight, 0,
            "let requests end before the power fails"
        );
        let before = state.image.units();
        state.image.crash(random);
        self.disk.recount(before, state.image.units());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, kind: CallKind, offset: u64, len: u64) {
        let (inode, align) = (self.caps.inode, self.caps.offset_align);
        self.disk.call_hook(&Call {
            kind,
            inode,
            offset,
            len,
            align,
        });
    }

    fn assert_aligned(&self, piece: Piece, offset: u64) {
        let Caps {
            offset_align,
            memory_align,
            inode,
            ..
        } = self.caps;
        let aligned = offset.is_multiple_of(u64::from(offset_align))
            && piece.len.is_multiple_of(offset_align as usize)
            && piece.ptr.addr().is_multiple_of(memory_align as usize);
        assert!(
            aligned,
            "misaligned direct request: inode {inode}, offset {offset}, {piece:?}"
        );
    }

    fn load(&self, piece: Piece, offset: u64) -> usize {
        let bytes = self.state().image.read(offset, piece.len);
        // SAFETY: the maker of the piece promised that it is mapped and writable; others that write
        // it meanwhile tear it, as a device would; `bytes` is ours.
        unsafe { piece.copy_in(&bytes) };
        bytes.len()
    }

    fn store_pieces(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        self.store(offset, &bytes_of(pieces))
    }

    /// Writes as much as there is space for.
    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        let mut len = bytes.len() as u64;
        let mut missing = state.image.missing(offset, len);
        let taken = self.disk.take_units(missing.len() as u64);
        if let Some(&first_without) = missing.iter().nth(taken as usize) {
            missing.split_off(&first_without);
            len = (first_without * UNIT_BYTES).saturating_sub(offset);
        }
        state.image.allocate(missing);
        if len == 0 && !bytes.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        state.image.write(offset, &bytes[..len as usize]);
        self.touch(&mut state);
        Ok(len as usize)
    }

    fn touch(&self, state: &mut State) {
        state.mtime_ns = self.disk.tick();
        state.ctime_ns = state.mtime_ns;
    }

    /// A change that gives space back.
    fn release(&self, change: impl FnOnce(&mut Image)) {
        let mut state = self.state();
        let before = state.image.units();
        change(&mut state.image);
        self.disk.recount(before, state.image.units());
        state.ctime_ns = self.disk.tick();
    }

    fn sync(&self, kind: CallKind) -> io::Result<()> {
        self.announce(kind, 0, 0);
        self.state().image.sync();
        Ok(())
    }
}

fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    // SAFETY: the maker of the pieces promised that they are mapped and initialised; others that
    // write them meanwhile tear them, as with a device.
    let copy = |piece: &Piece| unsafe { piece.copy_out() };
    pieces.iter().flat_map(copy).collect()
}

impl DeviceFile for SimFile {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn read_direct(&self, piece: Piece, offset: u64) -> io::Result<usize> {
        self.assert_aligned(piece, offset);
        self.announce(CallKind::ReadDirect, offset, piece.len as u64);
        Ok(self.load(piece, offset))
    }

    fn write_direct(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        pieces
            .iter()
            .for_each(|piece| self.assert_aligned(*piece, offset));
        let len: usize = pieces.iter().map(|piece| piece.len).sum();
        self.state().writes_in_flight += 1;
        let submitted = self.caps.stable_writes.then(|| bytes_of(pieces));
        self.announce(CallKind::WriteDirect, offset, len as u64);
        if submitted.is_some_and(|submitted| submitted != bytes_of(pieces)) {
            self.disk.unstable_writes.fetch_add(1, SeqCst);
        }
        let result = self.store_pieces(pieces, offset);
        self.state().writes_in_flight -= 1;
        self.write_ended.notify_all();
        result
    }

    fn write_buffered(&self, pieces: &[Piece], offset: u64) -> io::Result<usize> {
        let len: usize = pieces.iter().map(|piece| piece.len).sum();
        self.announce(CallKind::WriteBuffered, offset, len as u64);
        self.store_pieces(pieces, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(CallKind::SyncData)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync(CallKind::SyncAll)
    }

    /// Every other file is as one of a mounted store.
    fn has_sync_and_stat(&self) -> bool {
        self.caps.inode % 2 == 1
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.announce(CallKind::SetLen, 0, len);
        self.release(|image| image.set_len(len));
        self.touch(&mut self.state());
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.announce(CallKind::Reserve, offset, len);
        if !self.disk.options.can_reserve {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut state = self.state();
        let mut missing = state.image.missing(offset, len);
        let taken = self.disk.take_units(missing.len() as u64);
        let first_without = missing.iter().nth(taken as usize).copied();
        if let Some(first) = first_without {
            missing.split_off(&first);
        }
        state.image.allocate(missing);
        state.ctime_ns = self.disk.tick();
        match first_without {
            Some(_) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
            None => Ok(()),
        }
    }

    fn trim(&self) -> io::Result<()> {
        self.announce(CallKind::Trim, 0, 0);
        self.release(Image::trim);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.announce(CallKind::Punch, offset, len);
        self.release(|image| image.punch(offset, len));
        self.touch(&mut self.state());
        Ok(())
    }

    fn is_allocated(&self, offset: u64, len: u64) -> io::Result<bool> {
        self.announce(CallKind::IsAllocated, offset, len);
        Ok(self.state().image.missing(offset, len).is_empty())
    }

    fn allocated_to(&self, offset: u64, end: u64) -> io::Result<u64> {
        self.announce(CallKind::IsAllocated, offset, end - offset);
        let missing = self.state().image.missing(offset, end - offset);
        Ok(missing
            .first()
            .map_or(end, |unit| (unit * UNIT_BYTES).max(offset)))
    }

    fn stat(&self) -> io::Result<DeviceStat> {
        self.announce(CallKind::Stat, 0, 0);
        let state = self.state();
        Ok(DeviceStat {
            len: state.image.len(),
            allocated: state.image.units() * UNIT_BYTES,
            mtime_ns: state.mtime_ns,
            ctime_ns: state.ctime_ns,
            links: u32::from(self.has_name()),
        })
    }

    fn set_modified(&self, mtime_ns: Option<u64>) -> io::Result<()> {
        let mut state = self.state();
        state.ctime_ns = self.disk.tick();
        state.mtime_ns = mtime_ns.unwrap_or(state.ctime_ns);
        Ok(())
    }

    fn wait_in_flight(&self) -> io::Result<()> {
        self.announce(CallKind::WaitInFlight, 0, 0);
        let idle = self
            .write_ended
            .wait_while(self.state(), |state| state.writes_in_flight > 0);
        drop(idle.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

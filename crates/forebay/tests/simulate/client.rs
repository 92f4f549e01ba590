//! What a client does: operations chosen by dice, each noted in the ledgers when it begins and when it ends.

use std::rc::Rc;
use std::time::Duration;

use forebay::device::DeviceFile;
use forebay::file::closing;
use forebay::member::table;
use forebay::sim::device::{Description, SimFile};
use forebay::sim::tasks;
use forebay::{Advise, Error, File};
use forebay_model::{Access, SplitMix64, fill};

use crate::change::Change;
use crate::promise::Opening;
use crate::swarm::Act;
use crate::world::{Handle, Process, World};

/// A client's thread.
pub struct Client {
    world: Rc<World>,
    process: Rc<Process>,
    dice: SplitMix64,
    /// Where the last read of each file has ended, and the file of the next one.
    read_to: Vec<u64>,
}

/// An operation is under way while this lives.
struct Busy(Rc<World>);

impl Busy {
    fn new(world: &Rc<World>) -> Self {
        world.busy.set(world.busy.get() + 1);
        world.operations.set(world.operations.get() + 1);
        Busy(Rc::clone(world))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.set(self.0.busy.get().saturating_sub(1));
    }
}

/// One operation of a client or an outsider, once nobody audits.
pub fn turn(world: &Rc<World>, act: impl FnOnce()) {
    while world.pause.get() {
        tasks::sleep(Duration::from_micros(200));
    }
    let _busy = Busy::new(world);
    act();
}

/// Memory of a program's, which a device takes or does not.
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub fn new(len: usize, skew: usize) -> Self {
        let bytes = vec![0xee; len + 4096 + skew];
        let start = bytes.as_ptr().align_offset(4096) + skew;
        Buffer { bytes, start, len }
    }

    pub fn get(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl Client {
    pub fn new(world: &Rc<World>, process: &Rc<Process>, seed: u64) -> Self {
        Client {
            world: Rc::clone(world),
            process: Rc::clone(process),
            dice: SplitMix64::new(seed),
            read_to: vec![0; world.files.len()],
        }
    }

    /// Lives until it is killed.
    pub fn live(mut self) {
        loop {
            let world = Rc::clone(&self.world);
            turn(&world, || self.act());
            let rest = self.world.swarm.rest.as_nanos() as u64;
            tasks::sleep(Duration::from_nanos(self.dice.below(rest)));
        }
    }

    fn act(&mut self) {
        let name = self.dice.below(self.world.swarm.files as u64) as usize;
        let handle = self.dice.below(self.world.swarm.handles as u64) as usize;
        let open = self.process.handles.borrow()[name][handle].clone();
        let Some(open) = open else {
            // What nobody has open is there for outsiders.
            if self.world.swarm.leaves && self.dice.below(3) != 0 {
                return;
            }
            return self.reopen(name, handle);
        };
        let file = open.subject;
        match self.draw_act() {
            Act::Write => self.write(file, &open, false),
            Act::WriteVectored => self.write(file, &open, true),
            Act::Append => self.append(file, &open),
            Act::Read => self.read(file, &open, false),
            Act::ReadOn => self.read(file, &open, true),
            Act::SetLen => self.set_len(file, &open),
            Act::Punch => self.punch(file, &open),
            Act::SyncData => self.sync(file, &open, "fdatasync", File::sync_data),
            Act::SyncAll => self.sync(file, &open, "fsync", File::sync_all),
            Act::Flush => self.flush(file, &open),
            Act::Len => self.len(file, &open),
            Act::Reopen => {
                drop(open);
                self.reopen(name, handle);
            }
            Act::Replace => {
                drop(open);
                self.replace(name);
            }
            Act::Leave => {
                self.write(file, &open, false);
                drop(open);
                (0..self.world.swarm.handles).for_each(|handle| self.close(name, handle));
            }
            Act::Advise => self.advise(file, &open),
            Act::Evict => self.evict(file, &open),
        }
    }

    fn draw_act(&mut self) -> Act {
        let acts = &self.world.swarm.acts;
        let total = acts.iter().map(|(_, weight)| weight).sum();
        let mut left = self.dice.below(total);
        for &(act, weight) in acts {
            if left < weight {
                return act;
            }
            left -= weight;
        }
        unreachable!("weights add up to the total")
    }

    fn log(&self, what: String) {
        self.world
            .log(format!("client {}: {what}", self.process.number));
    }

    /// A failure that the device cannot have caused fails the test.
    fn excuse(&self, what: &str, error: &Error) {
        let errno = error.errno();
        let by_device = errno == libc::EIO || errno == libc::ENOSPC;
        assert!(
            by_device && self.world.swarm.may_fail(),
            "{what} fails, and the device has not: {error}"
        );
        self.log(format!("{what} failed: errno {errno}"));
    }

    /// Where an operation happens, bytes, and how many it is on: mostly where pages, blocks or the file end.
    fn place(&mut self, file: usize) -> (u64, u64) {
        const PAGE: u64 = 4096;
        let window = self.world.swarm.window;
        let end = self.world.files[file].ledger.borrow().shortest();
        let any = self.dice.below(window);
        let offset = match self.dice.below(10) {
            0..=2 => any,
            3 | 4 => any / PAGE * PAGE,
            5 => any / PAGE * PAGE + 4095,
            6 => any / (64 * PAGE) * 64 * PAGE,
            7 => end,
            8 => end.saturating_sub(1 + self.dice.below(PAGE)),
            _ => self.dice.below(2 * PAGE),
        };
        let offset = offset.min(window - 1);
        let longest = self.world.swarm.longest;
        let len = match self.dice.below(8) {
            0 => self.dice.below(20),
            1 | 2 => 1 + self.dice.below(PAGE),
            3 | 4 => PAGE * (1 + self.dice.below(4)),
            5 => 64 * PAGE * (1 + self.dice.below(2)),
            _ => 1 + self.dice.below(longest),
        };
        (offset, len.min(longest).min(window - offset))
    }

    fn skew(&mut self) -> usize {
        [0, 0, 24, 512][self.dice.below(4) as usize]
    }

    fn write(&mut self, file: usize, open: &Handle, vectored: bool) {
        if open.access == Access::ReadOnly {
            return;
        }
        if open.access == Access::Append {
            return self.append(file, open);
        }
        let (offset, len) = self.place(file);
        let Some(change) = Change::write(&self.world, file, offset, offset + len) else {
            return;
        };
        let seed = change.seed;
        self.log(format!("write {seed} file {file} {offset}+{len}"));
        let mut memory = Buffer::new(len as usize, self.skew());
        fill(seed, offset, memory.get());
        let bytes = &*memory.get();
        let result = if vectored {
            let middle = self.dice.below(len + 1) as usize;
            let (head, tail) = bytes.split_at(middle);
            let slices = [std::io::IoSlice::new(head), std::io::IoSlice::new(tail)];
            open.file.write_vectored_at(&slices, offset)
        } else {
            open.file.write_at(bytes, offset)
        };
        self.log(format!("  write {seed}: {:?}", result.as_ref().ok()));
        match result {
            Ok(written) if written as u64 == len => change.done(),
            Ok(written) => {
                let swarm = &self.world.swarm;
                let is_excused = swarm.may_fail() || swarm.weather.short_rarity != 0;
                assert!(is_excused, "{written} of {len} written");
            }
            Err(error) => self.excuse("a write", &error),
        }
    }

    fn append(&mut self, file: usize, open: &Handle) {
        if open.access == Access::ReadOnly {
            return;
        }
        let (_, len) = self.place(file);
        let end = self.world.files[file].ledger.borrow().longest();
        if len == 0 || end + len > self.world.swarm.window {
            return;
        }
        let Some(change) = Change::append(&self.world, file, len) else {
            return;
        };
        let seed = change.seed;
        self.log(format!("append {seed} file {file} +{len}"));
        let mut memory = Buffer::new(len as usize, self.skew());
        fill(seed, 0, memory.get());
        let result = open.file.append(memory.get());
        self.log(format!("  append {seed}: {:?}", result.as_ref().ok()));
        match result {
            Ok(at) => change.done_at(at),
            Err(error) => self.excuse("an append", &error),
        }
    }

    fn read(&mut self, file: usize, open: &Handle, on: bool) {
        let (mut offset, len) = self.place(file);
        if on {
            offset = self.read_to[file];
        }
        let mut memory = Buffer::new(len as usize, self.skew());
        let looking = Change::look(&self.world, file);
        let faults = self.world.station().faults();
        let result = open.file.read_at(memory.get(), offset);
        let count = result.as_ref().ok().copied();
        self.log(format!("read file {file} {offset}+{len}: {count:?}"));
        match result {
            Ok(count) => {
                // What comes before an error of the device is given.
                let is_cut = self.world.station().faults() != faults;
                let wanted = if is_cut { count as u64 } else { len };
                looking.check_read(offset, wanted, &memory.get()[..count]);
                self.read_to[file] = if count == 0 { 0 } else { offset + count as u64 };
            }
            Err(error) => self.excuse("a read", &error),
        }
    }

    fn set_len(&mut self, file: usize, open: &Handle) {
        if open.access == Access::ReadOnly {
            return;
        }
        let (len, _) = self.place(file);
        let len = if self.dice.below(4) == 0 {
            self.dice.below(len + 1)
        } else {
            len
        };
        let Some(change) = Change::resize(&self.world, file, len) else {
            return;
        };
        self.log(format!("truncate file {file} {len}"));
        let result = open.file.set_len(len);
        self.log(format!("  truncate: {}", result.is_ok()));
        match result {
            Ok(()) => change.done(),
            Err(error) => self.excuse("a truncation", &error),
        }
    }

    fn punch(&mut self, file: usize, open: &Handle) {
        let (offset, len) = self.place(file);
        let end = offset + len;
        let inside = end <= self.world.files[file].ledger.borrow().shortest();
        if open.access == Access::ReadOnly || len == 0 || !inside {
            return;
        }
        let Some(change) = Change::hole(&self.world, file, offset, end) else {
            return;
        };
        self.log(format!("punch file {file} {offset}+{len}"));
        let result = open.file.punch(offset, len);
        self.log(format!("  punch: {}", result.is_ok()));
        match result {
            Ok(()) => change.done(),
            Err(error) => self.excuse("a hole", &error),
        }
    }

    fn sync(
        &mut self,
        file: usize,
        open: &Handle,
        name: &str,
        sync: fn(&File) -> forebay::Result<()>,
    ) {
        let looking = Change::look(&self.world, file);
        let result = sync(&open.file);
        self.log(format!("{name} file {file}: {}", result.is_ok()));
        match result {
            Ok(()) => looking.check_synced(),
            Err(error) => self.excuse("a sync", &error),
        }
    }

    fn flush(&mut self, file: usize, open: &Handle) {
        let result = open.file.flush();
        self.log(format!("flush file {file}: {}", result.is_ok()));
        if let Err(error) = result {
            self.excuse("a flush", &error);
        }
    }

    fn len(&mut self, file: usize, open: &Handle) {
        let looking = Change::look(&self.world, file);
        let len = open.file.len();
        self.log(format!("length of file {file}: {:?}", len.as_ref().ok()));
        match len {
            Ok(len) => looking.check_length(len),
            Err(error) => self.excuse("a length", &error),
        }
    }

    fn close(&mut self, name: usize, handle: usize) {
        let old = self.process.handles.borrow_mut()[name][handle].take();
        if let Some(old) = old {
            let file = old.subject;
            // Another thread may be using it: then it closes with that.
            if let Ok(closes) = Rc::try_unwrap(old.file) {
                let closing = self.world.begin_close(file);
                let closed = if self.world.swarm.leaves && self.dice.below(8) != 0 {
                    self.log(format!("closing file {file}"));
                    closes.close_behind(|| drop(old.own))
                } else {
                    let closed = closes.close();
                    drop(old.own);
                    closed
                };
                drop(old.open);
                if self.world.files[file].is_leased() {
                    self.world.left.set(self.world.left.get() + 1);
                }
                self.log(format!("close file {file}: {}", closed.is_ok()));
                match closed {
                    Ok(()) => self.world.closed_well(file, &closing),
                    Err(error) => self.excuse("a close", &error),
                }
            }
        }
    }

    /// Removes a file and makes another, or renames one over it; mostly it has closed it before.
    fn replace(&mut self, name: usize) {
        if self.dice.below(4) != 0 {
            (0..self.world.swarm.handles).for_each(|handle| self.close(name, handle));
        }
        let from = self.dice.below(self.world.swarm.files as u64) as usize;
        let from = if self.dice.below(3) == 0 { from } else { name };
        let lost = {
            let sim = self.world.files[self.world.named(name)].sim();
            (sim.caps().device, sim.caps().inode)
        };
        let replaced = self.world.replace(name, from);
        if replaced.is_some() && self.dice.below(2) == 0 {
            self.process.session.forget_removed(lost);
        }
    }

    fn reopen(&mut self, name: usize, handle: usize) {
        self.close(name, handle);
        let file = self.world.named(name);
        if self.world.files[file].standing.is_written_outside() {
            return;
        }
        // Found: whoever gives the name to another file now does not change that.
        let found = self.world.files[file].sim();
        let mut opening = Opening::new(&self.world, file);
        self.await_keeper(&found);
        let own = Description::open(&found);
        let access = match self.dice.below(8) {
            0 => Access::ReadOnly,
            1 => Access::Append,
            _ => Access::ReadWrite,
        };
        let truncates = access == Access::ReadWrite && self.dice.below(12) == 0;
        let change = truncates
            .then(|| Change::resize(&self.world, file, 0))
            .flatten();
        if change.is_some() {
            opening.cuts();
        }
        let opened = self
            .world
            .open(&self.process.session, file, access, change.is_some());
        let cut = change.is_some();
        self.log(format!(
            "open file {file} {access:?}, cut {cut}: {}",
            opened.is_ok()
        ));
        match opened {
            Ok(opened) => {
                if let Some(change) = change {
                    change.done();
                }
                let new = Handle {
                    file: Rc::new(opened),
                    subject: file,
                    access,
                    own,
                    open: Rc::new(opening.done()),
                };
                // Another thread may have been here: its file is closed, which takes time.
                let old = self.process.handles.borrow_mut()[name][handle].replace(new);
                drop(old);
            }
            Err(error) => self.excuse("an opening", &error),
        }
    }

    /// Some wait for the keeper to be done with a file before they open it, as the preload library does; the others wait for its lease.
    fn await_keeper(&mut self, found: &SimFile) {
        if !self.world.swarm.leaves || self.dice.below(2) == 0 {
            return;
        }
        let (arena, caps) = (&self.process.session.shared().arena, found.caps());
        if let Some(id) = table::find(arena, caps.device, caps.inode) {
            closing::await_end(arena, id);
        }
    }

    fn advise(&mut self, file: usize, open: &Handle) {
        let (offset, len) = self.place(file);
        let advice = [
            Advise::Normal,
            Advise::Sequential,
            Advise::Random,
            Advise::WillNeed,
        ][self.dice.below(4) as usize];
        self.log(format!("advise file {file} {offset}+{len}"));
        if let Err(error) = open.file.advise(offset, len, advice) {
            self.excuse("advice", &error);
        }
    }

    fn evict(&mut self, file: usize, open: &Handle) {
        self.log(format!("evict file {file}"));
        if let Some(core) = open.file.core()
            && let Ok(me) = core.shared.me()
        {
            forebay::evict::evict_file(me, core.id);
        }
    }
}

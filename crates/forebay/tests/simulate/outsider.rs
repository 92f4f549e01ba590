//! Programs outside the session: they open files by their names, look at them or write them, and know nothing of the session.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay::device::{DeviceFile, DeviceStat, Piece};
use forebay::sim::device::{Description, SimFile, Timed};
use forebay::sim::tasks;
use forebay_model::{SplitMix64, fill};

use crate::change::Change;
use crate::client::{Buffer, turn};
use crate::promise::Outside;
use crate::world::World;

/// They come seldom: whoever has a file open keeps others from having a lease on it.
const RESTS: u64 = 40;
const REST_MIN: Duration = Duration::from_micros(20);
/// The longest that one may have to wait for a file that nobody has open, where nobody has died and the device is well.
const WAITS_MAX: Duration = Duration::from_secs(2);
/// How long one stays at a file that it looks at.
const STAYS: Duration = Duration::from_millis(8);

/// A program outside.
pub struct Outsider {
    world: Rc<World>,
    number: u32,
    dice: SplitMix64,
}

impl Outsider {
    pub fn new(world: &Rc<World>, number: u32, seed: u64) -> Self {
        Outsider {
            world: Rc::clone(world),
            number,
            dice: SplitMix64::new(seed),
        }
    }

    /// Lives until everybody dies.
    pub fn live(mut self) {
        loop {
            let world = Rc::clone(&self.world);
            turn(&world, || self.act());
            let rest = RESTS * self.world.swarm.rest.max(REST_MIN).as_nanos() as u64;
            tasks::sleep(Duration::from_nanos(self.dice.below(rest)));
        }
    }

    fn act(&mut self) {
        let files = self.world.swarm.files as u64;
        let name = self.dice.below(files) as usize;
        let file = self.world.named(name);
        // Found: whoever gives the name to another file now does not change that.
        let found = self.world.files[file].sim();
        match self.dice.below(20) {
            0 if self.world.swarm.renames() => {
                let from = self.dice.below(files) as usize;
                let _ = self.world.replace(name, from);
            }
            0..=3 => self.write(file, &found),
            4 => self.cut(file, &found),
            _ => self.look(file, &found),
        }
    }

    fn log(&self, what: String) {
        self.world.log(format!("outsider {}: {what}", self.number));
    }

    fn look(&mut self, file: usize, found: &Arc<SimFile>) {
        let promise = self.world.promise(file);
        let at_length = Change::look(&self.world, file);
        let at_bytes = Change::look(&self.world, file);
        let waits = found.is_leased();
        let begun = tasks::now();
        let opened = Description::open(found);
        let waited = tasks::now() - begun;
        let (stat, bytes) = see(opened.file());
        let holds = promise.is_some() && self.world.promise(file) == promise;
        self.log(format!(
            "look at file {file}, {}, promised {holds}, leased {waits}",
            stat.len
        ));
        if !holds {
            return;
        }
        assert!(
            waited < WAITS_MAX,
            "an outsider waits for file {file} for {waited:?}, and nothing has gone wrong"
        );
        at_length.check_length(stat.len);
        let offset = self.dice.below(stat.len + 1);
        let wanted = self.dice.below(stat.len - offset + 10);
        let end = (offset + wanted).min(stat.len);
        at_bytes.check_read(offset, wanted, &bytes[offset as usize..end as usize]);
        let count = |count: &std::cell::Cell<u64>| count.set(count.get() + 1);
        count(&self.world.outside_looks);
        if waits {
            count(&self.world.lease_waits);
        }
        // Nobody is at it any more.
        tasks::sleep(STAYS.mul_f64(self.dice.below(100) as f64 / 100.0));
        let (again, other) = see(opened.file());
        if self.world.promise(file) == promise {
            assert!(
                (stat.len, stat.mtime_ns) == (again.len, again.mtime_ns) && bytes == other,
                "file {file} has been opened by an outsider, nobody else has it open, and it changes: {stat:?}, then {again:?}"
            );
        }
    }

    /// Has a file to itself. `None`: the session has it.
    fn begin(&self, file: usize, found: &Arc<SimFile>) -> Option<(Timed, Outside)> {
        let opened = Description::open(found);
        let outside = Outside::begin(&self.world, file)?;
        Some((Timed::of(opened, self.world.station()), outside))
    }

    fn write(&mut self, file: usize, found: &Arc<SimFile>) {
        let Some((device, _outside)) = self.begin(file, found) else {
            return;
        };
        let (window, longest) = (self.world.swarm.window, self.world.swarm.longest);
        let offset = self.dice.below(window);
        let len = (1 + self.dice.below(longest)).min(window - offset);
        let Some(change) = Change::write(&self.world, file, offset, offset + len) else {
            return;
        };
        let seed = change.seed;
        self.log(format!("write {seed} file {file} {offset}+{len}"));
        let mut memory = Buffer::new(len as usize, 0);
        fill(seed, offset, memory.get());
        let bytes = memory.get();
        let piece = Piece {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
        };
        let written = device.write_buffered(&[piece], offset);
        self.log(format!("  write {seed}: {:?}", written.as_ref().ok()));
        if matches!(written, Ok(written) if written as u64 == len) {
            change.done();
        }
    }

    fn cut(&mut self, file: usize, found: &Arc<SimFile>) {
        let Some((device, _outside)) = self.begin(file, found) else {
            return;
        };
        let len = self.dice.below(self.world.swarm.window);
        let Some(change) = Change::resize(&self.world, file, len) else {
            return;
        };
        self.log(format!("truncate file {file} {len}"));
        if device.set_len(len).is_ok() {
            change.done();
        }
    }
}

/// What a program sees that has a file open.
fn see(file: &SimFile) -> (DeviceStat, Vec<u8>) {
    (file.stat().expect("a look"), file.contents())
}

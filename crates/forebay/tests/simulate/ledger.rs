//! What a file's bytes and its length may be, with operations of several clients under way at once.
//!
//! Time is a count of events. Each byte has *versions*: what writes, cuts and holes have put there, each with the time at which
//! its operation began and ended, and the time from which on nobody may see it any more. A version goes when
//!
//! - an operation that began after it had ended is acknowledged, or is seen by a reader;
//! - a reader sees another one after its own operation has ended: bytes do not come back.
//!
//! A reader, or a sync that looks at the device, may see what nobody had to have forgotten when it began. What the power may
//! bring back is what was not to be forgotten when the last sync that succeeded began: so versions are kept until then.
//!
//! An operation whose client has died, or that failed, may have happened, in part too, until an audit says that everything
//! is repaired; then what is found is what is there.

mod look;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::value::Value;

const NEVER: u64 = u64::MAX;

#[derive(Clone)]
struct Version {
    id: u64,
    value: Value,
    begun: u64,
    /// When it was acknowledged, or settled by an audit.
    ended: u64,
    /// An operation that begins from here on does not see it.
    gone: u64,
}

struct Interval {
    end: u64,
    versions: Vec<Version>,
}

/// A stretch of time in which somebody looks.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    begun: u64,
    /// The lengths that the file may have had.
    shortest: u64,
    longest: u64,
    /// Bytes from here on are not known: appends were under way.
    known_below: u64,
}

/// A look that has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looking(u64);

/// An operation that changes a file and has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begun {
    id: u64,
    start: u64,
    end: u64,
}

/// The account of one file.
pub struct Ledger {
    clock: u64,
    numbered: u64,
    intervals: BTreeMap<u64, Interval>,
    /// Lengths that the file may have now.
    shortest: u64,
    longest: u64,
    known_below: u64,
    /// Appends under way, or undone by a death.
    appends: u32,
    /// Changes of the length under way.
    resizes: u32,
    windows: Vec<(u64, Window)>,
    /// Since the last sync that succeeded. `None` where power never fails.
    durable: Option<Window>,
    /// Operations that may have happened.
    doubtful: Vec<u64>,
    scratch: Vec<u8>,
}

impl Ledger {
    /// Of an empty file.
    pub fn new(power_fails: bool) -> Self {
        let mut ledger = Ledger {
            clock: 0,
            numbered: 0,
            intervals: BTreeMap::new(),
            shortest: 0,
            longest: 0,
            known_below: NEVER,
            appends: 0,
            resizes: 0,
            windows: Vec::new(),
            durable: None,
            doubtful: Vec::new(),
            scratch: Vec::new(),
        };
        ledger.restart(Rc::default());
        ledger.durable = power_fails.then(|| ledger.window());
        ledger
    }

    /// From here on these bytes are all that there is.
    pub fn restart(&mut self, found: Rc<Vec<u8>>) {
        assert!(self.windows.is_empty(), "somebody is looking");
        let now = self.tick();
        let len = found.len() as u64;
        let first = Version {
            id: 0,
            value: Value::Found(found),
            begun: 0,
            ended: now,
            gone: NEVER,
        };
        let versions = vec![first];
        self.intervals = BTreeMap::from([(
            0,
            Interval {
                end: NEVER,
                versions,
            },
        )]);
        (self.shortest, self.longest) = (len, len);
        (self.known_below, self.appends, self.resizes) = (NEVER, 0, 0);
        self.doubtful.clear();
        if self.durable.is_some() {
            self.durable = Some(self.window());
        }
    }

    /// As [`Ledger::restart`], by somebody who has looked at memory and not at the device: what the power may bring back is kept.
    pub fn restart_known(&mut self, found: Rc<Vec<u8>>) {
        let below = self.known_below;
        let len = found.len() as u64;
        (self.known_below, self.appends, self.resizes) = (NEVER, 0, 0);
        if below < len {
            let begun_there = self.begin(below, len, Value::Found(found));
            self.end(begun_there);
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// What can be seen from now on.
    fn window(&self) -> Window {
        Window {
            begun: self.clock,
            shortest: self.shortest,
            longest: self.longest,
            known_below: self.known_below,
        }
    }

    /// The length that the file has at least.
    pub fn shortest(&self) -> u64 {
        self.shortest
    }

    /// The length that it has at most.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// Whether an audit has to say what is there before the length can be changed again.
    pub fn is_doubtful(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// Everybody who looks may see these lengths as well.
    fn widen(&mut self) {
        let now = self.window();
        let windows = self.windows.iter_mut().map(|(_, window)| window);
        for window in windows.chain(&mut self.durable) {
            window.shortest = window.shortest.min(now.shortest);
            window.longest = window.longest.max(now.longest);
            window.known_below = window.known_below.min(now.known_below);
        }
    }

    /// Makes `at` the beginning of an interval.
    fn split(&mut self, at: u64) {
        let (&start, here) = self.intervals.range_mut(..=at).next_back().expect("zero");
        if start == at || here.end <= at {
            return;
        }
        let (end, versions) = (here.end, here.versions.clone());
        here.end = at;
        self.intervals.insert(at, Interval { end, versions });
    }

    /// Somebody begins to put `value` into a range.
    pub fn begin(&mut self, start: u64, end: u64, value: Value) -> Begun {
        self.numbered += 1;
        let (id, begun) = (self.numbered, self.tick());
        if start < end {
            self.split(start);
            self.split(end);
        }
        for (_, here) in self.intervals.range_mut(start..end.max(start)) {
            here.versions.push(Version {
                id,
                value: value.clone(),
                begun,
                ended: NEVER,
                gone: NEVER,
            });
        }
        Begun { id, start, end }
    }

    /// The same of a write, which may make the file longer.
    pub fn begin_write(&mut self, start: u64, end: u64, seed: u32) -> Begun {
        self.longest = self.longest.max(end);
        self.resizes += 1;
        self.widen();
        self.begin(start, end, Value::Seed { seed, base: 0 })
    }

    /// The same of a new length.
    pub fn begin_resize(&mut self, len: u64) -> Begun {
        let from = self.shortest.min(len);
        self.shortest = self.shortest.min(len);
        self.longest = self.longest.max(len);
        self.resizes += 1;
        self.widen();
        self.begin(from, NEVER, Value::Zero)
    }

    /// Somebody begins to append: nobody knows where yet.
    pub fn begin_append(&mut self, len: u64) -> Begun {
        if self.appends == 0 {
            self.known_below = self.shortest;
        }
        self.appends += 1;
        self.longest += len;
        self.widen();
        let at = self.clock;
        let mut begun = self.begin(0, 0, Value::Zero);
        (begun.start, begun.end) = (at, at + len);
        begun
    }

    /// It has happened.
    pub fn end(&mut self, begun: Begun) {
        let now = self.tick();
        for (_, here) in self
            .intervals
            .range_mut(begun.start..begun.end.max(begun.start))
        {
            Self::end_here(here, begun.id, now);
        }
        self.forget(begun.start, begun.end);
    }

    fn end_here(here: &mut Interval, id: u64, now: u64) {
        let Some(place) = here.versions.iter().position(|version| version.id == id) else {
            return;
        };
        here.versions[place].ended = now;
        let begun = here.versions[place].begun;
        for other in here.versions.iter_mut().filter(|other| other.id != id) {
            if other.ended < begun {
                other.gone = other.gone.min(now);
            }
        }
    }

    /// A write has happened.
    pub fn end_write(&mut self, begun: Begun) {
        self.resizes -= 1;
        self.shortest = self.shortest.max(begun.end);
        self.settle_length();
        self.end(begun);
    }

    /// A file has its new length.
    pub fn end_resize(&mut self, begun: Begun, len: u64) {
        self.resizes -= 1;
        (self.shortest, self.longest) = (len, len);
        self.end(begun);
    }

    /// An append has happened, at `at`.
    pub fn end_append(&mut self, begun: Begun, at: u64, seed: u32) {
        let len = begun.end - begun.start;
        assert!(
            at >= self.known_below && at + len <= self.longest,
            "appended at {at}, and the file's end was between {} and {}",
            self.known_below,
            self.longest
        );
        let since = begun.start;
        let put = self.begin(at, at + len, Value::Seed { seed, base: at });
        for (_, here) in self.intervals.range_mut(at..at + len) {
            for version in here.versions.iter_mut() {
                if version.id == put.id {
                    version.begun = since;
                } else if version.ended > since && matches!(version.value, Value::Seed { .. }) {
                    panic!("an append at {at}, over {}", version.value.describe());
                }
            }
        }
        self.appends -= 1;
        self.shortest = self.shortest.max(at + len);
        self.settle_length();
        self.end(put);
    }

    /// Where nothing that changes the length is under way, there is one.
    fn settle_length(&mut self) {
        if self.appends == 0 && self.resizes == 0 && self.doubtful.is_empty() {
            self.longest = self.shortest;
            self.known_below = NEVER;
        }
    }

    /// It may have happened.
    pub fn doubt(&mut self, begun: Begun) {
        self.doubtful.push(begun.id);
    }

    /// Nothing that may have happened happens from here on.
    pub fn settle(&mut self) {
        let now = self.tick();
        let doubtful = std::mem::take(&mut self.doubtful);
        for here in self.intervals.values_mut() {
            for version in &mut here.versions {
                if doubtful.contains(&version.id) {
                    version.ended = now;
                }
            }
        }
        (self.appends, self.resizes) = (0, 0);
    }

    /// Whether bytes at the end are unknown.
    pub fn known_below(&self) -> u64 {
        self.known_below
    }

    /// The file is so long, says an audit, which begins to look now.
    ///
    /// # Errors
    /// It cannot be.
    pub fn adopt_length(&mut self, len: u64) -> Result<(), String> {
        if !(self.shortest..=self.longest).contains(&len) {
            let (least, most) = (self.shortest, self.longest);
            return Err(format!("{len} bytes long, not {least} to {most}"));
        }
        (self.shortest, self.longest) = (len, len);
        Ok(())
    }

    /// Somebody begins to look.
    pub fn look(&mut self) -> Looking {
        self.numbered += 1;
        self.tick();
        self.windows.push((self.numbered, self.window()));
        self.tick();
        Looking(self.numbered)
    }

    /// The look has ended, or will never end.
    pub fn look_away(&mut self, looking: Looking) -> Window {
        let place = self.windows.iter().position(|(id, _)| *id == looking.0);
        self.windows.swap_remove(place.expect("somebody looks")).1
    }

    /// Drops versions that nobody who looks may see.
    fn forget(&mut self, start: u64, end: u64) {
        let windows = self.windows.iter().map(|(_, window)| window.begun);
        let oldest = windows
            .chain(self.durable.map(|durable| durable.begun))
            .min();
        let oldest = oldest.unwrap_or(self.clock);
        for (_, here) in self.intervals.range_mut(start..end.max(start)) {
            here.versions.retain(|version| version.gone > oldest);
        }
    }
}

//! What several programs have done with one file at once, and whether one order of it explains what they have read.
//!
//! The file is seen as cells of 8 bytes. Each cell that is written says which change has put it there, and which cell of that change it is; so
//! one read says where an append has landed. Times are by one clock. Each change is one step, at some moment between its start and its end.
//!
//! The check looks for what no order explains. It does not search for an order, so it may miss some mistakes; what it reports is one:
//!
//! - A cell has the value of a change that had begun before the read ended, and that no other change of the cell has certainly followed before the
//!   read began.
//! - A reader of a part of a change has seen it happen: for a reader that begins later it is over.
//! - A reader that sees a change in one cell sees nothing in its other cells that is certainly older.
//! - An append lies where the file may have ended at that moment.
//!
//! The time that this takes grows with the square of the number of appends: about 1 s of a processor for 9,000.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

/// Bytes of a cell.
pub const CELL_BYTES: usize = 8;

/// A change: its maker, and its number among its maker's changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChangeId {
    /// Not 0.
    pub writer: u16,
    /// Below 2^24.
    pub sequence: u32,
}

impl fmt::Debug for ChangeId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}.{}", self.writer, self.sequence)
    }
}

impl ChangeId {
    /// What the change puts into that one of its cells, below 2^24. Never 0.
    pub fn value(self, index: usize) -> u64 {
        assert!(self.writer != 0 && self.sequence < 1 << 24 && index < 1 << 24);
        u64::from(self.writer) << 48 | u64::from(self.sequence) << 24 | index as u64
    }

    /// Which change a value is from, and which of its cells.
    fn of(value: u64) -> (ChangeId, usize) {
        let id = ChangeId {
            writer: (value >> 48) as u16,
            sequence: (value >> 24 & 0xff_ffff) as u32,
        };
        (id, (value & 0xff_ffff) as usize)
    }
}

/// What was done; places and lengths in cells.
#[derive(Clone, Debug)]
pub enum Act {
    /// Cells were written there.
    Write(Range<usize>),
    /// So many were written at the end.
    Append(usize),
    /// The file ends there now: what was behind is zero, also when it grows again.
    Truncate(usize),
    /// Cells from there on had these values; those behind the end count as 0.
    Read(usize, Vec<u64>),
}

/// One operation that succeeded.
#[derive(Clone, Debug)]
pub struct Event {
    /// Of a read, its reader.
    pub id: ChangeId,
    /// What it was.
    pub act: Act,
    /// Before it was asked for.
    pub start: u64,
    /// After it was answered.
    pub end: u64,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Writes, appends and truncations.
    pub changes: usize,
    /// Reads.
    pub reads: usize,
    /// Reads that found something of another writer's.
    pub of_others: usize,
    /// Reads that found something of a change that had not ended when they began.
    pub of_open: usize,
}

#[derive(Clone, Debug)]
struct Change {
    id: ChangeId,
    kind: Kind,
    /// `None`: an append that nobody has seen.
    from: Option<usize>,
    /// In cells; of a truncation, without end.
    length: usize,
    start: u64,
    /// When it was over at the latest.
    end: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Append,
    Cut,
}

impl Change {
    /// The one that an event is, unless it is a read.
    fn of(event: &Event) -> Option<Change> {
        let (kind, from, length) = match &event.act {
            Act::Write(cells) => (Kind::Write, Some(cells.start), cells.len()),
            Act::Append(cells) => (Kind::Append, None, *cells),
            Act::Truncate(at) => (Kind::Cut, Some(*at), usize::MAX),
            Act::Read(..) => return None,
        };
        Some(Change {
            id: event.id,
            kind,
            from,
            length,
            start: event.start,
            end: event.end,
        })
    }

    fn cells(&self) -> Range<usize> {
        let from = self.from.unwrap_or(0);
        let length = self.from.map_or(0, |_| self.length);
        from..from.saturating_add(length)
    }
}

/// Pairs in the order of their first numbers, each with the greatest second number so far.
#[derive(Clone, Default)]
struct Greatest(Vec<(u64, u64)>);

impl Greatest {
    /// The next pair.
    fn push(&mut self, first: u64, second: u64) {
        let so_far = self.0.last().map_or(0, |(_, second)| *second);
        self.0.push((first, second.max(so_far)));
    }

    /// The greatest second number of the pairs whose first one is less.
    fn below(&self, first: u64) -> Option<u64> {
        let count = self.0.partition_point(|(at, _)| *at < first);
        Some(self.0[count.checked_sub(1)?].1)
    }
}

#[derive(Clone, Default)]
struct Cell {
    /// Its changes: when they ended, when they started.
    changes: Greatest,
    /// Its truncations: when they started, when they ended.
    cuts: Greatest,
}

struct Checker {
    changes: Vec<Change>,
    by_id: HashMap<ChangeId, usize>,
    cells: Vec<Cell>,
    checked: Checked,
}

/// Whether one order of steps explains what was read. Where nothing but appends was done, each of them must be in some read.
pub fn check(events: &[Event]) -> Result<Checked, String> {
    let changes: Vec<Change> = events.iter().filter_map(Change::of).collect();
    let by_id = { changes.iter().enumerate() }.map(|(at, change)| (change.id, at));
    let mut checker = Checker {
        by_id: by_id.collect(),
        changes,
        cells: Vec::new(),
        checked: Checked::default(),
    };
    checker.checked.changes = checker.changes.len();
    let reads = events.iter().filter_map(|event| match &event.act {
        Act::Read(at, values) => Some((event, *at, values.as_slice())),
        _ => None,
    });
    for (event, at, values) in reads.clone() {
        checker.meet(event, at, values)?;
    }
    checker.index(events);
    for (event, at, values) in reads {
        for (cell, value) in (at..).zip(values) {
            checker.look(event, cell, *value)?;
        }
        checker.is_one_step(event, at, values)?;
    }
    checker.appends()?;
    Ok(checker.checked)
}

impl Checker {
    fn change(&self, value: u64) -> &Change {
        &self.changes[self.by_id[&ChangeId::of(value).0]]
    }

    /// What a read has seen: where the appends are, and that these changes were over when it ended.
    fn meet(&mut self, read: &Event, at: usize, values: &[u64]) -> Result<(), String> {
        let (mut is_of_others, mut is_of_open) = (false, false);
        for (cell, value) in (at..).zip(values).filter(|(_, value)| **value != 0) {
            let (id, index) = ChangeId::of(*value);
            let found = |but: &str| {
                let by = By(read);
                Err(format!(
                    "{by} finds in cell {cell} cell {index} of {id:?}, {but}"
                ))
            };
            let Some(number) = self.by_id.get(&id) else {
                return found("which nobody has written");
            };
            let change = &mut self.changes[*number];
            if index >= change.length || change.kind == Kind::Cut {
                return found("which is not so long");
            }
            let Some(from) = cell.checked_sub(index) else {
                return found("which would begin before the file");
            };
            if *change.from.get_or_insert(from) != from {
                return found("which lies elsewhere");
            }
            is_of_others |= id.writer != read.id.writer;
            is_of_open |= change.end > read.start;
            change.end = change.end.min(read.end);
            if change.end < change.start {
                return found("which had not begun");
            }
        }
        self.checked.reads += 1;
        self.checked.of_others += usize::from(is_of_others);
        self.checked.of_open += usize::from(is_of_open);
        Ok(())
    }

    /// Each cell's changes.
    fn index(&mut self, events: &[Event]) {
        let read_to = |event: &Event| match &event.act {
            Act::Read(at, values) => at + values.len(),
            _ => 0,
        };
        let finite = self
            .changes
            .iter()
            .filter(|change| change.kind != Kind::Cut);
        let ends = finite.map(|change| change.cells().end);
        let count = ends.chain(events.iter().map(read_to)).max().unwrap_or(0);
        self.cells = vec![Cell::default(); count];
        let mut order: Vec<&Change> = self.changes.iter().collect();
        order.sort_by_key(|change| change.end);
        for change in &order {
            let cells = change.cells();
            for cell in &mut self.cells[cells.start.min(count)..cells.end.min(count)] {
                cell.changes.push(change.end, change.start);
            }
        }
        order.retain(|change| change.kind == Kind::Cut);
        order.sort_by_key(|change| change.start);
        for cut in order {
            for cell in &mut self.cells[cut.cells().start.min(count)..] {
                cell.cuts.push(cut.start, cut.end);
            }
        }
    }

    /// When that which a read that ended at `until` has found there was over at the latest; `None`: it was so from the beginning.
    fn over(&self, cell: usize, value: u64, until: u64) -> Option<u64> {
        match value {
            0 => self.cells[cell].cuts.below(until.saturating_add(1)),
            value => Some(self.change(value).end),
        }
    }

    /// Whether a cell may have had that value at some moment of the event.
    fn look(&self, event: &Event, cell: usize, value: u64) -> Result<(), String> {
        let Some(latest) = self.cells[cell].changes.below(event.start) else {
            return Ok(());
        };
        let over = self.over(cell, value, event.end);
        if over.is_some_and(|over| over >= latest) {
            return Ok(());
        }
        let follows = |change: &&Change| {
            change.cells().contains(&cell) && change.end < event.start && change.start == latest
        };
        let (by, what) = (By(event), self.named(value));
        Err(format!(
            "{by} finds in cell {cell} {what}, over at {over:?}, before {:?} began, which has ended",
            self.changes.iter().find(follows)
        ))
    }

    fn named(&self, value: u64) -> String {
        match value {
            0 => "nothing".into(),
            value => format!("{:?}", self.change(value)),
        }
    }

    /// Whether a read that has seen a change has seen nothing older in its cells.
    fn is_one_step(&self, read: &Event, at: usize, values: &[u64]) -> Result<(), String> {
        let found = values.iter().filter(|value| **value != 0);
        let seen: HashSet<ChangeId> = found.map(|value| ChangeId::of(*value).0).collect();
        for id in seen {
            let change = &self.changes[self.by_id[&id]];
            let cells = change.cells();
            let cells = cells.start.max(at)..cells.end.min(at + values.len());
            for cell in cells {
                let value = values[cell - at];
                let over = self.over(cell, value, read.end);
                if over.is_none_or(|over| over < change.start) {
                    let (by, what) = (By(read), self.named(value));
                    return Err(format!(
                        "{by} finds a part of {change:?}, and in cell {cell} {what}, which is older"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Whether each append lies where the file may have ended.
    fn appends(&self) -> Result<(), String> {
        let all = || self.changes.iter();
        let appends = all().filter(|change| change.kind == Kind::Append);
        for append in appends {
            let Some(from) = append.from else {
                if all().all(|change| change.kind == Kind::Append) {
                    return Err(format!("{append:?} is nowhere"));
                }
                continue;
            };
            // What certainly ended there: no truncation can have cut its last cell off.
            let may_be_cut = |change: &&Change| {
                let last = &self.cells[change.cells().end - 1];
                let over = last.cuts.below(append.end.saturating_add(1));
                over.is_some_and(|over| over >= change.start)
            };
            let mut before = all().filter(|change| {
                let is_behind = change.kind != Kind::Cut && change.cells().end > from;
                is_behind && change.end < append.start
            });
            if let Some(change) = before.find(|change| !may_be_cut(change)) {
                return Err(format!("{append:?} is not at the end: {change:?}"));
            }
            let ends_there = |change: &Change| match (change.kind, change.from) {
                // It may have been anywhere.
                (_, None) => true,
                (Kind::Cut, Some(at)) => at == from,
                _ => change.cells().end == from,
            };
            // When what has made the file end there was over at the latest.
            let ends = all().filter(|change| ends_there(change) && change.start <= append.end);
            let over = ends.map(|change| change.end).max();
            let is_cut = |change: &Change| {
                let is_shorter = change.kind == Kind::Cut && change.cells().start < from;
                is_shorter
                    && change.end < append.start
                    && over.is_none_or(|over| over < change.start)
            };
            if from > 0 && (over.is_none() || all().any(is_cut)) {
                return Err(format!("{append:?} leaves a gap before it"));
            }
        }
        Ok(())
    }
}

/// An event without what it has read.
struct By<'a>(&'a Event);

impl fmt::Display for By<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event {
            id,
            act,
            start,
            end,
        } = self.0;
        match act {
            Act::Read(at, values) => write!(to, "read {id:?} of {} cells at {at}", values.len())?,
            act => write!(to, "{id:?}, {act:?},")?,
        }
        write!(to, " from {start} to {end}")
    }
}

//! What `history::check` takes for one file, and what it finds.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_model::SplitMix64;
use forebay_model::history::{Act, ChangeId, Checked, Event, check};

fn id(writer: u16, sequence: u32) -> ChangeId {
    ChangeId { writer, sequence }
}

fn event(id: ChangeId, (start, end): (u64, u64), act: Act) -> Event {
    Event {
        id,
        act,
        start,
        end,
    }
}

/// A write of these cells, a read of values, each by one cell of a write's.
fn write(by: ChangeId, at: usize, cells: usize, time: (u64, u64)) -> Event {
    event(by, time, Act::Write(at..at + cells))
}

fn append(by: ChangeId, cells: usize, time: (u64, u64)) -> Event {
    event(by, time, Act::Append(cells))
}

fn cut(by: ChangeId, at: usize, time: (u64, u64)) -> Event {
    event(by, time, Act::Truncate(at))
}

const NOTHING: Option<(ChangeId, usize)> = None;

fn read(at: usize, found: &[Option<(ChangeId, usize)>], time: (u64, u64)) -> Event {
    let value = |cell: &Option<(ChangeId, usize)>| cell.map_or(0, |(id, index)| id.value(index));
    let values = found.iter().map(value).collect();
    event(id(9, 0), time, Act::Read(at, values))
}

const A: ChangeId = ChangeId {
    writer: 1,
    sequence: 1,
};
const B: ChangeId = ChangeId {
    writer: 2,
    sequence: 1,
};

#[track_caller]
fn is_found(events: &[Event], why: &str) {
    let said = check(events).expect_err("it is a mistake");
    assert!(said.contains(why), "{said}");
}

#[track_caller]
fn is_right(events: &[Event]) {
    check(events).expect("it is right");
}

#[test]
fn a_read_beside_a_write_finds_the_one_or_the_other() {
    let writes = [write(A, 0, 2, (1, 2)), write(B, 0, 2, (5, 9))];
    for found in [A, B] {
        let cells = [Some((found, 0)), Some((found, 1))];
        let [a, b] = writes.clone();
        is_right(&[a, b, read(0, &cells, (6, 7))]);
    }
}

#[test]
fn what_is_old_is_found() {
    let writes = [write(A, 0, 1, (1, 2)), write(B, 0, 1, (3, 4))];
    let [a, b] = writes.clone();
    is_found(&[a, b, read(0, &[Some((A, 0))], (5, 6))], "which has ended");
    let [a, b] = writes;
    is_found(&[a, b, read(0, &[NOTHING], (5, 6))], "which has ended");
}

#[test]
fn who_has_seen_the_new_is_not_followed_by_one_who_sees_the_old() {
    let [old, new] = [[Some((A, 0))], [Some((B, 0))]];
    let writes = [write(A, 0, 1, (1, 2)), write(B, 0, 1, (3, 20))];
    let [a, b] = writes.clone();
    is_right(&[a, b, read(0, &old, (5, 6)), read(0, &new, (7, 8))]);
    let [a, b] = writes;
    let events = [a, b, read(0, &new, (5, 6)), read(0, &old, (7, 8))];
    is_found(&events, "which has ended");
}

#[test]
fn a_request_that_is_seen_by_half_is_found() {
    let writes = [write(A, 0, 2, (1, 2)), write(B, 0, 2, (3, 20))];
    let [a, b] = writes;
    let torn = [Some((B, 0)), Some((A, 1))];
    is_found(&[a, b, read(0, &torn, (4, 9))], "which is older");
    let torn = [Some((B, 0)), NOTHING];
    is_found(
        &[write(B, 0, 2, (3, 20)), read(0, &torn, (4, 9))],
        "which is older",
    );
}

#[test]
fn what_nobody_wrote_there_is_found() {
    let a = || write(A, 3, 2, (1, 2));
    let found = |found, at| [a(), read(at, &[Some(found)], (3, 4))];
    is_right(&found((A, 1), 4));
    is_found(&found((B, 0), 3), "nobody has written");
    is_found(&found((A, 2), 5), "not so long");
    is_found(&found((A, 0), 4), "lies elsewhere");
    is_found(
        &[a(), read(3, &[Some((A, 0))], (0, 0))],
        "which had not begun",
    );
}

#[test]
fn what_was_cut_off_comes_not_back() {
    let events = |found| {
        [
            write(A, 0, 2, (1, 2)),
            cut(B, 1, (3, 4)),
            write(id(2, 2), 5, 1, (5, 6)),
            read(0, &[Some((A, 0)), found], (7, 8)),
        ]
    };
    is_right(&events(NOTHING));
    is_found(&events(Some((A, 1))), "which has ended");
}

#[test]
fn an_append_lies_at_the_end() {
    let events = |at: usize| {
        let (first, second) = (append(A, 2, (1, 2)), append(B, 1, (3, 4)));
        [first, second, read(at, &[Some((B, 0))], (5, 6))]
    };
    let whole = read(0, &[Some((A, 0)), Some((A, 1)), Some((B, 0))], (7, 8));
    let whole_beside = |at| {
        let [first, second, last] = events(at);
        [first, second, whole.clone(), last]
    };
    is_right(&whole_beside(2));
    is_found(&events(2), "is nowhere");
    is_found(&whole_beside(3), "lies elsewhere");
    let gap = [Some((A, 0)), Some((A, 1)), NOTHING, Some((B, 0))];
    let [first, second, _] = events(2);
    is_found(&[first, second, read(0, &gap, (5, 6))], "leaves a gap");
    let [first, second, _] = events(2);
    let over = [Some((A, 0)), Some((B, 0))];
    is_found(&[first, second, read(0, &over, (5, 6))], "not at the end");
}

/// A file that does all of an operation at one moment between its start and its end, or makes a mistake.
struct File {
    random: SplitMix64,
    cells: Vec<u64>,
    before: VecDeque<Vec<u64>>,
    is_careless: bool,
}

const SIZE: u64 = 40;

impl File {
    fn event(&mut self, number: u32) -> Event {
        let moment = 1000 + 10 * u64::from(number);
        let [early, late] = [0, 1].map(|_| self.random.below(200));
        let id = id(1 + (number % 4) as u16, number);
        let at = self.random.below(SIZE) as usize;
        let cells = 1 + self.random.below(8) as usize;
        let act = match self.random.below(10) {
            0 => self.cut(at),
            1 if self.cells.len() < 2 * SIZE as usize => {
                let end = self.cells.len();
                self.write(id, end, cells);
                Act::Append(cells)
            }
            2..5 => self.write(id, at, cells),
            _ => self.read(at, cells),
        };
        self.before.push_front(self.cells.clone());
        self.before.truncate(60);
        event(id, (moment - early, moment + late), act)
    }

    fn write(&mut self, id: ChangeId, at: usize, cells: usize) -> Act {
        let end = self.cells.len().max(at + cells);
        self.cells.resize(end, 0);
        (0..cells).for_each(|index| self.cells[at + index] = id.value(index));
        Act::Write(at..at + cells)
    }

    fn cut(&mut self, at: usize) -> Act {
        self.cells.resize(at, 0);
        Act::Truncate(at)
    }

    fn read(&mut self, at: usize, cells: usize) -> Act {
        let is_wrong = self.is_careless && self.random.below(20) == 0;
        let file = if is_wrong {
            self.before.back().unwrap_or(&self.cells)
        } else {
            &self.cells
        };
        let value = |cell: usize| file.get(cell).copied().unwrap_or(0);
        Act::Read(at, (at..at + cells).map(value).collect())
    }

    fn check(seed: u64, is_careless: bool) -> Result<Checked, String> {
        let mut file = File {
            random: SplitMix64::new(seed),
            cells: Vec::new(),
            before: VecDeque::new(),
            is_careless,
        };
        let events: Vec<Event> = (1..=400).map(|number| file.event(number)).collect();
        check(&events)
    }
}

#[test]
fn a_file_that_does_one_thing_at_a_time_is_right() {
    let mut of_open = 0;
    for seed in 0..200 {
        let checked = File::check(seed, false);
        of_open += checked.expect("it is right").of_open;
    }
    assert!(of_open > 1000, "{of_open} reads beside changes");
}

#[test]
fn a_file_that_now_and_then_says_what_it_was_is_found() {
    let found = (0..200).filter(|seed| File::check(*seed, true).is_err());
    // What it said may have been right by chance.
    let found = found.count();
    assert!(found >= 190, "{found}");
}

/// What the calling thread has had of processors.
fn processor_time() -> Duration {
    let told =
        std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel's figures");
    let first = told.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(first.expect("nanoseconds"))
}

/// Appends cost the most: each is compared with all changes.
#[test]
fn ten_thousand_operations_are_checked_in_seconds() {
    let (mut events, mut cells) = (Vec::new(), Vec::new());
    for number in 0..10_000 {
        let (start, by) = (u64::from(number) * 10, id(1 + number as u16 % 4, number));
        // Each has begun before the one before it ends.
        let time = (start, start + 15);
        events.push(if number % 10 == 9 {
            let at = cells.len().saturating_sub(1000);
            read(at, &cells[at..], time)
        } else {
            cells.push(Some((by, 0)));
            append(by, 1, time)
        });
    }
    events.push(read(0, &cells, (100_010, 100_020)));
    let begun = processor_time();
    is_right(&events);
    let took = processor_time() - begun;
    // Several times what it takes without optimization on a slow machine.
    assert!(took.as_secs() < 20, "{took:?}");
}

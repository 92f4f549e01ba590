//! Properties of the scrap logic against naive models, and the examples of the paper.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::model::{LocalMap, MergeFn, PLANTED, Page, Step, spans};
use super::page::SMALL_IDS_MAX;
use super::*;
use crate::ids::{BlockIndex, SmallId};
use crate::limits::{BLOCK_BYTES, BLOCK_PAGES, FILE_BYTES_MAX, PAGE_BYTES};

const KIB: usize = 1024;

fn run(start: u16, len: u16) -> Ragged {
    Ragged::Run { start, len }
}

/// Positions in `0..=PAGE_BYTES`, often at or beside the ends of a bitmap's words and of the page.
fn position() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 0..=PAGE_BYTES,
        1 => (0..=PAGE_BYTES / 64, 0..3usize)
            .prop_map(|(word, beside)| (word * 64 + beside).saturating_sub(1).min(PAGE_BYTES)),
        1 => prop::sample::select(vec![0, 1, PAGE_BYTES - 1, PAGE_BYTES]),
    ]
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    (position(), position())
        .prop_filter("empty", |(a, b)| a != b)
        .prop_map(|(a, b)| (a.min(b), a.max(b)))
}

/// Writes, of which half begin or end within two bytes of where the one before them did: that is
/// where merging goes wrong, and two random ranges are seldom so close.
fn writes() -> impl Strategy<Value = Vec<Step>> {
    let near = prop::option::of((any::<bool>(), -2..=2isize));
    prop::collection::vec((range(), near), 0..24).prop_map(|all| {
        let mut last = (0, PAGE_BYTES);
        let place = |((start, end), near): ((usize, usize), Option<(bool, isize)>)| {
            last = match near {
                None => (start, end),
                Some((true, beside)) => {
                    let start = last.1.saturating_add_signed(beside).min(PAGE_BYTES - 1);
                    (start, end.max(start + 1))
                }
                Some((false, beside)) => {
                    let end = last.0.saturating_add_signed(beside).clamp(1, PAGE_BYTES);
                    (start.min(end - 1), end)
                }
            };
            Step::Write(last.0, last.1)
        };
        all.into_iter().map(place).collect()
    })
}

/// Writes that fill the page piece by piece, in any order: adjacent ones touch.
fn pieces() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::btree_set(1..PAGE_BYTES, 0..12)
        .prop_map(|cuts| {
            let ends: Vec<usize> = cuts.into_iter().chain([PAGE_BYTES]).collect();
            let starts = [0].into_iter().chain(ends.iter().copied());
            starts
                .zip(ends.iter())
                .map(|(start, &end)| Step::Write(start, end))
                .collect::<Vec<_>>()
        })
        .prop_shuffle()
}

/// Writes, with a truncation here and there.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cuts = prop::collection::vec((any::<prop::sample::Index>(), position()), 0..3);
    (writes(), cuts).prop_map(|(mut steps, cuts)| {
        for (index, end) in cuts {
            steps.insert(index.index(steps.len() + 1), Step::Truncate(end));
        }
        steps
    })
}

// The word.

#[test]
fn zero_is_an_empty_page() {
    assert_eq!(PageWord::EMPTY.ragged(), Ragged::None);
    assert_eq!(PageWord::EMPTY.small(), None);
    assert!(PageWord::EMPTY.is_wellformed());
}

#[test]
fn layout_is_the_documented_one() {
    let word = PageWord::EMPTY
        .with_small(Some(SmallId(0)))
        .with_ragged(run(3, 5));
    assert_eq!(word.0, 1 << 62 | 1 << 32 | 5 << 12 | 3);
    let word = PageWord::EMPTY.with_ragged(Ragged::Map(SmallId(9)));
    assert_eq!(word.0, 2 << 62 | 9);
    let last = SmallId(SMALL_IDS_MAX - 1);
    assert_eq!(PageWord(u64::MAX).small(), Some(last));
    assert_eq!(
        PageWord::EMPTY.with_small(Some(last)).0,
        ((1 << 30) - 1) << 32
    );
}

#[test]
fn damaged_words_have_no_bytes() {
    let damaged = [
        1,                                  // no tag, but a ragged part
        3 << 62,                            // no such tag
        1 << 62,                            // a run of nothing
        1 << 62 | 1 << 24 | 1 << 12,        // bits beyond the run's
        1 << 62 | 4095 << 12 | 2,           // a run that leaves the page
        2 << 62 | u64::from(SMALL_IDS_MAX), // a small frame that cannot be
        2 << 62 | u64::from(u32::MAX),
    ];
    for bits in damaged {
        let word = PageWord(bits | 7 << 32);
        assert!(!word.is_wellformed(), "{bits:#x}");
        assert_eq!(word.ragged(), Ragged::None, "{bits:#x}");
        assert_eq!(word.small(), Some(SmallId(6)), "{bits:#x}");
    }
}

proptest! {
    #[test]
    fn words_keep_what_they_are_given(
        small in prop::option::of(0..SMALL_IDS_MAX),
        (start, end) in range(),
        map in 0..SMALL_IDS_MAX,
        before: u64,
    ) {
        let small = small.map(SmallId);
        let mut parts = vec![Ragged::None, Ragged::Map(SmallId(map))];
        if end - start < PAGE_BYTES {
            parts.push(run(start as u16, (end - start) as u16));
        }
        for ragged in parts {
            let word = PageWord(before).with_ragged(ragged).with_small(small);
            prop_assert_eq!(word, PageWord(before).with_small(small).with_ragged(ragged));
            prop_assert_eq!((word.ragged(), word.small()), (ragged, small));
            prop_assert!(word.is_wellformed());
        }
    }
}

// Merging.

#[test]
fn merge_cases() {
    let cases = [
        (Ragged::None, 0, 1, Merge::Run { start: 0, len: 1 }),
        (
            Ragged::None,
            4095,
            4096,
            Merge::Run {
                start: 4095,
                len: 1,
            },
        ),
        (Ragged::None, 0, 4096, Merge::Whole),
        (run(10, 10), 20, 30, Merge::Run { start: 10, len: 20 }),
        (run(10, 10), 0, 10, Merge::Run { start: 0, len: 20 }),
        (run(10, 10), 21, 30, Merge::NeedsMap),
        (run(10, 10), 0, 9, Merge::NeedsMap),
        (run(10, 10), 12, 15, Merge::Run { start: 10, len: 10 }),
        (run(10, 10), 5, 25, Merge::Run { start: 5, len: 20 }),
        (run(1, 4095), 0, 1, Merge::Whole),
        (run(0, 4095), 4095, 4096, Merge::Whole),
        (run(10, 10), 0, 4096, Merge::Whole),
        (Ragged::Map(SmallId(1)), 0, 4096, Merge::NeedsMap),
    ];
    for (old, start, end, expected) in cases {
        assert_eq!(
            merge(old, start, end),
            expected,
            "{old:?} and {start}..{end}"
        );
    }
}

#[test]
fn clip_cases() {
    let cases = [
        (run(10, 10), 0, Ragged::None),
        (run(10, 10), 10, Ragged::None),
        (run(10, 10), 11, run(10, 1)),
        (run(10, 10), 20, run(10, 10)),
        (run(10, 10), 4096, run(10, 10)),
        (Ragged::None, 7, Ragged::None),
        (Ragged::Map(SmallId(1)), 7, Ragged::Map(SmallId(1))),
    ];
    for (old, end, expected) in cases {
        assert_eq!(clip(old, end), expected, "{old:?} up to {end}");
    }
}

#[test]
fn a_map_that_is_not_found_counts_for_nothing() {
    let ragged = Ragged::Map(SmallId(1));
    runs(&ragged, None, |start, end| panic!("{start}..{end}"));
    let mut missing = Vec::new();
    holes(&ragged, None, |start, end| missing.push((start, end)));
    assert_eq!(missing, [(0, PAGE_BYTES)]);
}

proptest! {
    #[test]
    fn a_page_says_which_bytes_it_has(steps in steps()) {
        Page::run(merge, &steps).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn order_of_writes_does_not_matter(
        (writes, shuffled) in writes()
            .prop_flat_map(|writes| (Just(writes.clone()), Just(writes).prop_shuffle())),
    ) {
        let covered = Page::run(merge, &writes).map_err(TestCaseError::fail)?;
        prop_assert_eq!(Page::run(merge, &shuffled).map_err(TestCaseError::fail)?, covered);
    }

    #[test]
    fn pieces_in_any_order_make_a_whole_page(pieces in pieces()) {
        let covered = Page::run(merge, &pieces).map_err(TestCaseError::fail)?;
        prop_assert_eq!(covered, [(0, PAGE_BYTES)]);
    }
}

/// The checks above must be able to fail: each wrong merge is given to them, and one that comes
/// through means that they check nothing.
#[test]
fn canary_planted_merges_are_rejected() {
    let rejects = |wrong: MergeFn| {
        // The same inputs every time: a canary must not be a matter of luck.
        let mut runner = TestRunner::deterministic();
        let property = |steps: Vec<Step>| {
            Page::run(wrong, &steps)
                .map(drop)
                .map_err(TestCaseError::fail)
        };
        runner.run(&steps(), property).is_err()
    };
    for (mistake, wrong) in PLANTED {
        assert!(rejects(wrong), "nobody noticed: {mistake}");
    }
    assert!(!rejects(merge), "the right merge is no mistake");
}

// The bitmap.

proptest! {
    #[test]
    fn a_map_is_a_bool_a_byte(
        changes in prop::collection::vec((any::<bool>(), range()), 0..32),
        from in position(),
    ) {
        let map = LocalMap::used();
        map.clear();
        let mut truth = [false; PAGE_BYTES];
        prop_assert!(map.is_empty());
        for (truncate, (start, end)) in changes {
            if truncate {
                map.clear_from(end);
                truth[end..].fill(false);
            } else {
                truth[start..end].fill(true);
                prop_assert_eq!(map.set(start, end), truth.iter().all(|&set| set));
            }
        }
        prop_assert_eq!(map.is_whole(), truth.iter().all(|&set| set));
        prop_assert_eq!(map.is_empty(), !truth.iter().any(|&set| set));
        let (mut set, mut clear) = (Vec::new(), Vec::new());
        map.runs(|start, end| set.push((start, end)));
        map.holes(|start, end| clear.push((start, end)));
        prop_assert_eq!(set, spans(&truth, true));
        prop_assert_eq!(clear, spans(&truth, false));
        let shift = |(start, end): &(usize, usize)| (start + from, end + from);
        prop_assert_eq!(map.first_run(from), spans(&truth[from..], true).first().map(shift));
        prop_assert_eq!(map.first_hole(from), spans(&truth[from..], false).first().map(shift));
    }
}

#[test]
#[should_panic]
fn a_range_beyond_the_page_stops_before_other_memory() {
    LocalMap::used().set(PAGE_BYTES - 1, PAGE_BYTES + 1);
}

// Cutting requests.

/// Numbers of bytes that are whole pages, or one more or less.
fn beside_pages(pages_max: usize) -> impl Strategy<Value = usize> {
    (0..pages_max, -1..=1isize)
        .prop_map(|(pages, beside)| (pages * PAGE_BYTES).saturating_add_signed(beside))
}

#[test]
fn paper_figure_5() {
    let all: Vec<Segment> = segments(131 * KIB as u64, 276 * KIB).collect();
    let first = Segment {
        block: BlockIndex(0),
        start: 131 * KIB,
        len: 125 * KIB,
        done: 0,
    };
    let second = Segment {
        block: BlockIndex(1),
        start: 0,
        len: 151 * KIB,
        done: 125 * KIB,
    };
    assert_eq!(all, [first, second]);
    let head = Some((32, 3 * KIB, PAGE_BYTES));
    assert_eq!(
        first.pages(),
        PageSpan {
            whole: 33..64,
            head,
            tail: None
        }
    );
    let tail = Some((37, 0, 3 * KIB));
    assert_eq!(
        second.pages(),
        PageSpan {
            whole: 0..37,
            head: None,
            tail
        }
    );
    assert_eq!(first.touched(), u64::MAX << 32);
    assert_eq!(second.touched(), (1 << 38) - 1);
}

#[test]
fn small_requests() {
    let only = |offset, len| {
        let mut all = segments(offset, len);
        let segment = all.next().expect("a segment");
        assert_eq!(all.next(), None);
        segment.pages()
    };
    assert_eq!(segments(5, 0).next(), None);
    assert_eq!(
        only(4096, 4096),
        PageSpan {
            whole: 1..2,
            head: None,
            tail: None
        }
    );
    assert_eq!(
        only(4096, 1),
        PageSpan {
            whole: 1..1,
            head: Some((1, 0, 1)),
            tail: None
        }
    );
    assert_eq!(
        only(4100, 8),
        PageSpan {
            whole: 1..1,
            head: Some((1, 4, 12)),
            tail: None
        }
    );
    assert_eq!(
        only(8191, 1),
        PageSpan {
            whole: 2..2,
            head: Some((1, 4095, 4096)),
            tail: None
        }
    );
    let (head, tail) = (Some((0, 4095, 4096)), Some((1, 0, 1)));
    assert_eq!(
        only(4095, 2),
        PageSpan {
            whole: 1..1,
            head,
            tail
        }
    );
    let last = FILE_BYTES_MAX - 1;
    let head = Some((63, 4095, 4096));
    assert_eq!(
        only(last, 1),
        PageSpan {
            whole: 64..64,
            head,
            tail: None
        }
    );
    let whole_block = segments(0, BLOCK_BYTES).next().expect("a segment");
    assert_eq!(whole_block.touched(), u64::MAX);
    assert_eq!(mask(whole_block.pages().whole), u64::MAX);
}

proptest! {
    #[test]
    fn each_byte_of_a_request_is_in_one_part(
        offset in prop_oneof![0..2 * BLOCK_BYTES, beside_pages(128)],
        len in prop_oneof![0..3 * PAGE_BYTES, 0..2 * BLOCK_BYTES, beside_pages(128)],
    ) {
        let mut times = vec![0u8; 4 * BLOCK_BYTES];
        let mut expected = vec![0u8; 4 * BLOCK_BYTES];
        expected[offset..offset + len].fill(1);
        let mut done = 0;
        for segment in segments(offset as u64, len) {
            prop_assert_eq!(segment.done, done);
            prop_assert_eq!(segment.block.start() as usize + segment.start, offset + done);
            done += segment.len;
            let PageSpan { whole, head, tail } = segment.pages();
            let base = |page: u32| segment.block.start() as usize + page as usize * PAGE_BYTES;
            let mut touched = mask(whole.clone());
            let pages = whole.map(|page| (page, 0, PAGE_BYTES));
            for (page, start, end) in pages.chain(head).chain(tail) {
                prop_assert!(start < end && end <= PAGE_BYTES);
                touched |= 1 << page;
                times[base(page) + start..base(page) + end].iter_mut().for_each(|n| *n += 1);
            }
            for (page, start, end) in head.into_iter().chain(tail) {
                prop_assert!(end - start < PAGE_BYTES, "page {} is whole", page);
            }
            prop_assert_eq!(segment.touched(), touched);
        }
        prop_assert_eq!(done, len);
        prop_assert!(times == expected);
    }

    #[test]
    fn masks_hold_their_range(start in 0..=64u32, end in 0..=64u32) {
        let pages = mask(start..end);
        for page in 0..BLOCK_PAGES as u32 {
            prop_assert_eq!(pages >> page & 1 == 1, (start..end).contains(&page));
        }
    }

    #[test]
    fn runs_of_a_mask_are_maximal(a: u64, b: u64, c: u64) {
        // Few long runs, as in real headers, and many short ones.
        for pages in [a, a & b & c, a | b | c, !(a & b & c), a << 63 | b >> 63, 0, u64::MAX] {
            let bits: Vec<bool> = (0..64).map(|page| pages >> page & 1 == 1).collect();
            let found: Vec<(usize, usize)> =
                runs_of(pages).map(|run| (run.start as usize, run.end as usize)).collect();
            prop_assert_eq!(found, spans(&bits, true));
            prop_assert_eq!(runs_of(pages).map(mask).fold(0, |all, run| all | run), pages);
        }
    }
}

//! The locks of one file: who holds which runs of blocks, and who waits.
//!
//! A lock is *granted* to a holder when no other holder's grant conflicts with it, and nobody who came earlier waits for
//! blocks of it. Else the request waits, and its conflicts are *recalled*. A grant or a release touches the intervals that
//! overlap its range, each in O(log n), n the number of grants of the file. Grants of one holder never overlap, and those
//! that touch one another become one: so a holder that goes through a file has one interval.
//!
//! Each grant has a *stamp*, which grows with every grant of the server. A release says the last stamp that its sender has
//! seen, and ends no grant that is newer: that one is on its way to the sender.

#[cfg(test)]
mod tests;
mod tree;
mod waiting;

use std::collections::BTreeMap;
use std::fmt::Debug;

pub use tree::Tree;
pub use waiting::{Granted, Outcome, Queue, Recall, Request};

use crate::range::{Range, Right};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    end: u64,
    right: Right,
    stamp: u64,
}

/// One run of blocks that a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The blocks.
    pub range: Range,
    /// What is allowed.
    pub right: Right,
    /// When it was granted.
    pub stamp: u64,
}

/// The holders of ranges.
#[derive(Clone, Debug)]
pub struct Locks<H> {
    tree: Tree<H>,
    own: BTreeMap<(H, u64), Held>,
}

impl<H> Default for Locks<H> {
    fn default() -> Self {
        Locks {
            tree: Tree::default(),
            own: BTreeMap::new(),
        }
    }
}

impl<H: Copy + Ord + Debug> Locks<H> {
    /// Number of intervals.
    pub fn len(&self) -> usize {
        self.own.len()
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Calls `visit` for what others than `holder` hold and what conflicts with `right` over `range`, until it says `false`.
    pub fn conflicts(
        &self,
        holder: H,
        range: Range,
        right: Right,
        visit: &mut dyn FnMut(H, Range, Right) -> bool,
    ) {
        self.tree
            .conflicting(range, right, &mut |other, held, as_right| {
                other == holder || visit(other, held, as_right)
            });
    }

    /// Whether nobody else is in the way.
    pub fn is_free(&self, holder: H, range: Range, right: Right) -> bool {
        let mut free = true;
        self.conflicts(holder, range, right, &mut |_, _, _| {
            free = false;
            false
        });
        free
    }

    /// Gives `holder` a right over `range`, for which [`is_free`](Self::is_free) holds. What it holds there exclusively stays so,
    /// under the new stamp: a release that is under way does not know of this grant.
    pub fn grant(&mut self, holder: H, range: Range, right: Right, stamp: u64) {
        let inside = self.carve(holder, range);
        let mut from = range.start;
        for piece in inside {
            if piece.right > right {
                self.add(holder, Range::new(from, piece.range.start), right, stamp);
                self.add(holder, Some(piece.range), piece.right, stamp);
                from = piece.range.end;
            }
        }
        self.add(holder, Range::new(from, range.end), right, stamp);
    }

    /// Ends what `holder` has in `range` and was granted up to the stamp `seen`; `keep` leaves it the right to read.
    pub fn release(&mut self, holder: H, range: Range, seen: u64, keep: bool) {
        for piece in self.carve(holder, range) {
            if piece.stamp > seen {
                self.add(holder, Some(piece.range), piece.right, piece.stamp);
            } else if keep {
                self.add(holder, Some(piece.range), Right::Shared, piece.stamp);
            }
        }
    }

    /// Ends all that `holder` has, and says what that was.
    pub fn release_all(&mut self, holder: H) -> Vec<Range> {
        let held = self.held(holder);
        for piece in &held {
            self.take(holder, piece.range.start);
        }
        held.iter().map(|piece| piece.range).collect()
    }

    /// What `holder` has, in order.
    pub fn held(&self, holder: H) -> Vec<Piece> {
        let own = self.own.range((holder, 0)..=(holder, u64::MAX));
        own.map(|((_, start), held)| piece(*start, *held)).collect()
    }

    /// Whether `holder` has the right over the whole range.
    pub fn holds(&self, holder: H, range: Range, right: Right) -> bool {
        self.missing(holder, range, right).is_none()
    }

    /// The first run in `range` that `holder` lacks the right over.
    pub fn missing(&self, holder: H, range: Range, right: Right) -> Option<Range> {
        let mut from = range.start;
        let mut before = self.own.range((holder, 0)..=(holder, range.start));
        let first = before.next_back().map_or(range.start, |((_, at), _)| *at);
        for ((_, start), held) in self.own.range((holder, first)..(holder, range.end)) {
            if held.end <= from || held.right < right {
                continue;
            }
            if *start > from {
                return Range::new(from, *start);
            }
            from = held.end;
        }
        Range::new(from, range.end)
    }

    /// When `holder` was granted what it has of a block.
    pub fn stamp(&self, holder: H, block: u64) -> Option<u64> {
        let mut before = self.own.range((holder, 0)..=(holder, block));
        let (_, held) = before.next_back()?;
        (block < held.end).then_some(held.stamp)
    }

    /// Takes out what `holder` has in `range`, in order. What it has beside it stays.
    fn carve(&mut self, holder: H, range: Range) -> Vec<Piece> {
        let mut touched = Vec::new();
        let mut before = self.own.range((holder, 0)..(holder, range.start));
        if let Some(((_, start), held)) = before.next_back() {
            touched.push(piece(*start, *held));
        }
        let from = self.own.range((holder, range.start)..(holder, range.end));
        touched.extend(from.map(|((_, start), held)| piece(*start, *held)));
        let mut inside = Vec::new();
        for found in touched {
            let Some(common) = found.range.common(range) else {
                continue;
            };
            self.take(holder, found.range.start);
            if let Some(left) = Range::new(found.range.start, common.start) {
                self.put(holder, left, found.right, found.stamp);
            }
            if let Some(after) = Range::new(common.end, found.range.end) {
                self.put(holder, after, found.right, found.stamp);
            }
            inside.push(Piece {
                range: common,
                ..found
            });
        }
        inside
    }

    /// Adds a piece where `holder` has nothing, joined with what touches it.
    fn add(&mut self, holder: H, range: Option<Range>, right: Right, stamp: u64) {
        let Some(mut range) = range else {
            return;
        };
        let mut newest = stamp;
        let before = self
            .own
            .range((holder, 0)..(holder, range.start))
            .next_back();
        if let Some((&(_, start), &held)) = before
            && held.end == range.start
            && held.right == right
        {
            self.take(holder, start);
            range.start = start;
            newest = newest.max(held.stamp);
        }
        if let Some(&held) = self.own.get(&(holder, range.end))
            && held.right == right
        {
            self.take(holder, range.end);
            range.end = held.end;
            newest = newest.max(held.stamp);
        }
        self.put(holder, range, right, newest);
    }

    fn put(&mut self, holder: H, range: Range, right: Right, stamp: u64) {
        let held = Held {
            end: range.end,
            right,
            stamp,
        };
        self.own.insert((holder, range.start), held);
        self.tree.insert(holder, range, right);
    }

    fn take(&mut self, holder: H, start: u64) {
        self.own.remove(&(holder, start));
        self.tree.remove(holder, start);
    }
}

fn piece(start: u64, held: Held) -> Piece {
    Piece {
        range: Range {
            start,
            end: held.end,
        },
        right: held.right,
        stamp: held.stamp,
    }
}

//! Those who wait for a lock of one file, in order of arrival.
//!
//! A request waits while another holder's grant conflicts with it, or an earlier request of somebody else's that still waits does: so
//! that readers who keep coming never starve a writer. Its conflicts are recalled, once each, and again where a release has
//! left some of them. A request names what it *needs* and what it *wishes* to have around that; it gets its wish where nobody
//! else is in the way.
//!
//! Who keeps what is recalled because it waits for others itself (its request is *urgent*) answers late for their sake. So each holder has a *clock*
//! for the time that it takes, which hardly goes on while the holder waits. Else the first to be given up would be who waits, whose recall is older than
//! those of whom it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use super::{Locks, Tree};
use crate::range::{Range, Right};

/// What somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<H> {
    /// The asker.
    pub holder: H,
    /// The asker's number for this request.
    pub number: u64,
    /// What it must have.
    pub need: Range,
    /// What it would like to have; holds `need`.
    pub wish: Range,
    /// To do what.
    pub right: Right,
    /// The asker keeps grants of this file until it has this one, so it does not wait for others who wait, perhaps for those.
    pub urgent: bool,
}

/// A request that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted<H> {
    /// To whom.
    pub holder: H,
    /// The asker's number.
    pub number: u64,
    /// The blocks.
    pub range: Range,
    /// To do what.
    pub right: Right,
    /// When.
    pub stamp: u64,
}

/// What a holder must give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall<H> {
    /// From whom.
    pub holder: H,
    /// The blocks.
    pub range: Range,
    /// It may go on reading.
    pub keep: bool,
}

#[derive(Clone, Debug)]
struct Waiter<H> {
    request: Request<H>,
    /// Whom it has had recalled, and when by that one's clock.
    recalled: BTreeMap<H, u64>,
}

/// How much slower a holder's clock goes while it waits. It does not stand still: should there ever be a circle of those who wait, it ends.
const SLOWER: u64 = 16;

/// How long a holder has waited for others while it kept something.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    /// Its urgent requests that wait.
    now: usize,
    /// Since when, if there are any.
    since: u64,
    /// In all, before that.
    before: u64,
}

impl Waits {
    fn begin(&mut self, now: u64) {
        if self.now == 0 {
            self.since = now;
        }
        self.now += 1;
    }

    fn end(&mut self, now: u64) {
        self.now -= 1;
        if self.now == 0 {
            self.before += now.saturating_sub(self.since);
        }
    }

    fn clock(&self, now: u64) -> u64 {
        let open = (self.now > 0).then(|| now.saturating_sub(self.since));
        let waited = self.before + open.unwrap_or(0);
        now.saturating_sub(waited - waited / SLOWER)
    }
}

/// The locks of one file, with those who wait.
#[derive(Clone, Debug)]
pub struct Queue<H> {
    locks: Locks<H>,
    waiters: BTreeMap<u64, Waiter<H>>,
    waiting: Tree<u64>,
    /// Recalls that were sent and not answered: who, where they begin and end, and whether it may go on reading. Many may wait for the same.
    sent: BTreeSet<(H, Range, bool)>,
    /// The tickets of each asker's requests.
    askers: BTreeMap<(H, u64), u64>,
    /// Of those who have had urgent requests.
    waits: BTreeMap<H, Waits>,
    ticket: u64,
}

impl<H> Default for Queue<H> {
    fn default() -> Self {
        Queue {
            locks: Locks::default(),
            waiters: BTreeMap::new(),
            waiting: Tree::default(),
            sent: BTreeSet::new(),
            askers: BTreeMap::new(),
            waits: BTreeMap::new(),
            ticket: 0,
        }
    }
}

/// What became of a call: grants and recalls to be sent, in this order.
#[derive(Clone, Debug)]
pub struct Outcome<H> {
    /// Grants to be told.
    pub granted: Vec<Granted<H>>,
    /// Recalls to be sent.
    pub recalls: Vec<Recall<H>>,
}

impl<H> Default for Outcome<H> {
    fn default() -> Self {
        Outcome {
            granted: Vec::new(),
            recalls: Vec::new(),
        }
    }
}

impl<H: Copy + Ord + Debug> Queue<H> {
    /// The holders of ranges.
    pub fn locks(&self) -> &Locks<H> {
        &self.locks
    }

    /// Number of requests that wait.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Whether nobody holds or wants anything.
    pub fn is_idle(&self) -> bool {
        self.locks.is_empty() && self.waiters.is_empty()
    }

    /// A grant from before, which its holder tells of. Says whether it fits beside the others.
    pub fn claim(&mut self, holder: H, range: Range, right: Right) -> bool {
        let fits = self.locks.is_free(holder, range, right);
        if fits {
            self.locks.grant(holder, range, right, 0);
        }
        fits
    }

    /// A request. One that waits already under this number is asked anew in its old place.
    pub fn ask(&mut self, request: Request<H>, now: u64, stamp: &mut u64) -> Outcome<H> {
        let mut outcome = Outcome::default();
        let asker = (request.holder, request.number);
        if !self.askers.contains_key(&asker) {
            self.ticket += 1;
            self.askers.insert(asker, self.ticket);
            let waiter = Waiter {
                request,
                recalled: BTreeMap::new(),
            };
            self.waiters.insert(self.ticket, waiter);
            self.waiting
                .insert(self.ticket, request.need, request.right);
            if request.urgent {
                self.waits.entry(request.holder).or_default().begin(now);
            }
            self.step(self.ticket, now, stamp, &mut outcome);
        }
        outcome
    }

    /// A holder gives something back; who waited for it goes on.
    pub fn release(
        &mut self,
        (holder, range): (H, Range),
        (seen, keep): (u64, bool),
        now: u64,
        stamp: &mut u64,
    ) -> Outcome<H> {
        self.locks.release(holder, range, seen, keep);
        self.answered(holder, range);
        let touched = self.touching(range);
        for ticket in &touched {
            if let Some(waiter) = self.waiters.get_mut(ticket) {
                waiter.recalled.remove(&holder);
            }
        }
        self.settle(touched, now, stamp)
    }

    /// Everything of a holder ends: its grants and its requests.
    pub fn forget(&mut self, holder: H, now: u64, stamp: &mut u64) -> Outcome<H> {
        let mut ranges = self.locks.release_all(holder);
        let gone = self.askers.range((holder, 0)..=(holder, u64::MAX));
        let gone: Vec<u64> = gone.map(|(_, ticket)| *ticket).collect();
        for ticket in gone {
            ranges.extend(self.leave(ticket, now).map(|request| request.need));
        }
        self.waits.remove(&holder);
        self.answered(
            holder,
            Range {
                start: 0,
                end: u64::MAX,
            },
        );
        let touched: BTreeSet<u64> = ranges
            .iter()
            .flat_map(|range| self.touching(*range))
            .collect();
        self.settle(touched, now, stamp)
    }

    /// The recalls that `holder` has not answered: it may never have got them.
    pub fn recalls_of(&self, holder: H) -> Vec<Recall<H>> {
        let mut recalls = Vec::new();
        for waiter in self
            .waiters
            .values()
            .filter(|waiter| waiter.recalled.contains_key(&holder))
        {
            let request = waiter.request;
            self.locks.conflicts(
                request.holder,
                request.need,
                request.right,
                &mut |other, held, _| {
                    if other == holder {
                        recalls.extend(recall(request, other, held));
                    }
                    true
                },
            );
        }
        recalls
    }

    /// Holders that have taken longer than `patience` to answer a recall, what they waited for others themselves hardly counted.
    pub fn late(&self, now: u64, patience: u64) -> BTreeSet<H> {
        let recalled = self.waiters.values().flat_map(|waiter| &waiter.recalled);
        recalled
            .filter(|(holder, at)| self.clock(**holder, now).saturating_sub(**at) > patience)
            .map(|(holder, _)| *holder)
            .collect()
    }

    fn clock(&self, holder: H, now: u64) -> u64 {
        let waits = self.waits.get(&holder).copied().unwrap_or_default();
        waits.clock(now)
    }

    fn touching(&self, range: Range) -> BTreeSet<u64> {
        let mut tickets = BTreeSet::new();
        self.waiting
            .conflicting(range, Right::Exclusive, &mut |ticket, _, _| {
                tickets.insert(ticket);
                true
            });
        tickets
    }

    /// Goes on with those who wait, the earliest first. A client that got something is in the way of those after it.
    fn settle(&mut self, mut open: BTreeSet<u64>, now: u64, stamp: &mut u64) -> Outcome<H> {
        let mut outcome = Outcome::default();
        while let Some(ticket) = open.pop_first() {
            let need = self.waiters.get(&ticket).map(|waiter| waiter.request.need);
            if self.step(ticket, now, stamp, &mut outcome)
                && let Some(need) = need
            {
                open.extend(self.touching(need).range(ticket..));
            }
        }
        outcome
    }

    /// Grants a request if nobody is in the way, and says so; else has recalled who is.
    fn step(&mut self, ticket: u64, now: u64, stamp: &mut u64, outcome: &mut Outcome<H>) -> bool {
        let Some(waiter) = self.waiters.get(&ticket) else {
            return false;
        };
        let request = waiter.request;
        let mut in_the_way = Vec::new();
        self.locks.conflicts(
            request.holder,
            request.need,
            request.right,
            &mut |other, held, _| {
                in_the_way.push((other, held));
                true
            },
        );
        if in_the_way.is_empty()
            && (request.urgent || !self.is_behind(request, request.need, ticket))
        {
            self.leave(ticket, now);
            *stamp += 1;
            let range = if self
                .locks
                .is_free(request.holder, request.wish, request.right)
                && !self.is_behind(request, request.wish, u64::MAX)
            {
                request.wish
            } else {
                request.need
            };
            self.locks
                .grant(request.holder, range, request.right, *stamp);
            outcome.granted.push(Granted {
                holder: request.holder,
                number: request.number,
                range,
                right: request.right,
                stamp: *stamp,
            });
            return true;
        }
        let Some(waiter) = self.waiters.get_mut(&ticket) else {
            return false;
        };
        let known: BTreeSet<H> = waiter.recalled.keys().copied().collect();
        for (other, held) in in_the_way {
            if !known.contains(&other) {
                let waits = self.waits.get(&other).copied().unwrap_or_default();
                waiter.recalled.insert(other, waits.clock(now));
                // Where many wait for one, each would else have told every next holder once more.
                let recall = recall(request, other, held);
                let is_new = |recall: &Recall<H>| {
                    self.sent.insert((recall.holder, recall.range, recall.keep))
                };
                outcome.recalls.extend(recall.filter(is_new));
            }
        }
        false
    }

    /// A holder has given back something of this: what was recalled of it is recalled anew where it is in the way still.
    fn answered(&mut self, holder: H, range: Range) {
        let least = Range { start: 0, end: 0 };
        let of_holder = self.sent.range((holder, least, false)..);
        let of_holder = of_holder.take_while(|(other, ..)| *other == holder);
        let touched = of_holder.filter(|(_, recalled, _)| recalled.overlaps(range));
        for recall in touched.copied().collect::<Vec<_>>() {
            self.sent.remove(&recall);
        }
    }

    /// Whether somebody else waits for blocks of `range` with a ticket before `ticket`.
    fn is_behind(&self, request: Request<H>, range: Range, ticket: u64) -> bool {
        let mut behind = false;
        self.waiting
            .conflicting(range, request.right, &mut |other, _, _| {
                let waiter = self.waiters.get(&other);
                behind = other < ticket
                    && waiter.is_some_and(|waiter| waiter.request.holder != request.holder);
                !behind
            });
        behind
    }

    fn leave(&mut self, ticket: u64, now: u64) -> Option<Request<H>> {
        let waiter = self.waiters.remove(&ticket)?;
        let request = waiter.request;
        if request.urgent
            && let Some(waits) = self.waits.get_mut(&request.holder)
        {
            waits.end(now);
        }
        self.waiting.remove(ticket, request.need.start);
        self.askers.remove(&(request.holder, request.number));
        Some(request)
    }
}

fn recall<H>(request: Request<H>, holder: H, held: Range) -> Option<Recall<H>> {
    let range = held.common(request.need)?;
    Some(Recall {
        holder,
        range,
        keep: request.right == Right::Shared,
    })
}

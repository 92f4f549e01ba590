//! How an operation goes on: it takes grants and blocks, and when all are here it happens at once.

use super::attributes::{Facts, Inode};
use super::state::{Active, Asked, Phase};
use super::{Answer, Client, Failure, Mode, Operation, names};
use crate::ids::{Epoch, File, Node, SIZE_BLOCK};
use crate::message::Outbox;
use crate::mistakes::{Mistake, is_made};
use crate::placement::keeper_of_locks;
use crate::range::{Range, Right};

/// What came of a step.
pub(super) enum Step {
    /// It waits for an answer.
    Wait,
    /// Something has changed: try again.
    Again,
    /// It is remote, and goes aside: where it begins, and how long it is.
    Aside((u64, u64)),
    /// It has ended.
    End(Result<Answer, Failure>),
}

const SIZE: Range = Range {
    start: SIZE_BLOCK,
    end: SIZE_BLOCK + 1,
};

impl Operation {
    /// The file whose grants it needs.
    pub(crate) fn file(&self) -> File {
        match self {
            Operation::Read { file, .. }
            | Operation::Write { file, .. }
            | Operation::Append { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Sync { file, .. }
            | Operation::Attributes { file }
            | Operation::Change { file, .. }
            | Operation::Remove { file } => *file,
            Operation::LookUp { .. }
            | Operation::List { .. }
            | Operation::Make { .. }
            | Operation::MakeNameless
            | Operation::Unlink { .. }
            | Operation::Rename { .. } => File::NAMES,
        }
    }

    /// Whether it says its file by number, and not by a name.
    pub(super) fn is_by_number(&self) -> bool {
        matches!(
            self,
            Operation::Read { .. }
                | Operation::Write { .. }
                | Operation::Append { .. }
                | Operation::Truncate { .. }
                | Operation::Sync { .. }
                | Operation::Attributes { .. }
                | Operation::Change { .. }
                | Operation::Remove { .. }
        )
    }

    /// Where it ends in its file, as far as it says; `None` if no number says it.
    pub(super) fn end(&self) -> Option<u64> {
        match self {
            Operation::Read { offset, length, .. } => offset.checked_add(*length),
            Operation::Write { offset, bytes, .. } => offset.checked_add(bytes.len() as u64),
            Operation::Truncate { size, .. } => Some(*size),
            _ => Some(0),
        }
    }
}

pub(super) fn blocks(offset: u64, length: u64, block_bytes: u64) -> Option<Range> {
    Range::new(
        offset / block_bytes,
        (offset + length).div_ceil(block_bytes),
    )
}

impl Client {
    /// No file is larger, in bytes: neither in its blocks, nor for programs. What is added to an offset does not go beyond a number then.
    pub(super) fn size_max(&self) -> u64 {
        let blocks = SIZE_BLOCK.saturating_mul(self.config.block_bytes);
        blocks.min(i64::MAX as u64)
    }

    /// Goes on with a file, and drops what is too much then.
    pub(super) fn advance(&mut self, now: u64, file: File, out: &mut Outbox) {
        self.go_on(now, file, out);
        if self.view.active {
            self.evict(out);
        }
    }

    /// Goes on with a file: gives back, works, gives back what the work kept.
    pub(super) fn go_on(&mut self, now: u64, file: File, out: &mut Outbox) {
        self.give_back(file, out);
        if !self.view.active {
            return;
        }
        self.go_on_aside(file, out);
        self.end_asides(now, file);
        loop {
            let state = self.state(file);
            let Some(active) = state.active.take().or_else(|| state.queue.pop_front()) else {
                break;
            };
            let id = active.id;
            state.active = Some(active);
            match self.step(now, file, out) {
                Step::Wait => break,
                Step::Again => {}
                Step::Aside(span) => {
                    if let Some(active) = self.state(file).active.take() {
                        self.go_aside(now, file, active, span, out);
                    }
                }
                Step::End(result) => {
                    self.state(file).active = None;
                    self.tell(file, id, result);
                    self.give_back(file, out);
                }
            }
        }
        self.give_back(file, out);
        self.tidy(file);
    }

    /// An operation that finds everything here happens without the steps of others, where nothing of its file is under way. Whatever it has begun where it did
    /// not, it finds begun later.
    pub(super) fn happens_at_once(
        &mut self,
        file: File,
        active: &Active,
        out: &mut Outbox,
    ) -> bool {
        let (Operation::Read {
            mode: Mode::Local, ..
        }
        | Operation::Write {
            mode: Mode::Local, ..
        }
        | Operation::Attributes { .. }
        | Operation::LookUp { .. }
        | Operation::List { .. }) = *active.operation
        else {
            return false;
        };
        let needs = self.needs(active);
        let state = &self.files[&file];
        let holds = |(range, right): &(Range, Right)| state.locks.holds((), *range, *right);
        let is_free = state.queue.is_empty() && needs.iter().all(holds);
        if !is_free || state.is_beside(&needs) || state.is_any_recalled(&needs) {
            return false;
        }
        let Step::End(result) = self.execute(file, active, out) else {
            return false;
        };
        self.tell(file, active.id, result);
        self.evict(out);
        true
    }

    /// An operation that finds everything here happens beside the one that is under way, unless that one needs the same blocks.
    pub(super) fn passes_by(
        &mut self,
        now: u64,
        file: File,
        active: &Active,
        out: &mut Outbox,
    ) -> bool {
        let mode = match *active.operation {
            Operation::Read { mode, .. } => mode,
            Operation::Attributes { .. } | Operation::LookUp { .. } | Operation::List { .. } => {
                Mode::Local
            }
            _ => return false,
        };
        let needs = self.needs(active);
        let state = &self.files[&file];
        let is_cached =
            |range: Range| { range.start..range.end }.all(|block| state.cache.contains_key(&block));
        let is_here = needs.iter().all(|(range, right)| {
            let is_read = mode == Mode::Local || *range == SIZE;
            state.locks.holds((), *range, *right) && (!is_read || is_cached(*range))
        });
        let under_way = state.active.as_ref();
        let in_the_way = under_way.is_some_and(|other| other.is_in_the_way(&needs));
        if !is_here || in_the_way || state.is_beside(&needs) || state.is_any_recalled(&needs) {
            return false;
        }
        let result = match &*active.operation {
            Operation::Read { offset, length, .. } if mode == Mode::Remote => {
                return self.goes_aside(now, file, active, (*offset, *length), out);
            }
            Operation::Read { offset, length, .. } => self.read(file, *offset, *length),
            Operation::Attributes { .. } => self
                .inode(file)
                .map(|inode| Answer::Attributes(inode.size, inode.facts)),
            names => self.look(names),
        };
        self.tell(file, active.id, result);
        true
    }

    /// An operation has ended.
    fn tell(&mut self, file: File, id: u64, result: Result<Answer, Failure>) {
        match result {
            Err(Failure::Lost) => self.forget_damage(file),
            Err(Failure::Gone) => self.forget_all_that_went(file),
            _ => {}
        }
        self.results.push((id, result));
    }

    /// What it needs, in order.
    pub(super) fn needs(&self, active: &Active) -> Vec<(Range, Right)> {
        let of = |offset, length| blocks(offset, length, self.config.block_bytes);
        let wide = |start| {
            let end = SIZE_BLOCK + 1;
            vec![(Range { start, end }, Right::Exclusive)]
        };
        match (&*active.operation, active.wide) {
            (Operation::Sync { .. }, _) => Vec::new(),
            (Operation::Attributes { .. }, _) | (Operation::Append { .. }, None) => {
                vec![(SIZE, Right::Shared)]
            }
            (Operation::Change { .. }, _) => vec![(SIZE, Right::Exclusive)],
            (Operation::Remove { .. }, _) => wide(0),
            (Operation::Read { offset, length, .. }, _) => {
                let blocks = of(*offset, *length).map(|range| (range, Right::Shared));
                blocks.into_iter().chain([(SIZE, Right::Shared)]).collect()
            }
            (_, Some(from)) => wide(from),
            (Operation::Truncate { size, .. }, None) => wide(size / self.config.block_bytes),
            (Operation::Write { offset, bytes, .. }, None) => {
                let size = if active.extends {
                    Right::Exclusive
                } else {
                    Right::Shared
                };
                let blocks = of(*offset, bytes.len() as u64).map(|range| (range, Right::Exclusive));
                blocks.into_iter().chain([(SIZE, size)]).collect()
            }
            (names, None) => names::needs(names, active.made),
        }
    }

    /// Takes the grants in order, and keeps those that it has.
    ///
    /// It does not begin while any of them is about to go, so that what was recalled goes. Once it keeps one it takes the others even if they are
    /// recalled: a recall that covers what it keeps waits for its end, so it must not wait for that recall.
    pub(super) fn gather(
        &mut self,
        file: File,
        needs: &[(Range, Right)],
        out: &mut Outbox,
    ) -> bool {
        let state = self.state(file);
        let Some(active) = state.active.as_mut() else {
            return false;
        };
        let kept = std::mem::take(&mut active.pinned);
        let is_careless = is_made(Mistake::WaitsForItsOwnRecall);
        let must_wait = state.asked.is_some() || !is_careless && state.is_any_recalled(needs);
        if kept.is_empty() && must_wait {
            return false;
        }
        for (range, right) in needs {
            let stops = is_careless
                && state.is_any_recalled(&[(*range, *right)])
                && !kept.contains(&(*range, *right));
            if let Some(missing) = state.locks.missing((), *range, *right) {
                if state.asked.is_none() && !stops {
                    // All the rest at once: a part of it could be recalled before the next one is here.
                    let rest = Range {
                        end: range.end,
                        ..missing
                    };
                    self.ask(file, rest, *right, out);
                }
                return false;
            }
            if stops {
                return false;
            }
            if let Some(active) = state.active.as_mut() {
                active.pinned.push((*range, *right));
            }
        }
        true
    }

    pub(super) fn ask(&mut self, file: File, need: Range, right: Right, out: &mut Outbox) {
        let number = self.count();
        let group = self.config.wish_blocks.max(1);
        let wish = if need.end <= SIZE_BLOCK && file != File::NAMES {
            Range {
                start: need.start / group * group,
                end: need.end.div_ceil(group) * group,
            }
        } else {
            need
        };
        let keeps = self.state(file).active.as_ref();
        let urgent = keeps.is_some_and(|active| !active.pinned.is_empty());
        let asked = Asked {
            number,
            need,
            wish,
            right,
            urgent,
        };
        self.state(file).asked = Some(asked);
        if let Some(server) = keeper_of_locks(&self.view.servers, file)
            && self.keys.contains_key(&server)
        {
            out.push((Node::Server(server), asked.message(self.view.epoch, file)));
        }
    }

    pub(super) fn step(&mut self, now: u64, file: File, out: &mut Outbox) -> Step {
        let Some(active) = self.state(file).active.clone() else {
            return Step::Wait;
        };
        match active.phase.clone() {
            Phase::Flush {
                targets,
                answer,
                drop,
            } => self.flushed(file, &targets, answer, drop, out),
            Phase::Cut {
                size,
                step,
                discard,
            } => self.cut(file, &active, (size, step, discard), out),
            Phase::Create { transfers } => self.name_made(&transfers, &active, out),
            Phase::Persist { transfer } => {
                if self.is_under_way(transfer) || !self.is_member(now) {
                    return Step::Wait;
                }
                Step::End(self.synced(file, transfer))
            }
            Phase::Remove { discard } => self.removed(file, discard),
            Phase::Gather => {
                let needs = self.needs(&active);
                if !self.gather(file, &needs, out) || !self.is_member(now) {
                    return Step::Wait;
                }
                if self.state(file).is_beside(&needs) && !is_made(Mistake::OvertakesRemoteOnes) {
                    return Step::Wait;
                }
                self.execute(file, &active, out)
            }
        }
    }

    /// All grants are here.
    pub(super) fn execute(&mut self, file: File, active: &Active, out: &mut Outbox) -> Step {
        if file == File::NAMES {
            return self.execute_names(active, out);
        }
        if let Operation::Sync { .. } = *active.operation {
            let state = self.state(file);
            let owed = state.cache.iter().filter(|(_, cached)| cached.is_dirty());
            let targets = owed
                .map(|(block, cached)| (*block, cached.change))
                .collect();
            return self.enter_phase(
                file,
                Phase::Flush {
                    targets,
                    answer: Answer::Done,
                    drop: false,
                },
            );
        }
        if !self.fetch(file, SIZE_BLOCK, out) {
            return Step::Wait;
        }
        let mut inode = match self.inode(file) {
            Ok(inode) => inode,
            // What is left of a file whose size was lost can be given back.
            Err(Failure::Lost) if matches!(*active.operation, Operation::Remove { .. }) => {
                return self.remove(file, out);
            }
            Err(failure) => return Step::End(Err(failure)),
        };
        match &*active.operation {
            Operation::Attributes { .. } => {
                Step::End(Ok(Answer::Attributes(inode.size, inode.facts)))
            }
            Operation::Change { changes, .. } => {
                inode.facts.change(changes);
                self.set_inode(file, inode);
                Step::End(Ok(Answer::Done))
            }
            Operation::Remove { .. } => self.remove(file, out),
            Operation::Read {
                offset,
                length,
                mode,
                ..
            } => {
                let offset = *offset;
                let length = (*length).min(inode.size.saturating_sub(offset));
                let range = blocks(offset, length, self.config.block_bytes);
                let mut all = range.into_iter().flat_map(|range| range.start..range.end);
                if *mode == Mode::Remote && length > 0 {
                    return Step::Aside((offset, length));
                }
                if !self.fetch_all(file, &mut all, out) {
                    return Step::Wait;
                }
                Step::End(self.read(file, offset, length))
            }
            Operation::Write {
                offset,
                bytes,
                mode,
                ..
            } => self.write_at(file, active, inode, (*offset, bytes), *mode, out),
            Operation::Append { bytes, .. } => self.append(file, active, inode, bytes, out),
            Operation::Truncate { size: new, .. } => self.truncate(file, active, inode, *new),
            _ => Step::Wait,
        }
    }

    /// A file's size block, which is here.
    pub(super) fn inode(&mut self, file: File) -> Result<Inode, Failure> {
        let most = self.size_max();
        let state = self.files.get(&file);
        let cached = state.and_then(|state| state.cache.get(&SIZE_BLOCK));
        let found = match cached.and_then(|cached| cached.bytes.as_deref()) {
            None if self.is_lost(file, SIZE_BLOCK, Epoch(0)) => Err(Failure::Lost),
            None if file == File::ROOT => Ok(Inode::new(Epoch(0), Facts::OF_ROOT)),
            None => Err(Failure::Gone),
            Some(bytes) => Inode::of(bytes)
                .filter(|inode| inode.size.max(inode.high) <= most)
                .ok_or(Failure::Lost),
        };
        if found.is_err() {
            self.forget(file, SIZE_BLOCK);
        }
        found
    }

    pub(super) fn change(&mut self, file: File, set: impl FnOnce(&mut Active)) -> Step {
        if let Some(active) = self.state(file).active.as_mut() {
            set(active);
        }
        Step::Again
    }

    pub(super) fn enter_phase(&mut self, file: File, phase: Phase) -> Step {
        self.change(file, |active| active.phase = phase)
    }
}

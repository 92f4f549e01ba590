//! How an operation goes on: it takes grants and blocks, and when all are here it happens at once.

use super::state::{Active, Asked, Cached, Phase, Size, State};
use super::transfer::Request;
use super::{Answer, Client, Failure, Mode, Operation, names};
use crate::ids::{File, Node, SIZE_BLOCK};
use crate::message::Outbox;
use crate::placement::{keeper_of_locks, key_of_block, owners};
use crate::range::{Range, Right};

/// What came of a step.
pub(super) enum Step {
    /// It waits for an answer.
    Wait,
    /// Something has changed: try again.
    Again,
    /// It has ended.
    End(Result<Answer, Failure>),
}

const SIZE: Range = Range {
    start: SIZE_BLOCK,
    end: SIZE_BLOCK + 1,
};

impl Operation {
    /// The file whose grants it needs.
    pub(super) fn file(&self) -> File {
        match self {
            Operation::Read { file, .. }
            | Operation::Write { file, .. }
            | Operation::Append { file, .. }
            | Operation::Truncate { file, .. }
            | Operation::Sync { file }
            | Operation::Size { file } => *file,
            Operation::Open { .. } | Operation::Rename { .. } => File::NAMES,
        }
    }
}

fn blocks(offset: u64, length: u64, block_bytes: u64) -> Option<Range> {
    Range::new(
        offset / block_bytes,
        (offset + length).div_ceil(block_bytes),
    )
}

impl Client {
    /// Goes on with a file: gives back, works, gives back what the work kept.
    pub(super) fn advance(&mut self, now: u64, file: File, out: &mut Outbox) {
        self.give_back(file, out);
        if !self.view.active {
            return;
        }
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
                Step::End(result) => {
                    self.state(file).active = None;
                    self.results.push((id, result));
                    self.give_back(file, out);
                }
            }
        }
        self.give_back(file, out);
        self.evict(out);
    }

    /// An operation that finds everything here happens beside the one that is under way, unless that one needs the same blocks.
    pub(super) fn passes_by(&mut self, file: File, active: &Active) -> bool {
        let Operation::Read {
            offset,
            length,
            mode: Mode::Local,
            ..
        } = &active.operation
        else {
            return false;
        };
        let needs = self.needs(active);
        let state = &self.files[&file];
        let is_here = needs.iter().all(|(range, right)| {
            state.locks.holds((), *range, *right)
                && !state.is_recalled(*range, *right)
                && (range.start..range.end).all(|block| state.cache.contains_key(&block))
        });
        let pinned = state.active.iter().flat_map(|under_way| &under_way.pinned);
        let in_the_way = { pinned }.any(|(held, right)| {
            *right == Right::Exclusive && needs.iter().any(|(range, _)| range.overlaps(*held))
        });
        if !is_here || in_the_way {
            return false;
        }
        let result = self.read(file, *offset, *length, false);
        self.results.push((active.id, result));
        true
    }

    /// What it needs, in order.
    fn needs(&self, active: &Active) -> Vec<(Range, Right)> {
        let of = |offset, length| blocks(offset, length, self.config.block_bytes);
        let wide = |from| {
            vec![(
                Range {
                    start: from,
                    end: SIZE_BLOCK + 1,
                },
                Right::Exclusive,
            )]
        };
        match (&active.operation, active.wide) {
            (Operation::Sync { .. }, _) => Vec::new(),
            (Operation::Size { .. }, _) | (Operation::Append { .. }, None) => {
                vec![(SIZE, Right::Shared)]
            }
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
            (Operation::Open { name, create }, None) => {
                let right = if *create {
                    Right::Exclusive
                } else {
                    Right::Shared
                };
                vec![(Range::one(names::block_of(name)), right)]
            }
            (Operation::Rename { from, to }, None) => {
                let mut blocks = [names::block_of(from), names::block_of(to)].to_vec();
                blocks.sort_unstable();
                blocks.dedup();
                blocks
                    .into_iter()
                    .map(|block| (Range::one(block), Right::Exclusive))
                    .collect()
            }
        }
    }

    /// Takes the grants in order, and keeps those that it has.
    fn gather(&mut self, file: File, needs: &[(Range, Right)], out: &mut Outbox) -> bool {
        let state = self.state(file);
        let Some(active) = state.active.as_mut() else {
            return false;
        };
        let pinned = std::mem::take(&mut active.pinned);
        if pinned.is_empty() && state.asked.is_some() {
            return false;
        }
        for (range, right) in needs {
            if let Some(missing) = state.locks.missing((), *range, *right) {
                if state.asked.is_none() && !state.is_recalled(*range, *right) {
                    // All the rest at once: a part of it could be recalled before the next one is here.
                    let rest = Range {
                        end: range.end,
                        ..missing
                    };
                    self.ask(file, rest, *right, out);
                }
                return false;
            }
            let is_kept = pinned
                .iter()
                .any(|(held, as_right)| held.contains(*range) && *as_right >= *right);
            if !is_kept && state.is_recalled(*range, *right) {
                return false;
            }
            if let Some(active) = state.active.as_mut() {
                active.pinned.push((*range, *right));
            }
        }
        true
    }

    fn ask(&mut self, file: File, need: Range, right: Right, out: &mut Outbox) {
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

    fn step(&mut self, now: u64, file: File, out: &mut Outbox) -> Step {
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
            Phase::Create {
                file: made,
                transfer,
            } => self.name_made(made, transfer, &active, out),
            Phase::Gather => {
                let needs = self.needs(&active);
                if !self.gather(file, &needs, out) || !self.is_member(now) {
                    return Step::Wait;
                }
                self.execute(file, &active, out)
            }
        }
    }

    /// All grants are here.
    fn execute(&mut self, file: File, active: &Active, out: &mut Outbox) -> Step {
        if matches!(
            active.operation,
            Operation::Open { .. } | Operation::Rename { .. }
        ) {
            return self.execute_names(active, out);
        }
        if let Operation::Sync { .. } = active.operation {
            let state = self.state(file);
            let owed = state.cache.iter().filter(|(_, cached)| cached.is_dirty());
            let targets = owed
                .map(|(block, cached)| (*block, cached.change))
                .collect();
            return self.to_phase(
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
        let Some(size) = self.state(file).size() else {
            self.forget(file, SIZE_BLOCK);
            return Step::End(Err(Failure::Lost));
        };
        match active.operation.clone() {
            Operation::Size { .. } => Step::End(Ok(Answer::At(size.size))),
            Operation::Read {
                offset,
                length,
                mode,
                ..
            } => {
                let length = length.min(size.size.saturating_sub(offset));
                let range = blocks(offset, length, self.config.block_bytes);
                let here: Vec<bool> =
                    { range.into_iter().flat_map(|range| range.start..range.end) }
                        .map(|block| self.fetch(file, block, out))
                        .collect();
                if here.contains(&false) {
                    return Step::Wait;
                }
                Step::End(self.read(file, offset, length, mode == Mode::Remote))
            }
            Operation::Write {
                offset,
                bytes,
                mode,
                ..
            } => self.write_at(file, active, size, (offset, &bytes), mode, out),
            Operation::Append { bytes, .. } => self.append(file, active, size, &bytes, out),
            Operation::Truncate { size: new, .. } => self.truncate(file, active, size, new),
            _ => Step::Wait,
        }
    }

    fn change(&mut self, file: File, set: impl FnOnce(&mut Active)) -> Step {
        if let Some(active) = self.state(file).active.as_mut() {
            set(active);
        }
        Step::Again
    }

    pub(super) fn to_phase(&mut self, file: File, phase: Phase) -> Step {
        self.change(file, |active| active.phase = phase)
    }

    fn write_at(
        &mut self,
        file: File,
        active: &Active,
        size: Size,
        (offset, bytes): (u64, &[u8]),
        mode: Mode,
        out: &mut Outbox,
    ) -> Step {
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return Step::End(Ok(Answer::Done));
        }
        let extends = end > size.size;
        if extends && !active.extends && active.wide.is_none() {
            return self.change(file, |active| active.extends = true);
        }
        if extends && let Some(step) = self.clean_tail(file, active, size, offset) {
            return step;
        }
        match self.put(file, size, offset, bytes, out) {
            Ok(false) => return Step::Wait,
            Err(failure) => return Step::End(Err(failure)),
            Ok(true) => {}
        }
        if extends {
            self.set_size(
                file,
                Size {
                    size: end,
                    high: end,
                    ..size
                },
            );
        }
        if mode == Mode::Local {
            return Step::End(Ok(Answer::Done));
        }
        let range = blocks(offset, bytes.len() as u64, self.config.block_bytes);
        let written = range.into_iter().flat_map(|range| range.start..range.end);
        let state = self.state(file);
        let mut targets: Vec<(u64, u64)> = written
            .filter_map(|block| Some((block, state.cache.get(&block)?.change)))
            .collect();
        targets.extend(
            state
                .cache
                .get(&SIZE_BLOCK)
                .map(|cached| (SIZE_BLOCK, cached.change)),
        );
        self.to_phase(
            file,
            Phase::Flush {
                targets,
                answer: Answer::Done,
                drop: true,
            },
        )
    }

    fn append(
        &mut self,
        file: File,
        active: &Active,
        size: Size,
        bytes: &[u8],
        out: &mut Outbox,
    ) -> Step {
        let from = size.size / self.config.block_bytes;
        if active.wide.is_none_or(|wide| wide > from) {
            return self.change(file, |active| active.wide = Some(from));
        }
        if let Some(step) = self.clean_tail(file, active, size, size.size) {
            return step;
        }
        match self.put(file, size, size.size, bytes, out) {
            Ok(false) => return Step::Wait,
            Err(failure) => return Step::End(Err(failure)),
            Ok(true) => {}
        }
        let end = size.size + bytes.len() as u64;
        self.set_size(
            file,
            Size {
                size: end,
                high: end,
                ..size
            },
        );
        Step::End(Ok(Answer::At(size.size)))
    }

    fn truncate(&mut self, file: File, active: &Active, size: Size, new: u64) -> Step {
        if new > size.size {
            if let Some(step) = self.clean_tail(file, active, size, size.size) {
                return step;
            }
            self.set_size(
                file,
                Size {
                    size: new,
                    high: new,
                    ..size
                },
            );
        }
        if new >= size.size {
            return Step::End(Ok(Answer::Done));
        }
        self.to_phase(
            file,
            Phase::Cut {
                size: new,
                step: 0,
                discard: None,
            },
        )
    }

    /// What a dead client's truncation has left beyond the end must go before the file grows over it.
    fn clean_tail(&mut self, file: File, active: &Active, size: Size, offset: u64) -> Option<Step> {
        if size.high <= size.size {
            return None;
        }
        let from = offset.min(size.size) / self.config.block_bytes;
        if active.wide.is_none_or(|wide| wide > from) {
            return Some(self.change(file, |active| active.wide = Some(from)));
        }
        Some(self.to_phase(
            file,
            Phase::Cut {
                size: size.size,
                step: 0,
                discard: None,
            },
        ))
    }

    fn cut(
        &mut self,
        file: File,
        active: &Active,
        (new, step, discard): (u64, u8, Option<u64>),
        out: &mut Outbox,
    ) -> Step {
        let first = new.div_ceil(self.config.block_bytes);
        let beyond = Range {
            start: first,
            end: SIZE_BLOCK,
        };
        match step {
            0 => {
                let state = self.state(file);
                let under_way = state
                    .cache
                    .range(first..)
                    .any(|(_, cached)| cached.flushing.is_some());
                let Some(size) = state.size().filter(|_| !under_way) else {
                    return Step::Wait;
                };
                for used in state.drop_cached(beyond) {
                    self.cached.remove(&used);
                }
                self.set_size(
                    file,
                    Size {
                        size: new,
                        high: size.high.max(size.size),
                        ..size
                    },
                );
                self.to_phase(
                    file,
                    Phase::Cut {
                        size: new,
                        step: 1,
                        discard: None,
                    },
                )
            }
            1 => {
                if self.is_owed(file, SIZE_BLOCK, out) {
                    return Step::Wait;
                }
                let number = self.transfer(Request::Discard(file, first), out);
                self.to_phase(
                    file,
                    Phase::Cut {
                        size: new,
                        step: 2,
                        discard: Some(number),
                    },
                )
            }
            2 => {
                let edge = new / self.config.block_bytes;
                if edge < first && !self.fetch(file, edge, out) {
                    return Step::Wait;
                }
                if edge < first && !self.state(file).cache[&edge].is_dirty() {
                    self.zero_tail(file, edge, new % self.config.block_bytes);
                }
                self.to_phase(
                    file,
                    Phase::Cut {
                        size: new,
                        step: 3,
                        discard,
                    },
                )
            }
            3 => {
                let edge = new / self.config.block_bytes;
                if edge < first {
                    self.zero_tail(file, edge, new % self.config.block_bytes);
                    if self.is_owed(file, edge, out) {
                        return Step::Wait;
                    }
                }
                if discard.is_some_and(|number| self.is_under_way(number)) {
                    return Step::Wait;
                }
                if let Some(size) = self.state(file).size() {
                    self.set_size(file, Size { high: new, ..size });
                }
                self.to_phase(
                    file,
                    Phase::Cut {
                        size: new,
                        step: 4,
                        discard,
                    },
                )
            }
            _ if self.is_owed(file, SIZE_BLOCK, out) => Step::Wait,
            _ => match active.operation {
                Operation::Truncate { size, .. } if size == new => Step::End(Ok(Answer::Done)),
                _ => self.to_phase(file, Phase::Gather),
            },
        }
    }

    /// Whether the servers lack a block as it is here; begins to write it.
    fn is_owed(&mut self, file: File, block: u64, out: &mut Outbox) -> bool {
        let owed = self.state(file).cache.get(&block);
        let owed = owed.is_some_and(|cached| cached.is_dirty() || cached.flushing.is_some());
        if owed {
            self.flush(file, block, out);
        }
        owed
    }

    fn flushed(
        &mut self,
        file: File,
        targets: &[(u64, u64)],
        answer: Answer,
        drop: bool,
        out: &mut Outbox,
    ) -> Step {
        let lacks = |state: &State, (block, change): &(u64, u64)| {
            state
                .cache
                .get(block)
                .is_some_and(|cached| cached.written < *change)
        };
        let state = self.state(file);
        let owed: Vec<u64> = targets
            .iter()
            .filter(|target| lacks(state, target))
            .map(|(block, _)| *block)
            .collect();
        if !owed.is_empty() {
            if file == File::NAMES {
                self.flush_together(file, &owed, out);
            } else {
                owed.iter().for_each(|block| self.flush(file, *block, out));
            }
            return Step::Wait;
        }
        if drop {
            for (block, _) in targets.iter().filter(|(block, _)| *block != SIZE_BLOCK) {
                let clean = self
                    .state(file)
                    .cache
                    .get(block)
                    .is_some_and(|cached| !cached.is_dirty());
                if clean {
                    self.forget(file, *block);
                }
            }
        }
        Step::End(Ok(answer))
    }

    pub(super) fn forget(&mut self, file: File, block: u64) {
        for used in self.state(file).drop_cached(Range::one(block)) {
            self.cached.remove(&used);
        }
    }

    /// Whether a block that no server has was on servers that died.
    pub(super) fn is_lost(&self, file: File, block: u64, size: Size) -> bool {
        let key = key_of_block(file, block);
        let after = self
            .view
            .losses
            .iter()
            .filter(|loss| loss.epoch > size.born);
        { after }.any(|loss| {
            owners(&loss.before, key, self.config.copies)
                .iter()
                .all(|server| loss.dead.contains(server))
        })
    }

    fn read(
        &mut self,
        file: File,
        offset: u64,
        length: u64,
        drop: bool,
    ) -> Result<Answer, Failure> {
        let unit = self.config.block_bytes;
        let size = self.state(file).size().ok_or(Failure::Lost)?;
        let length = length.min(size.size.saturating_sub(offset));
        let mut bytes = vec![0; length as usize];
        for block in blocks(offset, length, unit)
            .into_iter()
            .flat_map(|range| range.start..range.end)
        {
            self.touch(file, block);
            let state = self.files.get(&file);
            let cached = state.and_then(|state| state.cache.get(&block));
            match cached.and_then(|cached| cached.bytes.as_ref()) {
                Some(held) => {
                    let from = offset.max(block * unit);
                    let to = (offset + length)
                        .min((block + 1) * unit)
                        .min(block * unit + held.len() as u64);
                    if from < to {
                        let source =
                            &held[(from - block * unit) as usize..(to - block * unit) as usize];
                        bytes[(from - offset) as usize..(to - offset) as usize]
                            .copy_from_slice(source);
                    }
                }
                None if self.is_lost(file, block, size) => return Err(Failure::Lost),
                None => {}
            }
            let clean = self
                .state(file)
                .cache
                .get(&block)
                .is_some_and(|cached| !cached.is_dirty() && cached.flushing.is_none());
            if drop && clean {
                self.forget(file, block);
            }
        }
        Ok(Answer::Bytes(bytes))
    }

    fn touch(&mut self, file: File, block: u64) {
        let used = self.count();
        if let Some(cached) = self.state(file).cache.get_mut(&block) {
            let before = std::mem::replace(&mut cached.used, used);
            self.cached.remove(&before);
            self.cached.insert(used, (file, block));
        }
    }

    /// Puts bytes into blocks; `false` if some must come first.
    fn put(
        &mut self,
        file: File,
        size: Size,
        offset: u64,
        bytes: &[u8],
        out: &mut Outbox,
    ) -> Result<bool, Failure> {
        let unit = self.config.block_bytes;
        let end = offset + bytes.len() as u64;
        let range = blocks(offset, bytes.len() as u64, unit);
        let written = || range.into_iter().flat_map(|range| range.start..range.end);
        let is_whole = |block: u64| offset <= block * unit && (block + 1) * unit <= end;
        let here: Vec<bool> = written()
            .map(|block| is_whole(block) || self.fetch(file, block, out))
            .collect();
        if here.contains(&false) {
            return Ok(false);
        }
        let is_hole = |client: &Client, block| {
            client.files[&file]
                .cache
                .get(&block)
                .is_none_or(|cached| cached.bytes.is_none())
        };
        if written().any(|block| {
            !is_whole(block) && is_hole(self, block) && self.is_lost(file, block, size)
        }) {
            return Err(Failure::Lost);
        }
        for block in written() {
            let from = offset.max(block * unit);
            let to = end.min((block + 1) * unit);
            let part = &bytes[(from - offset) as usize..(to - offset) as usize];
            let at = (from - block * unit) as usize;
            self.modify(file, block, |held| {
                held.resize(unit as usize, 0);
                held[at..at + part.len()].copy_from_slice(part);
            });
        }
        Ok(true)
    }

    fn zero_tail(&mut self, file: File, block: u64, from: u64) {
        let cached = self
            .state(file)
            .cache
            .get(&block)
            .and_then(|cached| cached.bytes.as_ref());
        if cached.is_some_and(|held| held[from as usize..].iter().any(|byte| *byte != 0)) {
            self.modify(file, block, |held| held[from as usize..].fill(0));
        }
    }

    fn set_size(&mut self, file: File, size: Size) {
        self.modify(file, SIZE_BLOCK, |held| *held = size.bytes());
    }

    /// Changes a block in memory.
    pub(super) fn modify(&mut self, file: File, block: u64, how: impl FnOnce(&mut Vec<u8>)) {
        let change = self.count();
        let cached: &mut Cached = self.state(file).cache.entry(block).or_default();
        how(cached.bytes.get_or_insert_default());
        cached.change = change;
        self.touch(file, block);
    }
}

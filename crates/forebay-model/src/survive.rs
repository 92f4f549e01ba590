//! What may be left of a file after somebody has died.
//!
//! **A process** died ([`Model::after_death`]): everything acknowledged is there. Operations that
//! had not returned may have happened, may not have, or may be torn: per byte the old value or the
//! new one. Bytes come before the size that shows them: where a single write was under way, bytes
//! beyond the old end are the new ones.
//!
//! **The power** failed ([`Model::may_be_after_power_loss`]): each byte has the value that it had
//! when the last sync of the file completed, or one that was put there since; lengths likewise, except
//! that a file may have grown half-way. Syncs of one file promise nothing about another.
//!
//! After either check, `adopt_*` makes what was found the truth from which the test goes on.

use std::ops::RangeInclusive;

use crate::bytes::filled;
use crate::model::{Change, Model};
use crate::{BLOCK_BYTES, Content, Image, Mismatch, Op};

/// What is accepted.
struct Allowed<'a> {
    title: &'static str,
    /// Accepted everywhere but in `must_be_new`.
    base: &'a Content,
    /// Accepted each in its range.
    changes: Vec<Change>,
    lengths: Vec<RangeInclusive<u64>>,
    /// Where `base` is not accepted.
    must_be_new: std::ops::Range<u64>,
}

impl Model {
    /// Whether a file may look like this after the death of a process, or of all of them, which was
    /// carrying out `in_flight` (at most one of them an append). The operations must not have been
    /// applied.
    pub fn after_death(
        &self,
        file: u8,
        in_flight: &[Op],
        image: &dyn Image,
    ) -> Result<(), Mismatch> {
        let state = self.file(file);
        let (changes, mut lengths) = self.under_way(file, in_flight);
        let old_len = state.now.len();
        lengths.push(old_len..=old_len);
        let must_be_new = match changes.as_slice() {
            [change] if change.seed.is_some() => old_len.max(change.start)..change.end,
            _ => 0..0,
        };
        let title = "after the death of a process";
        let allowed = Allowed {
            title,
            base: &state.now,
            changes,
            lengths,
            must_be_new,
        };
        self.check(file, &allowed, image)
    }

    /// Whether the file on the disk may look like this after power was lost while `in_flight` was
    /// being carried out. The operations must not have been applied.
    pub fn may_be_after_power_loss(
        &self,
        file: u8,
        in_flight: &[Op],
        image: &dyn Image,
    ) -> Result<(), Mismatch> {
        let state = self.file(file);
        let (under_way, lengths) = self.under_way(file, in_flight);
        let changes = [&state.history[state.synced_at..], &under_way].concat();
        let lengths = [state.lengths.as_slice(), &lengths].concat();
        let title = "after power loss";
        let allowed = Allowed {
            title,
            base: &state.synced,
            changes,
            lengths,
            must_be_new: 0..0,
        };
        self.check(file, &allowed, image)
    }

    /// Checks as [`Model::after_death`] does; then what was found is what the file holds, and its
    /// handles are open read-write.
    pub fn adopt_after_death(
        &mut self,
        file: u8,
        in_flight: &[Op],
        image: &dyn Image,
    ) -> Result<(), Mismatch> {
        self.after_death(file, in_flight, image)?;
        let (changes, lengths) = self.under_way(file, in_flight);
        let found = self.take_image(file, image, &changes);
        let state = self.file_mut(file);
        state.now = found;
        state.history.extend(changes);
        state.lengths.extend(lengths);
        self.note_in_flight(file, in_flight);
        Ok(())
    }

    /// Checks as [`Model::may_be_after_power_loss`] does; then what was found is what the file holds
    /// and what has been promised, and its handles are open read-write.
    pub fn adopt_after_power_loss(
        &mut self,
        file: u8,
        in_flight: &[Op],
        image: &dyn Image,
    ) -> Result<(), Mismatch> {
        self.may_be_after_power_loss(file, in_flight, image)?;
        let (changes, _) = self.under_way(file, in_flight);
        let found = self.take_image(file, image, &changes);
        let state = self.file_mut(file);
        state.now = found;
        state.history.extend(changes);
        state.sync();
        self.note_in_flight(file, in_flight);
        Ok(())
    }

    /// Checks and adopts one range after an operation that failed part-way in a living process:
    /// `len` and `bytes` are what is read back now.
    pub(crate) fn adopt_torn(&mut self, op: &Op, len: u64, bytes: &[u8]) -> Result<(), Mismatch> {
        let (Some(file), Some(effect)) = (op.file(), self.effect(op)) else {
            return Ok(());
        };
        let mut torn = self.content(file).clone();
        torn.set_len(len);
        torn.zero(effect.change.start, effect.change.end);
        torn.write(effect.change.start, bytes);
        self.after_death(file, std::slice::from_ref(op), &torn)?;
        let state = self.file_mut(file);
        let lengths = state.lengths_on_the_way(effect.len);
        state.lengths.push(lengths);
        state.history.push(effect.change);
        state.now = torn;
        Ok(())
    }

    fn note_in_flight(&mut self, file: u8, in_flight: &[Op]) {
        in_flight
            .iter()
            .filter(|op| op.file() == Some(file))
            .for_each(|op| self.note(op));
        self.reopen_all(file);
    }

    /// What operations that have not returned change of this file.
    fn under_way(&self, file: u8, in_flight: &[Op]) -> (Vec<Change>, Vec<RangeInclusive<u64>>) {
        let of_file = in_flight.iter().filter(|op| op.file() == Some(file));
        let effects = of_file.filter_map(|op| self.effect(op));
        let way = |len| self.file(file).lengths_on_the_way(len);
        effects
            .map(|effect| (effect.change, way(effect.len)))
            .unzip()
    }

    fn check(&self, file: u8, allowed: &Allowed, image: &dyn Image) -> Result<(), Mismatch> {
        let title = allowed.title;
        let unreadable = |error| {
            self.mismatch(
                format!("{title}, the file cannot be read: {error}"),
                Some(file),
            )
        };
        let len = image.image_len().map_err(unreadable)?;
        if !allowed.lengths.iter().any(|range| range.contains(&len)) {
            let lengths = &allowed.lengths;
            let what = format!("{title}, file {file} is {len} bytes long; allowed {lengths:?}");
            return Err(self.mismatch(what, Some(file)));
        }
        let mut found = vec![0; BLOCK_BYTES as usize];
        for block in self.blocks_to_check(file, len, &allowed.changes) {
            let start = block * BLOCK_BYTES;
            let found = &mut found[..BLOCK_BYTES.min(len - start) as usize];
            image.image_read(start, found).map_err(unreadable)?;
            if let Some(at) = allowed.first_refused(start, found) {
                let what = format!("{title}, file {file} has a byte that it must not have");
                let offset = start + at as u64;
                let expected = self.content(file).byte(offset);
                return Err(self.byte_mismatch(what, file, offset, expected, &found[at..]));
            }
        }
        Ok(())
    }

    /// A copy of a file's image: the blocks that are worth looking at.
    fn take_image(&self, file: u8, image: &dyn Image, changes: &[Change]) -> Content {
        let mut content = Content::default();
        let len = image.image_len().expect("the image has just been read");
        for block in self.blocks_to_check(file, len, changes) {
            let start = block * BLOCK_BYTES;
            let mut bytes = vec![0; BLOCK_BYTES.min(len - start) as usize];
            image
                .image_read(start, &mut bytes)
                .expect("the image has just been read");
            if bytes.iter().any(|&b| b != 0) {
                content.write(start, &bytes);
            }
        }
        content.set_len(len);
        content
    }
}

impl Allowed<'_> {
    /// Index of the first byte that nothing explains, of bytes found at `start`.
    fn first_refused(&self, start: u64, found: &[u8]) -> Option<usize> {
        let end = start + found.len() as u64;
        let mut explained = vec![0; found.len()];
        self.base.copy_to(start, &mut explained);
        let base_counts = self.must_be_new.start >= end || self.must_be_new.end <= start;
        if base_counts && explained == found {
            return None;
        }
        let from_base = |(i, (a, b)): (usize, (&u8, &u8))| {
            a == b && (base_counts || !self.must_be_new.contains(&(start + i as u64)))
        };
        let mut ok: Vec<bool> = explained
            .iter()
            .zip(found)
            .enumerate()
            .map(from_base)
            .collect();
        for change in self
            .changes
            .iter()
            .filter(|c| c.start < end && c.end > start)
        {
            let from = change.start.max(start);
            let n = (change.end.min(end) - from) as usize;
            let at = (from - start) as usize;
            let value = match change.seed {
                Some(seed) => filled(seed, from, n),
                None => vec![0; n],
            };
            for (i, byte) in value.iter().enumerate() {
                ok[at + i] |= *byte == found[at + i];
            }
        }
        ok.iter().position(|&ok| !ok)
    }
}

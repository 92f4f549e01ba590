//! A file's size, in cells, as it should be: what it may be again when its client dies, as `check` has it for cells.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use crate::ids::Client;

/// A size.
#[derive(Clone, Debug, Default)]
pub struct Size {
    value: usize,
    /// Who has made the file longer, if that may still be lost, and in which operation.
    by: Option<(Client, u64)>,
    /// What it may be again if that client dies.
    olds: BTreeSet<usize>,
    /// What it may be besides `value`.
    perhaps: BTreeSet<usize>,
}

impl Size {
    pub fn of(value: usize) -> Size {
        Size {
            value,
            ..Size::default()
        }
    }

    fn all(&self) -> impl Iterator<Item = usize> + '_ {
        [self.value].into_iter().chain(self.perhaps.iter().copied())
    }

    pub fn least(&self) -> usize {
        self.all().fold(self.value, usize::min)
    }

    pub fn most(&self) -> usize {
        self.all().fold(self.value, usize::max)
    }

    /// An operation has made the file so long, if it was not.
    pub fn grow(&mut self, end: usize, by: (Client, u64), synced: bool) {
        if self.least() >= end {
            return;
        }
        let before: BTreeSet<usize> = self.all().collect();
        self.value = self.value.max(end);
        self.perhaps = before.iter().map(|size| end.max(*size)).collect();
        self.perhaps.remove(&self.value);
        self.olds.extend(before);
        self.by = Some(by);
        if synced {
            self.settle();
        }
    }

    fn settle(&mut self) {
        self.by = None;
        self.olds.clear();
    }

    /// An operation that may have made the file so long has not returned.
    pub fn perhaps(&mut self, end: usize) {
        let longer: Vec<usize> = self.all().map(|size| end.max(size)).collect();
        self.perhaps.extend(longer);
        self.perhaps.remove(&self.value);
    }

    /// Who does anything to the file finds its size at the servers.
    pub fn seen(&mut self, client: Client) {
        if self.by.is_some_and(|(by, _)| by != client) {
            self.settle();
        }
    }

    /// A program finds that it is one of these.
    pub fn see(&mut self, client: Client, sizes: RangeInclusive<usize>) -> Result<(), String> {
        let left: BTreeSet<usize> = self.all().filter(|size| sizes.contains(size)).collect();
        let Some(most) = left.last() else {
            return Err(format!(
                "size {sizes:?}, should be {} or {:?}",
                self.value, self.perhaps
            ));
        };
        if !left.contains(&self.value) {
            self.value = *most;
        }
        self.perhaps = left;
        self.perhaps.remove(&self.value);
        self.seen(client);
        Ok(())
    }

    /// A sync that was begun then has ended.
    pub fn synced(&mut self, client: Client, begun: u64) {
        if self.by.is_some_and(|(by, at)| by == client && at < begun) {
            self.settle();
        }
    }

    pub fn dead(&mut self, client: Client) {
        if self.by.is_some_and(|(by, _)| by == client) {
            let olds = std::mem::take(&mut self.olds);
            self.perhaps.extend(olds);
            self.perhaps.remove(&self.value);
            self.by = None;
        }
    }
}

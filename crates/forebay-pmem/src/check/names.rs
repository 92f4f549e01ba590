//! Directories, links, and the list of files without a name.

use std::collections::{HashMap, HashSet};

use super::Checker;
use crate::directory::{self, bucket, index_of, key_of};
use crate::layout::Kind;
use crate::layout::inode::Inode;
use crate::types::ROOT;

impl Checker<'_> {
    /// Looks at the buckets of a directory; answers how many it has.
    pub(super) fn buckets(&mut self, number: u64, inode: &Inode) -> u64 {
        let mut places = Vec::new();
        if directory::table(self.state, inode, |bucket, count| {
            places.push((bucket, count))
        })
        .is_err()
        {
            self.tell(
                format!("the table of directory {number} cannot be read"),
                "its names",
            );
            self.incomplete = true;
            return 0;
        }
        if places == [(0, 1)] && inode.entries == 0 {
            return 0;
        }
        let (mut first, mut buckets, mut entries) = (0, 0, 0);
        for (bucket, count) in places {
            if bucket == 0 || !self.use_block(bucket, number) {
                self.tell(
                    format!("directory {number} misses a bucket"),
                    "the names there",
                );
                self.incomplete = true;
            } else {
                buckets += 1;
                entries += self.bucket(number, inode, bucket, (first, count));
            }
            first += count;
        }
        if entries != inode.entries {
            let says = inode.entries;
            self.tell(
                format!("directory {number} has {entries} names and says {says}"),
                "nothing, if nothing else is told of it",
            );
        }
        buckets
    }

    /// Looks at one bucket, which has `count` places from `first` on; answers its entries.
    fn bucket(
        &mut self,
        number: u64,
        inode: &Inode,
        block: u64,
        (first, count): (u64, u64),
    ) -> u64 {
        let bytes = self
            .state
            .pages
            .with(block, Kind::Bucket, |bytes| Box::new(*bytes));
        let read = bytes.as_ref().ok().and_then(|bytes| {
            let head = bucket::Head::decode(bytes).ok()?;
            let records = bucket::records(bytes).ok()?;
            Some((head, records))
        });
        let Some((head, records)) = read else {
            self.tell(
                format!("block {block}, a bucket of directory {number}, is damaged"),
                "the names there",
            );
            self.incomplete = true;
            return 0;
        };
        let right = head.depth <= inode.depth
            && count == 1 << (inode.depth - head.depth)
            && first % count == 0
            && head.directory == number;
        if !right {
            self.tell(
                format!("block {block} is not where it belongs in directory {number}"),
                "names there",
            );
            return records.len() as u64;
        }
        let (mut names, mut keys) = (HashSet::new(), HashSet::new());
        let mut children = Vec::new();
        for record in &records {
            let key = key_of(self.state.superblock.id, record.name);
            let there = record.key >> 7 == key >> 7
                && (first..first + count).contains(&index_of(record.key, inode.depth));
            let sound = !record.name.contains(&b'/') && !record.name.contains(&0);
            if !there || !sound || record.name == b"." || record.name == b".." {
                self.tell(
                    format!("a name in directory {number} is not one, or cannot be found"),
                    "that name",
                );
            }
            if !names.insert(record.name) || !keys.insert(record.key) {
                self.tell(
                    format!("a name in directory {number} is there twice"),
                    "one of the two",
                );
            }
            children.push((record.inode, record.kind));
        }
        let entries = records.len() as u64;
        self.children.extend(
            children
                .into_iter()
                .map(|(child, kind)| (number, child, kind)),
        );
        entries
    }

    /// Compares entries with the inodes that they name, and counts of links.
    pub(super) fn names(&mut self) {
        for (parent, child, kind) in std::mem::take(&mut self.children) {
            let Some(seen) = self.seen.get_mut(&child) else {
                if !self.unreadable.contains(&child) {
                    let what = format!(
                        "directory {parent} has a name for inode {child}, which is not in use"
                    );
                    self.tell(what, "the file of that name");
                }
                continue;
            };
            seen.names += 1;
            let (is, above) = (seen.kind, seen.parent);
            if is != kind {
                let what = format!(
                    "directory {parent} has another type for inode {child} than that itself"
                );
                self.tell(what, "nothing");
            }
            if is == libc::S_IFDIR {
                if above != parent {
                    let what =
                        format!("directory {child} is in {parent} and says that it is in {above}");
                    self.tell(what, "nothing");
                }
                if let Some(seen) = self.seen.get_mut(&parent) {
                    seen.directories += 1;
                }
            }
        }
        let mut numbers: Vec<u64> = self.seen.keys().copied().collect();
        numbers.sort_unstable();
        numbers.iter().for_each(|number| self.links(*number));
        self.reach(&numbers);
    }

    fn links(&mut self, number: u64) {
        let Some(seen) = self.seen.get(&number) else {
            return;
        };
        let (names, links) = (seen.names, u64::from(seen.links));
        if seen.kind != libc::S_IFDIR {
            if names != links {
                self.tell_links(format!("inode {number} has {names} names and says {links}"));
            }
            return;
        }
        // One that was removed while it was held has neither names nor links.
        let removed = links == 0 && names == 0 && seen.entries == 0;
        let expected = 2 + u64::from(seen.directories);
        let named = if number == ROOT { 0 } else { 1 };
        if !removed && (links != expected || names != named) {
            let what = format!(
                "directory {number} has {names} names, and {links} links instead of {expected}"
            );
            self.tell_links(what);
        }
    }

    fn tell_links(&mut self, what: String) {
        let lost = match self.incomplete {
            true => "its name, with the directory that is damaged",
            false => "nothing but what is told besides",
        };
        self.tell(what, lost);
    }

    /// Every directory leads to the root by its parents.
    fn reach(&mut self, numbers: &[u64]) {
        let parent = |number: u64| {
            let seen = self.seen.get(&number);
            let seen = seen.filter(|seen| seen.kind == libc::S_IFDIR && seen.links > 0);
            seen.map(|seen| seen.parent)
        };
        for number in without_end(numbers, parent) {
            self.tell(
                format!("directory {number} cannot be reached from the root"),
                "its place",
            );
        }
    }

    /// The list of files without a name has all of those, from both ends.
    pub(super) fn orphans(&mut self) {
        let mut listed = HashSet::new();
        let mut before = 0;
        let mut at = self.seen.get(&ROOT).map_or(0, |root| root.orphan.1);
        while at != 0 {
            let seen = self
                .seen
                .get(&at)
                .filter(|seen| seen.links == 0 && seen.orphan.0 == before);
            let Some(seen) = seen.filter(|_| listed.insert(at)) else {
                let what = format!("the list of files without a name is wrong at inode {at}");
                self.tell(what, "the space of those that follow");
                return;
            };
            before = at;
            at = seen.orphan.1;
        }
        let missing = self
            .seen
            .iter()
            .filter(|(number, seen)| seen.links == 0 && !listed.contains(number));
        let mut missing: Vec<u64> = missing.map(|(number, _)| *number).collect();
        missing.sort_unstable();
        for number in missing {
            let what = format!("inode {number} has no name and is not in the list of those");
            self.tell(what, "its space");
        }
    }
}

/// Those whose parents lead round and round; each parent is asked for once.
fn without_end(numbers: &[u64], mut parent: impl FnMut(u64) -> Option<u64>) -> Vec<u64> {
    // Whether the way from a directory ends. While it is walked, it does not: whoever comes there again goes round.
    let mut ends = HashMap::from([(ROOT, true)]);
    let mut found = Vec::new();
    for number in numbers {
        let mut way = Vec::new();
        let mut at = *number;
        let is_end = loop {
            if let Some(is_end) = ends.get(&at) {
                break *is_end;
            }
            let Some(above) = parent(at) else { break true };
            ends.insert(at, false);
            way.push(at);
            at = above;
        };
        ends.extend(way.into_iter().map(|at| (at, is_end)));
        if !is_end {
            found.push(*number);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_chain_of_directories_is_walked_once() {
        // From the deepest on: 300,000, each in the one before; the first is in the root, in nothing, or in the last.
        const DEEP: u64 = 300_000;
        let numbers: Vec<u64> = (2..DEEP).rev().collect();
        for (first_in, without) in [(Some(ROOT), 0), (None, 0), (Some(DEEP - 1), DEEP - 2)] {
            let mut asked = 0;
            let found = without_end(&numbers, |number| {
                asked += 1;
                if number == 2 {
                    first_in
                } else {
                    Some(number - 1)
                }
            });
            assert_eq!(found.len() as u64, without);
            assert!(asked <= DEEP, "asked {asked} times");
        }
        let aside = without_end(&[2, 3, 4, 5], |number| {
            [None, None, Some(ROOT), Some(4), Some(3), Some(4)][number as usize]
        });
        assert_eq!(aside, [3, 4, 5]);
    }
}

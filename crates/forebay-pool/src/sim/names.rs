//! Names as they should be: what stands where, and what operations of dead clients may have done to it.
//!
//! An operation on names is done for all or not at all. One whose client died before it returned may be either, so from then on there are two
//! *cases*, and what else ends is held against both. A case in which it would have ended otherwise is none any more; if none is left, what
//! programs have seen cannot be.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::{Answer, Entry, Failure, Kind, Operation};
use crate::ids::File;

type Place = (File, Vec<u8>);

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    For(Entry),
    /// For a file that nobody has seen: a client that died has made it.
    New(Kind),
}

/// The names, if operations of dead clients were done or not as this case has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Case(BTreeMap<Place, Stands>);

/// The names.
pub struct Names {
    /// What may be. The first one is that in which the least was done.
    cases: Vec<Case>,
    /// Files that were seen.
    seen: BTreeSet<File>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            cases: vec![Case::default()],
            seen: BTreeSet::new(),
        }
    }
}

impl Names {
    /// What a name stands for, as far as is known.
    pub fn entry(&self, parent: File, name: &[u8]) -> Option<Entry> {
        match self.cases[0].0.get(&(parent, name.to_vec())) {
            Some(Stands::For(entry)) => Some(*entry),
            _ => None,
        }
    }

    /// Directories that are there, as far as is known.
    pub fn directories(&self) -> Vec<File> {
        let directory = |stands: &Stands| match stands {
            Stands::For(entry) if entry.kind == Kind::Directory => Some(entry.file),
            _ => None,
        };
        let below: BTreeSet<File> = self.cases[0].0.values().filter_map(directory).collect();
        [File::ROOT].into_iter().chain(below).collect()
    }

    /// The client of an operation has died before it returned.
    pub fn perhaps(&mut self, operation: &Operation) {
        for mut case in self.cases.clone() {
            if case.happens(operation, Stands::New).is_ok() && !self.cases.contains(&case) {
                self.cases.push(case);
            }
        }
    }

    /// An operation has succeeded.
    pub fn success(&mut self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        let seen = &self.seen;
        keep(&mut self.cases, |case| case.allows(operation, answer, seen))?;
        match answer {
            Answer::Entry(Some(entry)) | Answer::Made(entry, _) => {
                self.seen.insert(entry.file);
            }
            Answer::Names(names) => {
                let files = names.iter().map(|(_, entry)| entry.file);
                self.seen.extend(files);
            }
            _ => {}
        }
        Ok(())
    }

    /// An operation has failed.
    pub fn failure(&mut self, operation: &Operation, failure: Failure) -> Result<(), String> {
        match failure {
            Failure::NoSuchName | Failure::Changed | Failure::NotEmpty | Failure::Gone => {
                let fails = |case: &mut Case| case.happens(operation, Stands::New) == Err(failure);
                keep(&mut self.cases, fails)
            }
            // Names are no reason for that.
            _ => Ok(()),
        }
    }
}

/// Goes on with those cases that may still be.
fn keep(cases: &mut Vec<Case>, may_be: impl Fn(&mut Case) -> bool) -> Result<(), String> {
    let mut left: Vec<Case> = Vec::new();
    for mut case in cases.clone() {
        if may_be(&mut case) && !left.contains(&case) {
            left.push(case);
        }
    }
    if left.is_empty() {
        return Err(format!("cannot be where names are one of {cases:?}"));
    }
    *cases = left;
    Ok(())
}

impl Case {
    fn at(&self, parent: File, name: &[u8]) -> Option<Stands> {
        self.0.get(&(parent, name.to_vec())).copied()
    }

    fn is_there(&self, directory: File) -> bool {
        let is_it = |stands: &Stands| match stands {
            Stands::For(entry) => entry.file == directory && entry.kind == Kind::Directory,
            Stands::New(_) => false,
        };
        directory == File::ROOT || self.0.values().any(is_it)
    }

    fn is_empty(&self, directory: File) -> bool {
        !self.0.keys().any(|(parent, _)| *parent == directory)
    }

    /// An operation that may change something happens: a file that it makes is `made`. Says what the name stood for before.
    fn happens(
        &mut self,
        operation: &Operation,
        made: impl Fn(Kind) -> Stands,
    ) -> Result<Option<Stands>, Failure> {
        let is = |found: Option<Stands>, entry: Entry| match found {
            None => Err(Failure::NoSuchName),
            Some(found) if found != Stands::For(entry) => Err(Failure::Changed),
            Some(_) => Ok(()),
        };
        match operation {
            Operation::Make {
                parent,
                name,
                facts,
                ..
            } => {
                if !self.is_there(*parent) {
                    return Err(Failure::Gone);
                }
                let found = self.at(*parent, name);
                if found.is_none() {
                    self.0.insert((*parent, name.clone()), made(facts.kind));
                }
                Ok(found)
            }
            Operation::Unlink {
                parent,
                name,
                entry,
            } => {
                is(self.at(*parent, name), *entry)?;
                self.goes(*entry)?;
                Ok(self.0.remove(&(*parent, name.clone())))
            }
            Operation::Rename {
                from,
                entry,
                to,
                replaced,
            } => {
                is(self.at(from.0, &from.1), *entry)?;
                if !self.is_there(to.0) {
                    return Err(Failure::Gone);
                }
                if self.at(to.0, &to.1) != replaced.map(Stands::For) {
                    return Err(Failure::Changed);
                }
                if from != to {
                    replaced.map_or(Ok(()), |entry| self.goes(entry))?;
                    self.0.remove(from);
                    self.0.insert(to.clone(), Stands::For(*entry));
                }
                Ok(Some(Stands::For(*entry)))
            }
            Operation::List { parent } if !self.is_there(*parent) => Err(Failure::Gone),
            _ => Ok(None),
        }
    }

    /// Whether what a name stands for may go: a directory must be empty.
    fn goes(&self, entry: Entry) -> Result<(), Failure> {
        if entry.kind == Kind::Directory && !self.is_empty(entry.file) {
            return Err(Failure::NotEmpty);
        }
        Ok(())
    }

    /// Whether an operation ends with this answer, where so many files were seen before.
    fn allows(&mut self, operation: &Operation, answer: &Answer, seen: &BTreeSet<File>) -> bool {
        match (operation, answer) {
            (Operation::LookUp { parent, name }, Answer::Entry(entry)) => {
                self.shows((*parent, name.clone()), *entry, seen)
            }
            (Operation::List { parent }, Answer::Names(names)) => {
                let listed: BTreeMap<&[u8], Entry> = { names.iter() }
                    .map(|(name, entry)| (&name[..], *entry))
                    .collect();
                let known = self.0.keys().filter(|(directory, _)| directory == parent);
                let is_listed = |(_, name): &Place| listed.contains_key(&name[..]);
                self.is_there(*parent)
                    && listed.len() == names.len()
                    && { known }.all(is_listed)
                    && { listed.into_iter() }.all(|(name, entry)| {
                        self.shows((*parent, name.to_vec()), Some(entry), seen)
                    })
            }
            (Operation::Make { parent, name, .. }, Answer::Made(entry, false)) => {
                self.is_there(*parent) && self.shows((*parent, name.clone()), Some(*entry), seen)
            }
            (Operation::Make { facts, .. }, Answer::Made(entry, true)) => {
                let made = self.happens(operation, |_| Stands::For(*entry));
                made == Ok(None) && entry.kind == facts.kind && !seen.contains(&entry.file)
            }
            (Operation::Unlink { .. } | Operation::Rename { .. }, Answer::Done) => {
                self.happens(operation, Stands::New).is_ok()
            }
            _ => false,
        }
    }

    /// Whether somebody may see this of a name.
    fn shows(&mut self, place: Place, shown: Option<Entry>, seen: &BTreeSet<File>) -> bool {
        match (self.0.get(&place), shown) {
            (None, None) => true,
            (Some(Stands::For(entry)), Some(shown)) => *entry == shown,
            (Some(Stands::New(kind)), Some(shown)) => {
                let is_other = |stands: &Stands| *stands != Stands::For(shown);
                let is_new = !seen.contains(&shown.file) && self.0.values().all(is_other);
                let fits = *kind == shown.kind && is_new;
                self.0.insert(place, Stands::For(shown));
                fits
            }
            _ => false,
        }
    }
}

mod tests {
    use super::*;
    use crate::client::Facts;

    const ONE: (File, &[u8]) = (File::ROOT, b"one");
    const TWO: (File, &[u8]) = (File::ROOT, b"two");
    const A_FILE: Entry = Entry {
        file: File(1 << 32),
        kind: Kind::File,
    };

    fn make((parent, name): (File, &[u8])) -> Operation {
        Operation::Make {
            parent,
            name: name.to_vec(),
            facts: Facts::default(),
            bytes: Vec::new(),
        }
    }

    fn unlink((parent, name): (File, &[u8])) -> Operation {
        Operation::Unlink {
            parent,
            name: name.to_vec(),
            entry: A_FILE,
        }
    }

    fn rename(from: (File, &[u8]), to: (File, &[u8])) -> Operation {
        Operation::Rename {
            from: (from.0, from.1.to_vec()),
            entry: A_FILE,
            to: (to.0, to.1.to_vec()),
            replaced: None,
        }
    }

    /// What a listing of the root may say once clients have died in these operations, of a file that has the first name.
    fn may_be(died: &[Operation], listed: &[(&[u8], Entry)]) -> bool {
        let mut names = Names::default();
        let made = Answer::Made(A_FILE, true);
        assert_eq!(names.success(&make(ONE), &made), Ok(()));
        died.iter().for_each(|operation| names.perhaps(operation));
        let list = Operation::List { parent: File::ROOT };
        let listed = listed.iter().map(|(name, entry)| (name.to_vec(), *entry));
        let listed = Answer::Names(listed.collect());
        names.success(&list, &listed).is_ok()
    }

    #[test]
    fn of_two_that_died_at_one_name_either_may_have_changed_it() {
        for died in [
            [rename(ONE, TWO), unlink(ONE)],
            [unlink(ONE), rename(ONE, TWO)],
        ] {
            assert!(may_be(&died, &[(ONE.1, A_FILE)]));
            assert!(may_be(&died, &[(TWO.1, A_FILE)]));
            assert!(may_be(&died, &[]));
            assert!(!may_be(&died, &[(ONE.1, A_FILE), (TWO.1, A_FILE)]));
        }
    }

    #[test]
    fn one_that_died_may_have_changed_what_another_one_left() {
        let died = [rename(ONE, TWO), unlink(TWO)];
        assert!(may_be(&died, &[(ONE.1, A_FILE)]));
        assert!(may_be(&died, &[(TWO.1, A_FILE)]));
        assert!(may_be(&died, &[]));
        // The second one may have changed nothing else.
        assert!(!may_be(&[unlink(TWO)], &[]));
    }

    #[test]
    fn what_was_made_by_one_that_died_is_nothing_that_was_there() {
        let new = Entry {
            file: File(2 << 32),
            kind: Kind::File,
        };
        let died = [make(TWO), make(TWO)];
        assert!(may_be(&died, &[(ONE.1, A_FILE)]));
        assert!(may_be(&died, &[(ONE.1, A_FILE), (TWO.1, new)]));
        assert!(!may_be(&died, &[(ONE.1, A_FILE), (TWO.1, A_FILE)]));
        assert!(!may_be(&died, &[(TWO.1, new)]));
    }
}

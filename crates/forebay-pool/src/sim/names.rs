//! Names as they should be: what stands where, and what operations of dead clients may have done to it.
//!
//! An operation on names is done for all or not at all. One whose client died before it returned may be either: what somebody sees next of any of
//! its names says which.

use std::collections::{BTreeMap, BTreeSet};

use crate::client::{Answer, Entry, Failure, Kind, Operation};
use crate::ids::File;

type Place = (File, Vec<u8>);

/// What a name comes to stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    This(Option<Entry>),
    /// A file that nobody knows.
    New(Kind),
}

type Change = Vec<(Place, Becomes)>;

/// The names.
#[derive(Default)]
pub struct Names {
    all: BTreeMap<Place, Entry>,
    /// Directories below the root.
    directories: BTreeSet<File>,
    made: BTreeSet<File>,
    perhaps: Vec<Change>,
}

impl Names {
    /// What a name stands for, as far as is known.
    pub fn entry(&self, parent: File, name: &[u8]) -> Option<Entry> {
        self.all.get(&(parent, name.to_vec())).copied()
    }

    /// Directories that are there, as far as is known.
    pub fn directories(&self) -> Vec<File> {
        { [File::ROOT].into_iter() }
            .chain(self.directories.iter().copied())
            .collect()
    }

    /// The client of an operation has died before it returned.
    pub fn perhaps(&mut self, operation: &Operation) {
        let is = |parent: File, name: &[u8]| self.entry(parent, name);
        let change = match operation {
            Operation::Make {
                parent,
                name,
                facts,
                ..
            } if is(*parent, name).is_none() => {
                vec![((*parent, name.clone()), Becomes::New(facts.kind))]
            }
            Operation::Unlink {
                parent,
                name,
                entry,
            } if is(*parent, name) == Some(*entry) => {
                vec![((*parent, name.clone()), Becomes::This(None))]
            }
            Operation::Rename {
                from, entry, to, ..
            } if from != to && is(from.0, &from.1) == Some(*entry) => vec![
                (from.clone(), Becomes::This(None)),
                (to.clone(), Becomes::This(Some(*entry))),
            ],
            _ => return,
        };
        self.perhaps.push(change);
    }

    /// Somebody sees what a name stands for.
    fn see(&mut self, place: &Place, seen: Option<Entry>) -> Result<(), String> {
        let known = self.all.get(place).copied();
        let touches = |change: &Change| change.iter().any(|(at, _)| at == place);
        let theirs: Vec<usize> = (0..self.perhaps.len())
            .filter(|at| touches(&self.perhaps[*at]))
            .collect();
        if seen == known {
            if let [one] = theirs[..] {
                self.perhaps.remove(one);
            }
            return Ok(());
        }
        let fits = |becomes: &Becomes| match (becomes, seen) {
            (Becomes::This(entry), _) => *entry == seen,
            (Becomes::New(kind), Some(seen)) => {
                seen.kind == *kind && !self.made.contains(&seen.file)
            }
            _ => false,
        };
        let done = theirs.into_iter().find(|at| {
            { self.perhaps[*at].iter() }.any(|(at, becomes)| at == place && fits(becomes))
        });
        let Some(done) = done else {
            return Err(format!(
                "{place:?} stands for {seen:?}, should be {known:?}"
            ));
        };
        for (at, becomes) in self.perhaps.remove(done) {
            let entry = match becomes {
                Becomes::This(entry) => entry,
                Becomes::New(_) => seen,
            };
            self.set(at, entry);
        }
        Ok(())
    }

    fn set(&mut self, place: Place, entry: Option<Entry>) {
        let old = match entry {
            Some(entry) => self.all.insert(place, entry),
            None => self.all.remove(&place),
        };
        if let Some(old) = old {
            self.directories.remove(&old.file);
        }
        if let Some(entry) = entry {
            self.made.insert(entry.file);
            if entry.kind == Kind::Directory {
                self.directories.insert(entry.file);
            }
        }
    }

    /// An operation has succeeded.
    pub fn success(&mut self, operation: &Operation, answer: &Answer) -> Result<(), String> {
        match (operation, answer) {
            (Operation::LookUp { parent, name }, Answer::Entry(entry)) => {
                self.see(&(*parent, name.clone()), *entry)
            }
            (Operation::List { parent }, Answer::Names(names)) => self.list(*parent, names),
            (Operation::Make { parent, name, .. }, Answer::Made(entry, false)) => {
                self.see(&(*parent, name.clone()), Some(*entry))
            }
            (
                Operation::Make {
                    parent,
                    name,
                    facts,
                    ..
                },
                Answer::Made(entry, true),
            ) => {
                self.see(&(*parent, name.clone()), None)?;
                let is_new = !self.made.contains(&entry.file) && entry.kind == facts.kind;
                self.set((*parent, name.clone()), Some(*entry));
                self.is_there(*parent)?;
                is_new.then_some(()).ok_or("not a new file".to_string())
            }
            (
                Operation::Unlink {
                    parent,
                    name,
                    entry,
                },
                Answer::Done,
            ) => {
                self.see(&(*parent, name.clone()), Some(*entry))?;
                self.is_empty(*entry)?;
                self.set((*parent, name.clone()), None);
                Ok(())
            }
            (
                Operation::Rename {
                    from,
                    entry,
                    to,
                    replaced,
                },
                Answer::Done,
            ) => {
                self.see(from, Some(*entry))?;
                self.see(to, *replaced)?;
                self.is_there(to.0)?;
                if from != to {
                    replaced.map_or(Ok(()), |entry| self.is_empty(entry))?;
                    self.set(from.clone(), None);
                    self.set(to.clone(), Some(*entry));
                }
                Ok(())
            }
            _ => Err("an answer of another kind".to_string()),
        }
    }

    fn list(&mut self, parent: File, names: &[(Vec<u8>, Entry)]) -> Result<(), String> {
        self.is_there(parent)?;
        let listed: BTreeMap<Place, Entry> = { names.iter() }
            .map(|(name, entry)| ((parent, name.clone()), *entry))
            .collect();
        let perhaps = self.perhaps.iter().flatten().map(|(place, _)| place);
        let known: BTreeSet<Place> = { self.all.keys() }
            .chain(perhaps)
            .chain(listed.keys())
            .filter(|(directory, _)| *directory == parent)
            .cloned()
            .collect();
        known
            .iter()
            .try_for_each(|place| self.see(place, listed.get(place).copied()))
    }

    fn is_there(&self, directory: File) -> Result<(), String> {
        if self.directories().contains(&directory) || !self.perhaps.is_empty() {
            return Ok(());
        }
        Err("the directory has gone".to_string())
    }

    fn is_empty(&self, entry: Entry) -> Result<(), String> {
        let holds = |place: &Place| place.0 == entry.file;
        match self.all.keys().find(|place| holds(place)) {
            Some(name) if self.perhaps.is_empty() => Err(format!("has {name:?}, and goes")),
            _ => Ok(()),
        }
    }

    /// An operation has failed, for a reason that names can give.
    pub fn failure(&mut self, operation: &Operation, failure: Failure) -> Result<(), String> {
        let is_sure = self.perhaps.is_empty();
        let wrong = || Err("fails without a reason".to_string());
        let is = |place: &Place| self.all.get(place).copied();
        match (operation, failure) {
            (Operation::Unlink { parent, name, .. }, Failure::NoSuchName) => {
                self.see(&(*parent, name.clone()), None)
            }
            (Operation::Rename { from, .. }, Failure::NoSuchName) => self.see(&from.clone(), None),
            (
                Operation::Unlink {
                    parent,
                    name,
                    entry,
                },
                Failure::Changed,
            ) if is_sure && is(&(*parent, name.clone())) == Some(*entry) => wrong(),
            (
                Operation::Rename {
                    from,
                    entry,
                    to,
                    replaced,
                },
                Failure::Changed,
            ) if is_sure && is(from) == Some(*entry) && is(to) == *replaced => wrong(),
            (Operation::Unlink { entry, .. }, Failure::NotEmpty)
            | (
                Operation::Rename {
                    replaced: Some(entry),
                    ..
                },
                Failure::NotEmpty,
            ) if is_sure && self.is_empty(*entry).is_ok() => wrong(),
            (
                Operation::Make { parent, .. }
                | Operation::List { parent }
                | Operation::Rename {
                    to: (parent, _), ..
                },
                Failure::Gone,
            ) if is_sure && self.is_there(*parent).is_ok() => wrong(),
            _ => Ok(()),
        }
    }
}

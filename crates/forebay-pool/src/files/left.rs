//! Files whose names have gone, and whose bytes could not be given back with them.
//!
//! Whoever takes a name away has done it then, whatever becomes of the rest; that is tried again at the next removal. What is left when this process
//! ends stays: nobody else knows that no name leads to it.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::File;

/// Files whose names have gone and that could not be removed, for this host's term was over.
#[derive(Default)]
pub struct Left(Mutex<BTreeSet<File>>);

impl Left {
    fn all(&self) -> MutexGuard<'_, BTreeSet<File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another one.
    pub fn add(&self, file: File) {
        self.all().insert(file);
    }

    /// Tries them again, up to the first that cannot be removed now either.
    pub fn again(&self, remove: impl Fn(File) -> bool) {
        let mut all = std::mem::take(&mut *self.all());
        while let Some(file) = all.pop_first() {
            if !remove(file) {
                all.insert(file);
                break;
            }
        }
        self.all().extend(all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_removed_is_tried_again_in_turn() {
        let left = Left::default();
        (1..=4).map(File).for_each(|file| left.add(file));
        let tried = Mutex::new(Vec::new());
        left.again(|file| {
            tried.lock().expect("held").push(file.0);
            file.0 < 3
        });
        assert_eq!(*tried.lock().expect("held"), [1, 2, 3]);
        left.again(|file| file.0 != 4);
        assert_eq!(*left.all(), BTreeSet::from([File(4)]));
    }
}

//! Views of either kind, which tests hold while something else happens to the file.

use std::ops::{Deref, Range};

use forebay::{File, PrivateView, View};
use forebay_model::{SplitMix64, fill};

/// A view: one that is read, or one that may be written.
pub enum Held {
    Shared(View),
    Private(PrivateView),
}

impl Held {
    pub fn take(file: &File, range: Range<u64>, is_private: bool) -> forebay::Result<Held> {
        match is_private {
            true => file.view_private(range).map(Held::Private),
            false => file.view(range).map(Held::Shared),
        }
    }

    pub fn is_copy(&self) -> bool {
        match self {
            Held::Shared(view) => view.is_copy(),
            Held::Private(view) => view.is_copy(),
        }
    }

    /// Stores something somewhere into one that takes it, and into what is expected of it.
    pub fn store(&mut self, expected: &mut [u8], dice: &mut SplitMix64) {
        let Held::Private(view) = self else { return };
        if view.is_empty() {
            return;
        }
        let at = dice.below(view.len() as u64) as usize;
        let end = (at + dice.below(6000) as usize).min(view.len());
        fill(dice.below(1 << 30) as u32, 0, &mut view[at..end]);
        expected[at..end].copy_from_slice(&view[at..end]);
    }
}

impl Deref for Held {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Held::Shared(view) => view,
            Held::Private(view) => view,
        }
    }
}

//! What a pool's mount knows of a file beside the pool, and above all when it was written last, until the pool is told.
//!
//! Who reads the time meanwhile is told this mount's. A kernel that keeps pages ([`super::kept`]) keeps them as long as the time is the same: so there a time of
//! another host's, which this mount's would hide, makes a new one.

use super::now;

/// What this mount knows of a file beside the pool.
#[derive(Default)]
pub(super) struct Known {
    pub(super) openings: usize,
    /// It has no name any more.
    pub(super) is_gone: bool,
    /// It is being removed, and nobody opens it any more.
    pub(super) is_going: bool,
    /// When it was written last, until the pool knows.
    pub(super) modified: Option<i64>,
    /// What the pool is being told.
    pub(super) telling: Option<i64>,
    /// What the pool has said meanwhile instead of that.
    pub(super) hidden: Option<i64>,
    /// It was written since it was synced last.
    pub(super) is_dirty: bool,
    /// Somebody has opened it who wants each change to be synced.
    pub(super) is_synced: bool,
}

impl Known {
    /// When it was written last, if the pool does not know, or may not yet.
    pub(super) fn own_modified(&self) -> Option<i64> {
        self.modified.or(self.telling)
    }

    /// The same where a kernel has pages: the pool's time is this. Where another host has told the pool of a write since then, that must not be hidden: who has
    /// seen the one time or the other sees a new one.
    pub(super) fn modified(&mut self, pools: i64) -> Option<i64> {
        let Some(own) = self.modified else {
            return self.telling;
        };
        if self.telling != Some(pools) {
            if self.hidden.is_some_and(|hidden| hidden != pools) {
                self.modified = Some(later(own.max(pools)));
            }
            self.hidden = Some(pools);
        }
        self.modified
    }

    /// What was being told is, or (`is_told`) is not.
    pub(super) fn told(&mut self, modified: i64, is_told: bool) {
        if self.telling == Some(modified) {
            self.telling = None;
        }
        if !is_told {
            self.modified = self.modified.or(Some(modified));
        } else if self.modified.is_some() {
            self.hidden = Some(modified);
        }
    }

    /// What is known of a file that is being removed.
    pub(super) fn going() -> Self {
        Known {
            is_going: true,
            ..Known::default()
        }
    }
}

/// A time that nobody has been told of, now or after this one.
pub(super) fn later(than: i64) -> i64 {
    now().max(than.saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(modified: i64, hidden: i64) -> Known {
        Known {
            modified: Some(modified),
            hidden: Some(hidden),
            ..Known::default()
        }
    }

    fn tells(known: &mut Known) -> i64 {
        let modified = known.modified.take().expect("a time");
        known.telling = Some(modified);
        modified
    }

    #[test]
    fn what_the_pool_is_being_told_is_no_other_hosts_time() {
        let mut known = written(20, 10);
        let own = tells(&mut known);
        // It may be with the pool already, or not.
        for pools in [10, own] {
            assert_eq!(known.modified(pools), Some(own));
            assert_eq!(known.own_modified(), Some(own));
        }
        known.told(own, true);
        // A program sets another one then, which counts.
        assert_eq!(known.modified(7), None);
        assert_eq!(known.own_modified(), None);
    }

    #[test]
    fn a_write_beside_the_telling_hides_nothing_that_came_before() {
        let mut known = written(20, 10);
        let own = tells(&mut known);
        known.modified = Some(30);
        assert_eq!(known.modified(own), Some(30));
        known.told(own, true);
        assert_eq!(known.modified(own), Some(30));
        // Another host's.
        let new = known.modified(25).expect("a time");
        assert!(new > 30);
        assert_eq!(known.modified(25), Some(new));
    }

    #[test]
    fn what_could_not_be_told_is_told_again() {
        let mut known = written(20, 10);
        let own = tells(&mut known);
        known.told(own, false);
        assert_eq!(known.modified, Some(own));
        let own = tells(&mut known);
        known.modified = Some(30);
        known.told(own, false);
        assert_eq!((known.modified, known.telling), (Some(30), None));
    }
}

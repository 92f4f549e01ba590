//! A file's life as its entry says it: in one line for people, and what is true of it at all times. `docs/states.md` ("A file's life") has the
//! transitions, and who makes them.

use super::{
    ABSENT, ASKED, BACK, CLOSING, ENTERING, EXCEEDING, FOREIGN, FileEntry, GONE, HOLEY, HURRY,
    LEASED, LIVE, STABLE, TOLD, TRUNCATING, UNHEARD, UNSYNCED, VANISHED, VIEWED,
};
use crate::sync::Ordering;

/// What says that a closer has left the file to the keeper.
const LEFT: u32 = CLOSING | LEASED;

/// Every flag and its name.
const FLAGS: [(u32, &str); 15] = [
    (HOLEY, "holey"),
    (STABLE, "stable"),
    (EXCEEDING, "exceeding"),
    (TRUNCATING, "truncating"),
    (HURRY, "hurry"),
    (CLOSING, "closing"),
    (LEASED, "leased"),
    (UNHEARD, "unheard"),
    (VANISHED, "vanished"),
    (TOLD, "told"),
    (FOREIGN, "foreign"),
    (VIEWED, "viewed"),
    (ASKED, "asked"),
    (UNSYNCED, "unsynced"),
    (BACK, "back"),
];

fn all_flags() -> u32 {
    FLAGS.iter().fold(0, |all, (flag, _)| all | flag)
}

impl FileEntry {
    /// One line for people and for failing tests: the state, then the flags by their names.
    pub fn describe(&self) -> String {
        let mut words = vec![self.state_name().to_owned()];
        if self.state.load(Ordering::Relaxed) == LIVE {
            match self.opens() {
                0 => words.push("closed".into()),
                opens => words.push(format!("open {opens}")),
            }
            match self.owed_pages.load(Ordering::Relaxed) {
                0 => {}
                pages => words.push(format!("owes {pages} pages")),
            }
            match self.kernel_reason.load(Ordering::Relaxed) {
                0 => {}
                reason => words.push(format!("the kernel's by reason {reason}")),
            }
        }
        let flags = self.flags.load(Ordering::Relaxed);
        let named = FLAGS.iter().filter(|(flag, _)| flags & flag != 0);
        words.extend(named.map(|(_, name)| (*name).to_owned()));
        words.join(", ")
    }

    fn state_name(&self) -> &'static str {
        match self.state.load(Ordering::Relaxed) & 7 {
            ABSENT => "absent",
            ENTERING => "entering",
            LIVE => "live",
            GONE => "gone",
            _ => "odd",
        }
    }

    /// The first rule of an entry's that does not hold, whatever moment it is looked at. Each rule is of words that are stored in an order in which
    /// every prefix keeps it, so that a death breaks none.
    pub fn broken_rule(&self) -> Option<&'static str> {
        let seen = || {
            (
                self.state.load(Ordering::Acquire),
                self.kernel_reason.load(Ordering::Acquire),
                self.flags.load(Ordering::Acquire),
            )
        };
        let before = seen();
        let broken = self.rule_broken_by(before);
        // Somebody may have gone on between the looks.
        broken.filter(|_| seen() == before)
    }

    fn rule_broken_by(&self, (state, reason, flags): (u32, u32, u32)) -> Option<&'static str> {
        let owed = self.owed_pages.load(Ordering::Acquire);
        // Each with its reason.
        let rules = [
            // Nothing else is ever stored there: the word has been written over.
            (flags & !all_flags() != 0, "it has flags that there are not"),
            // The next file that gets the entry would inherit another one's bytes.
            (
                matches!(state, ABSENT | GONE) && owed != 0,
                "it is no file and owes bytes",
            ),
            // A keeper would end the lease of, and give its time to, whatever file gets the entry next.
            (
                matches!(state, ABSENT | GONE) && flags & LEFT != 0,
                "it is no file and is being closed",
            ),
            // The kernel answers for all of it: what memory alone has would be lost to all readers.
            (
                state == LIVE && reason != 0 && owed != 0,
                "it is the kernel's and owes bytes",
            ),
            // The thread that finishes the truncation has to know the length.
            (
                state == LIVE
                    && flags & TRUNCATING != 0
                    && self.truncating.load(Ordering::Acquire) == 0,
                "it is being truncated to no length",
            ),
            // Only writes to files with holes look for space: what another one notes is not taken back when it gets a hole.
            (
                state == LIVE && flags & HOLEY == 0 && self.solid.load(Ordering::Acquire) != 0,
                "it is solid and has no holes",
            ),
        ];
        let broken = rules.into_iter().find(|(is_broken, _)| *is_broken);
        broken.map(|(_, rule)| rule)
    }

    /// Panics where a rule is broken: at the transitions, in debug builds.
    #[track_caller]
    pub fn assert_entry(&self) {
        #[cfg(feature = "sim")]
        if crate::sim::crashed() || crate::sim::expects_damage() {
            return;
        }
        #[cfg(feature = "sim")]
        let _quiet = crate::sim::explore::quiet();
        if cfg!(debug_assertions)
            && let Some(rule) = self.broken_rule()
        {
            panic!("{rule}: {}", self.describe());
        }
    }

    /// Sets right what no order of stores leaves: somebody has written over it. While the session is stopped. How many words were wrong.
    pub fn mend(&self) -> u32 {
        let state = self.state.load(Ordering::Acquire);
        let none = if matches!(state, ABSENT | GONE) {
            LEFT
        } else {
            0
        };
        let wrong = !all_flags() | none;
        let flags = self.flags.load(Ordering::Acquire);
        if flags & wrong != 0 {
            self.flags.fetch_and(!wrong, Ordering::AcqRel);
        }
        let is_lost = state == LIVE
            && flags & TRUNCATING != 0
            && self.truncating.load(Ordering::Acquire) == 0;
        if is_lost {
            let size = self.size.load(Ordering::Acquire);
            self.truncating
                .store(size.saturating_add(1), Ordering::Release);
        }
        u32::from(flags & wrong != 0) + u32::from(is_lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::superblock::tests::entry;

    #[test]
    fn each_rule_is_seen_to_be_broken() {
        type Break = fn(&FileEntry);
        let breaks: [(Break, &str); 6] = [
            (|e| e.flags.store(1 << 30, Ordering::Relaxed), "flags that"),
            (
                |e| e.state.store(GONE, Ordering::Relaxed),
                "no file and owes",
            ),
            (
                |e| {
                    e.owed_pages.store(0, Ordering::Relaxed);
                    e.state.store(ABSENT, Ordering::Relaxed);
                    e.flags.store(LEASED, Ordering::Relaxed);
                },
                "no file and is being closed",
            ),
            (
                |e| e.kernel_reason.store(1, Ordering::Relaxed),
                "the kernel's and owes",
            ),
            (
                |e| e.flags.store(TRUNCATING, Ordering::Relaxed),
                "truncated to no length",
            ),
            (|e| e.solid.store(1, Ordering::Relaxed), "no holes"),
        ];
        for (change, rule) in breaks {
            let entry = entry();
            entry.state.store(LIVE, Ordering::Relaxed);
            entry.owed_pages.store(3, Ordering::Relaxed);
            assert_eq!(entry.broken_rule(), None);
            change(&entry);
            let broken = entry.broken_rule().unwrap_or_default();
            assert!(broken.contains(rule), "{broken} is not {rule}");
        }
    }

    #[test]
    fn a_line_names_the_state_and_the_flags() {
        let entry = entry();
        assert_eq!(entry.describe(), "absent");
        entry.state.store(LIVE, Ordering::Relaxed);
        entry.owed_pages.store(3, Ordering::Relaxed);
        entry.flags.store(CLOSING | LEASED, Ordering::Relaxed);
        assert_eq!(
            entry.describe(),
            "live, closed, owes 3 pages, closing, leased"
        );
        entry.kernel_reason.store(10, Ordering::Relaxed);
        entry.openers.store(1 << 32 | 1, Ordering::Relaxed);
        entry.flags.store(HOLEY, Ordering::Relaxed);
        entry.owed_pages.store(0, Ordering::Relaxed);
        assert_eq!(
            entry.describe(),
            "live, open 2, the kernel's by reason 10, holey"
        );
    }
}

//! What a file is, besides its bytes: kind, mode, owner, times. It lies with the size in the block [`SIZE_BLOCK`](crate::ids::SIZE_BLOCK).
//!
//! The pool keeps these for file systems, and means nothing by them: who may do what is theirs to decide, and what time it is.

use serde::{Deserialize, Serialize};

use crate::ids::Epoch;

/// What kind of file. It never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Bytes.
    #[default]
    File,
    /// Names.
    Directory,
    /// Its bytes are a path.
    Symlink,
}

/// What is known of a file besides its size and its bytes. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// What it is.
    pub kind: Kind,
    /// Who may do what: the lower twelve bits of `st_mode`.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When it was read last, as far as somebody has said.
    pub accessed: i64,
    /// When its bytes were changed last, as far as somebody has said.
    pub modified: i64,
    /// When any of this was changed last.
    pub changed: i64,
}

/// What is to be changed; `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "as in `Facts`")]
pub struct Changes {
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<i64>,
    pub modified: Option<i64>,
    pub changed: Option<i64>,
}

impl Facts {
    /// Of the root, as long as nobody has said anything else: everybody may make files there, and remove his own.
    pub(super) const OF_ROOT: Facts = Facts {
        kind: Kind::Directory,
        mode: 0o1777,
        uid: 0,
        gid: 0,
        accessed: 0,
        modified: 0,
        changed: 0,
    };

    pub(super) fn change(&mut self, changes: &Changes) {
        fn set<T: Copy>(to: &mut T, value: Option<T>) {
            *to = value.unwrap_or(*to);
        }
        set(&mut self.mode, changes.mode);
        set(&mut self.uid, changes.uid);
        set(&mut self.gid, changes.gid);
        set(&mut self.accessed, changes.accessed);
        set(&mut self.modified, changes.modified);
        set(&mut self.changed, changes.changed);
    }
}

/// The block [`SIZE_BLOCK`](crate::ids::SIZE_BLOCK) of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inode {
    /// In bytes.
    pub size: u64,
    /// Beyond this there is nothing at the servers. Greater than `size` while the file becomes longer or is cut, or if the client died that was
    /// at it.
    pub high: u64,
    /// When the file was made.
    pub born: Epoch,
    pub facts: Facts,
}

impl Inode {
    pub fn new(born: Epoch, facts: Facts) -> Self {
        Inode {
            size: 0,
            high: 0,
            born,
            facts,
        }
    }

    pub fn bytes(self) -> Vec<u8> {
        let facts = self.facts;
        let words = [
            self.size,
            self.high,
            self.born.0,
            facts.kind as u64 | u64::from(facts.mode) << 32,
            u64::from(facts.uid) | u64::from(facts.gid) << 32,
            facts.accessed as u64,
            facts.modified as u64,
            facts.changed as u64,
        ];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    pub fn of(bytes: &[u8]) -> Option<Inode> {
        let word = |at: usize| {
            let bytes = bytes.get(at * 8..at * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let facts = Facts {
            kind: match word(3)? as u32 {
                0 => Kind::File,
                1 => Kind::Directory,
                2 => Kind::Symlink,
                _ => return None,
            },
            mode: (word(3)? >> 32) as u16,
            uid: word(4)? as u32,
            gid: (word(4)? >> 32) as u32,
            accessed: word(5)? as i64,
            modified: word(6)? as i64,
            changed: word(7)? as i64,
        };
        Some(Inode {
            size: word(0)?,
            high: word(1)?,
            born: Epoch(word(2)?),
            facts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let facts = Facts {
            kind: Kind::Symlink,
            mode: 0o4751,
            uid: u32::MAX,
            gid: 7,
            accessed: -1,
            modified: i64::MAX,
            changed: 1_700_000_000_123_456_789,
        };
        let inode = Inode {
            size: 5,
            high: 1 << 60,
            ..Inode::new(Epoch(9), facts)
        };
        assert_eq!(Inode::of(&inode.bytes()), Some(inode));
        assert_eq!(Inode::of(&inode.bytes()[..63]), None);
        let mut other = inode.bytes();
        other[24] = 3;
        assert_eq!(Inode::of(&other), None);
    }
}

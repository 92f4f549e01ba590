//! Is a store in order, and what is lost if not?
//!
//! Reads everything but the bytes of files, and what the log would replay with it; changes nothing. Each thing
//! is derived twice where it is stored twice: blocks in use from the files and from the bitmap, names from
//! directories and from counts of links, directories' parents, lists from both ends. Damage never ends a check:
//! what cannot be read is a finding, and the rest is looked at.
//!
//! Bytes of files have no checksums. Damage there is not found, and neither is a damaged *last* record of the
//! log, which looks like one that a crash cut off.

mod names;
mod space;
mod walk;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::errno::OpenError;
use crate::layout::superblock::{COPIES, Superblock, TAILS, Tail};
use crate::layout::{BITS, BLOCK, Kind};
use crate::medium::{Mapped, Medium};
use crate::state::State;
use crate::store::{load_state, read_superblock};

/// Findings that are told one by one, of each kind; more are counted.
const TOLD_MAX: usize = 20;

/// Something that is not in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub what: String,
    /// What is lost by it.
    pub lost: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; lost: {}", self.what, self.lost)
    }
}

/// What a check has seen.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is not in order; nothing: the store is clean.
    pub findings: Vec<Finding>,
    /// Findings that are only counted.
    pub more: u64,
    /// Files that are no directories.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks that these have.
    pub blocks: u64,
    /// Stretches of consecutive blocks that the bytes of files lie in: at best one for each file.
    pub stretches: u64,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Checks the store in a file or device that nobody has open for writing.
pub fn check(path: &Path) -> Result<Report, OpenError> {
    check_medium(Arc::new(Mapped::open(path, false)?))
}

/// Checks the store in a medium.
pub(crate) fn check_medium(medium: Arc<dyn Medium>) -> Result<Report, OpenError> {
    let superblock = read_superblock(&*medium)?;
    let copies = check_copies(&*medium, &superblock);
    let (state, damage) = load_state(medium)?;
    let mut checker = Checker::new(&state);
    for what in copies {
        checker.tell(what, "nothing, the other copy is whole");
    }
    for what in damage {
        let lost = if what.contains("log") {
            "what was done last"
        } else {
            "no file by itself"
        };
        checker.tell(what, lost);
    }
    checker.inodes();
    checker.names();
    checker.orphans();
    checker.blocks();
    Ok(checker.report)
}

/// Copies that are damaged while the other one is whole.
fn check_copies(medium: &dyn Medium, superblock: &Superblock) -> Vec<String> {
    let mut found = Vec::new();
    for block in COPIES {
        let mut bytes = [0; BLOCK];
        medium.read(block * BLOCK as u64, &mut bytes);
        if Superblock::decode(&bytes).as_ref() != Ok(superblock) {
            found.push(format!("the superblock in block {block} is damaged"));
        }
    }
    for block in TAILS {
        let mut word = [0; 8];
        medium.read(block * BLOCK as u64, &mut word);
        if Tail::decode(superblock.id, word).is_none() {
            found.push(format!(
                "block {block}, which says where the log begins, is damaged"
            ));
        }
    }
    found
}

/// What is known of an inode while its names are counted.
struct Seen {
    kind: u32,
    links: u32,
    parent: u64,
    entries: u64,
    orphan: (u64, u64),
    /// Entries of directories that name it.
    names: u64,
    /// Directories in it.
    directories: u32,
}

struct Checker<'a> {
    state: &'a State,
    report: Report,
    told: BTreeMap<String, usize>,
    /// A bit for each block that something has.
    used: Vec<u64>,
    seen: HashMap<u64, Seen>,
    /// Entries: directory, whom they name, type.
    children: Vec<(u64, u64, u32)>,
    /// Inodes in use that cannot be read.
    unreadable: HashSet<u64>,
    /// Directories whose entries could not all be read: names may be missing because of that.
    incomplete: bool,
}

impl<'a> Checker<'a> {
    fn new(state: &'a State) -> Self {
        let blocks = state.geometry().blocks.div_ceil(64) as usize;
        Self {
            state,
            report: Report::default(),
            told: BTreeMap::new(),
            used: vec![0; blocks],
            seen: HashMap::new(),
            children: Vec::new(),
            unreadable: HashSet::new(),
            incomplete: false,
        }
    }

    fn tell(&mut self, what: String, lost: &str) {
        let kind: String = what.chars().filter(|char| !char.is_ascii_digit()).collect();
        let told = self.told.entry(kind).or_insert(0);
        *told += 1;
        if *told > TOLD_MAX {
            self.report.more += 1;
        } else {
            self.report.findings.push(Finding {
                what,
                lost: lost.to_string(),
            });
        }
    }

    /// Numbers whose bits are set in a bitmap; blocks of it that are damaged were told of.
    fn marked(&self, first: u64, kind: Kind, limit: u64) -> Vec<u64> {
        let mut marked = Vec::new();
        for page in 0..limit.div_ceil(BITS) {
            // A damaged one has no bits.
            let _ = self.state.pages.with(first + page, kind, |bytes| {
                for number in page * BITS..((page + 1) * BITS).min(limit) {
                    let bit = number % BITS;
                    if bytes[(bit / 8) as usize] & (1 << (bit % 8)) != 0 {
                        marked.push(number);
                    }
                }
            });
        }
        marked
    }

    fn is_used(&self, block: u64) -> bool {
        self.used[(block / 64) as usize] & (1 << (block % 64)) != 0
    }

    /// Notes that `whose` has a block; false if that cannot be.
    fn use_block(&mut self, block: u64, whose: u64) -> bool {
        if !self.state.geometry().is_data(block) {
            self.tell(
                format!("inode {whose} has block {block}, which is not for files"),
                "its bytes there",
            );
            return false;
        }
        if self.is_used(block) {
            self.tell(
                format!("inode {whose} has block {block}, which something else has too"),
                "the bytes of one of them",
            );
            return false;
        }
        self.used[(block / 64) as usize] |= 1 << (block % 64);
        self.report.blocks += 1;
        true
    }
}
